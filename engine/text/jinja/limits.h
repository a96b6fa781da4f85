// Bounds of chat templates. A template comes with the model and its variables with a request; neither may stall or
// exhaust the server.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ft::jinja {

inline constexpr size_t kMaxTemplateBytes = 1u << 20;  // largest published: 17 KB
inline constexpr int kMaxNesting = 200;                // blocks and expressions inside each other, in the source
inline constexpr int kMaxCallDepth = 1000;             // C++ calls of the interpreter inside each other, 0.5 KB each
inline constexpr int kMaxValueDepth = 100;             // lists and objects inside each other, where one is walked
inline constexpr size_t kMaxOutputBytes = 16u << 20;   // of a rendering, and of any one string
inline constexpr int64_t kMaxRange = 100'000;          // jinja2.sandbox.MAX_RANGE

// Work of one rendering: one unit per node evaluated and per 8 bytes copied, four per list entry made. 50 M is about 1
// s and at most 0.4 GB. A template that compares each message with each other (Gemma 4) needs 50 units a pair: 1400
// messages.
inline constexpr int64_t kMaxWork = 50'000'000;
inline constexpr int64_t kBytesPerWork = 8;
inline constexpr int64_t kWorkPerEntry = 4;

}  // namespace ft::jinja
