#include "engine/program/load_display.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <cstdio>

#include "engine/program/log.h"
#include "kernels/base/clock.h"
#include "kernels/base/size_text.h"

namespace ft {
namespace {

constexpr double kLeastSeconds = 0.5;  // of a stage, before its rate says something

}  // namespace

std::string load_line(const LoadProgress& progress, double seconds) {
  std::string line = fmt::format("{}: {:>3.0f} %", progress.stage, 100 * progress.fraction());
  if (progress.total_bytes <= 0) return line;
  const auto done = static_cast<double>(progress.done_bytes), total = static_cast<double>(progress.total_bytes);
  line += ", " + size_of_text(done, total);
  if (seconds < kLeastSeconds || progress.done_bytes <= 0) return line;
  const double rate = done / seconds;
  return line + fmt::format(", {}, {:.0f} s left", rate_text(rate), (total - done) / rate);
}

std::string load_summary(const LoadProgress& progress, double seconds) {
  if (progress.total_bytes <= 0) return fmt::format("{}: done", progress.stage);
  std::string line = fmt::format("{}: {} in {:.1f} s", progress.stage, size_text(progress.total_bytes), seconds);
  if (seconds > 0.05) line += ", " + rate_text(static_cast<double>(progress.total_bytes) / seconds);
  return line;
}

LoadDisplay::LoadDisplay() : terminal_(isatty(STDERR_FILENO) != 0) {}

LoadDisplay::~LoadDisplay() { end_line(); }

void LoadDisplay::end_line() {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

void LoadDisplay::show(const LoadProgress& progress) {
  if (!log_shows_info()) return;
  const double now = now_seconds();
  const bool begins = progress.stage != stage_;
  if (begins) {
    end_line();
    stage_ = progress.stage;
    stage_begin_ = now;
    done_ = false;
  }
  if (done_) return;
  done_ = progress.done_bytes >= progress.total_bytes;
  if (!done_ && !begins && now - shown_at_ < (terminal_ ? kTerminalSeconds : kLogSeconds)) return;
  shown_at_ = now;
  const double seconds = now - stage_begin_;
  const std::string line = done_ ? load_summary(progress, seconds) : load_line(progress, seconds);
  if (!terminal_) return log_info(line);
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());  // the rest of a longer line before it is cleared
  std::fflush(stderr);
  open_ = true;
  if (done_) end_line();
}

}  // namespace ft
