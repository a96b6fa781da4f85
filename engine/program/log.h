// Messages for people, on stderr (spdlog): what --log-level filters. Results go to stdout, errors end in run_program.
#pragma once

#include <string_view>

namespace ft {

// level: "debug", "info", "warning" or "error", as the option table allows. Called once, by main. Warns of a build that
// is slowed down on purpose (profiles/build_info.h).
void start_log(std::string_view level);
bool log_shows_info();

void log_debug(std::string_view text);
void log_info(std::string_view text);
void log_warning(std::string_view text);

}  // namespace ft
