#include "tuner/nnls.h"

#include <Eigen/QR>

#include "kernels/base/error.h"

namespace ft {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;

// Least squares over the free columns only; zero elsewhere.
Vector solve_free(const Matrix& a, const Vector& b, const std::vector<bool>& free) {
  std::vector<Eigen::Index> columns;
  for (Eigen::Index j = 0; j < a.cols(); ++j) {
    if (free[static_cast<size_t>(j)]) columns.push_back(j);
  }
  Vector x = Vector::Zero(a.cols());
  if (columns.empty()) return x;
  Eigen::MatrixXd part(a.rows(), static_cast<Eigen::Index>(columns.size()));
  for (size_t j = 0; j < columns.size(); ++j) part.col(static_cast<Eigen::Index>(j)) = a.col(columns[j]);
  const Vector solution = part.completeOrthogonalDecomposition().solve(b);
  for (size_t j = 0; j < columns.size(); ++j) x[columns[j]] = solution[static_cast<Eigen::Index>(j)];
  return x;
}

// Largest step from x towards z that keeps x >= 0; the columns that reach 0 leave the free set.
void step_to_bound(const Vector& z, Vector& x, std::vector<bool>& free) {
  double step = 1;
  Eigen::Index blocking = -1;
  for (Eigen::Index j = 0; j < x.size(); ++j) {
    if (!free[static_cast<size_t>(j)] || z[j] > 0) continue;
    const double here = x[j] / (x[j] - z[j]);  // x >= 0 >= z: in [0, 1], or 0/0 when both are 0
    if (!(here > step)) {
      step = here >= 0 ? here : 0;
      blocking = j;
    }
  }
  x += step * (z - x);
  for (Eigen::Index j = 0; j < x.size(); ++j) {
    if (free[static_cast<size_t>(j)] && (j == blocking || x[j] <= 0)) {
      x[j] = 0;
      free[static_cast<size_t>(j)] = false;
    }
  }
}

}  // namespace

std::vector<double> nnls(std::span<const double> a_values, std::span<const double> b_values, int columns) {
  FT_CHECK(columns > 0 && a_values.size() == b_values.size() * static_cast<size_t>(columns));
  const auto rows = static_cast<Eigen::Index>(b_values.size());
  Matrix a = Eigen::Map<const Matrix>(a_values.data(), rows, columns);
  const Vector b = Eigen::Map<const Vector>(b_values.data(), rows);
  Vector scale = Vector::Ones(columns);
  for (Eigen::Index j = 0; j < columns; ++j) {
    const double norm = a.col(j).norm();
    if (norm > 0) scale[j] = 1 / norm;
    a.col(j) *= scale[j];
  }

  constexpr double kTolerance = 1e-12;  // of the gradient, against |b|: columns have length 1
  const double tolerance = kTolerance * std::max(b.norm(), 1e-300);
  const int max_rounds = 3 * columns + 10;  // Lawson and Hanson's usual bound
  Vector x = Vector::Zero(columns);
  std::vector<bool> free(static_cast<size_t>(columns), false);
  for (int round = 0; round < max_rounds; ++round) {
    const Vector gradient = a.transpose() * (b - a * x);
    Eigen::Index enter = -1;
    for (Eigen::Index j = 0; j < columns; ++j) {
      if (free[static_cast<size_t>(j)] || gradient[j] <= tolerance) continue;
      if (enter < 0 || gradient[j] > gradient[enter]) enter = j;
    }
    if (enter < 0) break;
    free[static_cast<size_t>(enter)] = true;
    for (int inner = 0; inner < columns; ++inner) {
      const Vector z = solve_free(a, b, free);
      bool inside = true;
      for (Eigen::Index j = 0; j < columns; ++j) inside = inside && (!free[static_cast<size_t>(j)] || z[j] > 0);
      if (inside) {
        x = z;
        break;
      }
      step_to_bound(z, x, free);
    }
  }
  std::vector<double> result(static_cast<size_t>(columns));
  for (Eigen::Index j = 0; j < columns; ++j) result[static_cast<size_t>(j)] = x[j] * scale[j];
  return result;
}

}  // namespace ft
