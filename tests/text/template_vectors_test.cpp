// Checked against: jinja2 3.1.6 with the settings of transformers; generate_template_vectors.py wrote its output down.
#include <doctest/doctest.h>

#include <map>

#include "engine/text/chat_template.h"
#include "kernels/base/error.h"
#include "tests/text/support.h"

namespace {

using ft::ChatTemplate;
using ft::Error;
using ft::OrderedJson;

struct Outcome {
  std::string text;
  bool failed = false;
};

Outcome render(const ChatTemplate& chat_template, const OrderedJson& variables, int64_t now) {
  try {
    return {chat_template.render(variables, now), false};
  } catch (const Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kRequest);
    return {error.what(), true};
  }
}

std::string fnv1a64(std::string_view text) {
  uint64_t value = 0xcbf29ce484222325u;
  for (const char c : text) value = (value ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  char buffer[17];
  std::snprintf(buffer, sizeof(buffer), "%016llx", static_cast<unsigned long long>(value));
  return buffer;
}

OrderedJson variables_of(const OrderedJson& file, const OrderedJson& test_case) {
  OrderedJson variables = OrderedJson::object();
  variables["messages"] = file["conversations"][test_case["conversation"].get<std::string>()];
  variables["bos_token"] = "<s>";
  variables["eos_token"] = "</s>";
  for (const auto& [name, value] : file["settings"][test_case["settings"].get<size_t>()].items()) variables[name] = value;
  return variables;
}

}  // namespace

TEST_CASE("expressions, filters, tests, methods and white space are jinja2's") {
  const OrderedJson file = ft_test::read_ordered(ft_test::data_path("templates/expressions.json"));
  CHECK(file["cases"].size() >= 50);
  for (const OrderedJson& test_case : file["cases"]) {
    const auto source = test_case["source"].get<std::string>();
    CAPTURE(source);
    const Outcome outcome = render(*ChatTemplate::compile(source), file["variables"], file["now_unix_seconds"]);
    CAPTURE(outcome.text);
    REQUIRE(outcome.failed == test_case.contains("error"));
    if (!outcome.failed) CHECK(outcome.text == test_case["expected"].get<std::string>());
  }
}

TEST_CASE("the bundled templates render as jinja2 renders them") {
  const OrderedJson file = ft_test::read_ordered(ft_test::data_path("templates/bundled.json"));
  std::map<std::string, std::unique_ptr<ChatTemplate>> templates;
  templates["tiny-moe"] = ChatTemplate::load(ft_test::data_path("tiny-moe"));
  templates["Qwen-Qwen3-0.6B"] =
      ChatTemplate::compile(ft::read_text_file(ft_test::data_path("tokenizers/Qwen-Qwen3-0.6B.jinja")));
  CHECK(file["cases"].size() == 192);
  for (const OrderedJson& test_case : file["cases"]) {
    CAPTURE(test_case["template"].get<std::string>());
    CAPTURE(test_case["conversation"].get<std::string>());
    const ChatTemplate& chat_template = *templates.at(test_case["template"].get<std::string>());
    const Outcome outcome = render(chat_template, variables_of(file, test_case), file["now_unix_seconds"]);
    REQUIRE(outcome.failed == test_case.contains("error"));
    if (!outcome.failed) CHECK(outcome.text == test_case["expected"].get<std::string>());
  }
}

TEST_CASE("the published templates render as jinja2 renders them") {
  const std::string folder = ft_test::shared_path("tokenizers/templates");
  if (folder.empty()) {
    MESSAGE("skipped: FT_SHARED/tokenizers/templates is not there");
    return;
  }
  const OrderedJson file = ft_test::read_ordered(ft_test::data_path("templates/published.json"));
  std::map<std::string, std::unique_ptr<ChatTemplate>> templates;
  for (const OrderedJson& test_case : file["cases"]) {
    const auto name = test_case["template"].get<std::string>();
    if (!templates.contains(name)) {
      templates[name] = ChatTemplate::compile(ft::read_text_file(folder + "/" + name + ".jinja"));
    }
    CAPTURE(name);
    CAPTURE(test_case["conversation"].get<std::string>());
    CAPTURE(test_case["settings"].get<int>());
    const Outcome outcome = render(*templates[name], variables_of(file, test_case), file["now_unix_seconds"]);
    REQUIRE(outcome.failed == test_case.contains("error"));
    if (outcome.failed) continue;
    CHECK(outcome.text.size() == test_case["bytes"].get<size_t>());
    CHECK(fnv1a64(outcome.text) == test_case["fnv1a64"].get<std::string>());
  }
  CHECK(templates.size() == 9);
}
