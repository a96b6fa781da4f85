// Non-negative least squares: min |A x - b| over x >= 0.
#pragma once

#include <span>
#include <vector>

namespace ft {

// a: (b.size(), columns) row-major. Active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974,
// chapter 23) on columns scaled to unit length. Columns of zeros get 0. Rows may be fewer than columns.
std::vector<double> nnls(std::span<const double> a, std::span<const double> b, int columns);

}  // namespace ft
