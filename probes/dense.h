// Coordinates of `dense` beside those that every series of it has.
#pragma once

namespace ft {

// 1: the same step on an engine that may promote, though no expert misses: on a GPU the copier then runs beside it. Its
// partner is the series of the same threads, tokens and context without.
inline constexpr const char* kCopierCoordinate = "copier";

}  // namespace ft
