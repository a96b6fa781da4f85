// ft-tune explain: why this strategy, and what would have to change for the runner-up to win.
#include "tuner/explain.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tuner/commands/commands.h"

namespace ft {

int run_explain(const ParsedOptions& options) {
  const Profile profile = read_profile(options.positionals.at(0));
  const std::string text = options.text("--format") == "json"
                               ? explain_json(profile).dump(2, ' ', true, OrderedJson::error_handler_t::replace) + "\n"
                               : explain_text(profile);
  std::fputs(text.c_str(), stdout);
  return kExitDone;
}

}  // namespace ft
