// Renders chat templates for a test in another language: a JSON line {"template": NAME, "source": TEXT} compiles one, a
// line {"template": NAME, "variables": {..}, "now": UNIX SECONDS} renders it. Each line is answered by one JSON line:
// {},
// {"text": ..} or {"error": .., "kind": "load" or "render"}.
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/text/chat_template.h"
#include "kernels/base/error.h"

namespace {

using ft::ChatTemplate;
using ft::OrderedJson;

using Templates = std::map<std::string, std::unique_ptr<ChatTemplate>>;

OrderedJson answer(Templates& templates, const OrderedJson& request) {
  const auto name = request["template"].get<std::string>();
  const bool is_source = request.contains("source");
  try {
    if (is_source) {
      templates[name] = ChatTemplate::compile(request["source"].get<std::string>());
      return OrderedJson::object();
    }
    return {{"text", templates.at(name)->render(request["variables"], request["now"].get<int64_t>())}};
  } catch (const ft::Error& error) {
    return {{"error", error.what()}, {"kind", is_source ? "load" : "render"}};
  }
}

}  // namespace

int main() {
  Templates templates;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(templates, OrderedJson::parse(line)).dump(-1, ' ', true) << std::endl;
  }
}
