#include <algorithm>
#include <utility>

#include "engine/text/tokenizer.h"
#include "kernels/base/error.h"

namespace ft {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  if (stops_.size() > kMaxStopStrings) {
    throw Error(ErrorKind::kRequest, {"too many stop strings", std::to_string(stops_.size()),
                                      "at most " + std::to_string(kMaxStopStrings), "", "stop"});
  }
  for (const std::string& stop : stops_) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      throw Error(ErrorKind::kRequest, {"stop string refused", std::to_string(stop.size()) + " bytes",
                                        "1 to " + std::to_string(kMaxStopBytes) + " bytes", "", "stop"});
    }
  }
}

StopMatcher::Result StopMatcher::add(std::string_view text) {
  Result result{"", stopped_};
  if (stopped_) return result;
  held_ += text;
  size_t stop_begin = 0, stop_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < stop_end || (end == stop_end && begin < stop_begin)) {
      stop_begin = begin;
      stop_end = end;
    }
  }
  if (stop_end != std::string::npos) {
    result = {held_.substr(0, stop_begin), true};
    stopped_ = true;
    held_.clear();
    return result;
  }
  // What may be the beginning of a stop string stays.
  size_t held = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > held; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) held = length;
    }
  }
  result.text = held_.substr(0, held_.size() - held);
  held_.erase(0, held_.size() - held);
  return result;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace ft
