#include "engine/program/load_display.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <cstdio>

#include "engine/program/log.h"
#include "kernels/base/clock.h"

namespace ft {
namespace {

constexpr double kLeastSeconds = 0.5;  // of a stage, before its rate says something

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) * 1e-9; }

}  // namespace

std::string load_line(const LoadProgress& progress, double seconds) {
  std::string line = fmt::format("{}: {:>3.0f} %", progress.stage, 100 * progress.fraction());
  if (progress.total_bytes <= 0) return line;
  line += fmt::format(", {:.1f} of {:.1f} GB", gigabytes(progress.done_bytes), gigabytes(progress.total_bytes));
  if (seconds < kLeastSeconds || progress.done_bytes <= 0) return line;
  const double rate = gigabytes(progress.done_bytes) / seconds;
  const double left = gigabytes(progress.total_bytes - progress.done_bytes) / rate;
  return line + fmt::format(", {:.1f} GB/s, {:.0f} s left", rate, left);
}

std::string load_summary(const LoadProgress& progress, double seconds) {
  if (progress.total_bytes <= 0) return fmt::format("{}: done", progress.stage);
  std::string line = fmt::format("{}: {:.1f} GB in {:.1f} s", progress.stage, gigabytes(progress.total_bytes), seconds);
  if (seconds > 0.05) line += fmt::format(", {:.1f} GB/s", gigabytes(progress.total_bytes) / seconds);
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
