// Checked against: texts written by hand, at the bounds between units and just below them.
#include "kernels/base/size_text.h"

#include <doctest/doctest.h>

#include <limits>

using namespace ft;

TEST_CASE("every size has the unit in which it is not zero") {
  CHECK(size_text(int64_t{0}) == "0 B");
  CHECK(size_text(int64_t{-5}) == "0 B");
  CHECK(size_text(int64_t{1}) == "1 B");
  CHECK(size_text(int64_t{999}) == "999 B");
  CHECK(size_text(int64_t{1000}) == "1.0 KB");
  CHECK(size_text(int64_t{999'949}) == "999.9 KB");
  CHECK(size_text(int64_t{999'950}) == "1.0 MB");
  CHECK(size_text(int64_t{15'452'192}) == "15.5 MB");
  CHECK(size_text(int64_t{99'949'999}) == "99.9 MB");
  CHECK(size_text(int64_t{99'950'000}) == "0.1 GB");
  CHECK(size_text(int64_t{57'200'000'000}) == "57.2 GB");
  CHECK(size_text(std::numeric_limits<int64_t>::max()) == "9223372036.9 GB");
  CHECK(size_text(0.4) == "0 B");
  CHECK(size_text(999.6) == "1.0 KB");
}

TEST_CASE("a part has the unit of its whole") {
  CHECK(size_of_text(14.3e9, 57.2e9) == "14.3 of 57.2 GB");
  CHECK(size_of_text(0, 57.2e9) == "0.0 of 57.2 GB");
  CHECK(size_of_text(1.5e6, 15.5e6) == "1.5 of 15.5 MB");
  CHECK(size_of_text(10, 200) == "10 of 200 B");
}

TEST_CASE("rates") {
  CHECK(rate_text(5.7e9) == "5.7 GB/s");
  CHECK(rate_text(31.2e6) == "31.2 MB/s");
}
