#include "engine/program/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <string>

#include "kernels/base/error.h"
#include "profiles/build_info.h"

namespace ft {

void start_log(std::string_view level) {
  auto logger = spdlog::stderr_color_mt("ft");
  logger->set_pattern("%v");
  logger->set_level(spdlog::level::from_str(std::string(level)));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  if (build_info().is_planted()) {
    log_warning("this build, " + std::string(build_info().version) +
                ", is slowed down on purpose: for tests of ft-tune compare only");
  }
}

bool log_shows_info() { return spdlog::should_log(spdlog::level::info); }

// Whatever a line names (paths, a checkpoint's own texts) comes from outside.
void log_debug(std::string_view text) { spdlog::debug("{}", printable(text, "\n")); }
void log_info(std::string_view text) { spdlog::info("{}", printable(text, "\n")); }
void log_warning(std::string_view text) { spdlog::warn("warning: {}", printable(text, "\n")); }

}  // namespace ft
