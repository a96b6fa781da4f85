// Checked against: lines written out by hand.
#include "engine/program/load_display.h"

#include <doctest/doctest.h>

using namespace ft;

TEST_CASE("a line says how far, how fast and how long still") {
  constexpr int64_t kTotal = 57'200'000'000;
  CHECK(load_line({"packing weights", 0, kTotal}, 0) == "packing weights:   0 %, 0.0 of 57.2 GB");
  CHECK(load_line({"packing weights", 0, kTotal}, 9) == "packing weights:   0 %, 0.0 of 57.2 GB");
  CHECK(load_line({"packing weights", kTotal / 100, kTotal}, 0.4) == "packing weights:   1 %, 0.6 of 57.2 GB");
  CHECK(load_line({"packing weights", kTotal / 4, kTotal}, 2.5) ==
        "packing weights:  25 %, 14.3 of 57.2 GB, 5.7 GB/s, 8 s left");
  CHECK(load_line({"packing weights", kTotal, kTotal}, 10) ==
        "packing weights: 100 %, 57.2 of 57.2 GB, 5.7 GB/s, 0 s left");
  CHECK(load_line({"nothing", 0, 0}, 10) == "nothing: 100 %");
}

TEST_CASE("at the end it says what it took") {
  CHECK(load_summary({"packing weights", 57'200'000'000, 57'200'000'000}, 10) ==
        "packing weights: 57.2 GB in 10.0 s, 5.7 GB/s");
  CHECK(load_summary({"packing weights", 16'000'000, 16'000'000}, 0.001) == "packing weights: 16.0 MB in 0.0 s");
  CHECK(load_line({"packing weights", 4'000'000, 16'000'000}, 2) ==
        "packing weights:  25 %, 4.0 of 16.0 MB, 2.0 MB/s, 6 s left");
  CHECK(load_summary({"nothing", 0, 0}, 10) == "nothing: done");
}
