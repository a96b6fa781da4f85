// Checked against: constants and rows that were computed from the published algorithm, and properties of the hash.
#include "engine/model/ngram_hash.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

using namespace ft;

namespace {

const NgramSettings kPublished = {.vocab = 248320,
                                  .size = 3,
                                  .heads = 8,
                                  .table_base = 20'000'000,
                                  .rows_multiple = 128,
                                  .seed = 1234,
                                  .separator = 248044};

// The rows of every token of a text from its start.
std::vector<std::vector<int64_t>> rows_of(const NgramHash& hash, const std::vector<int32_t>& ids) {
  std::vector<std::vector<int64_t>> rows;
  for (size_t t = 0; t < ids.size(); ++t) {
    std::vector<int32_t> window(static_cast<size_t>(hash.size()), -1);
    for (size_t s = 0; s < window.size() && s <= t; ++s) window[s] = ids[t - s];
    hash.separate(window, static_cast<int64_t>(t));
    rows.emplace_back();
    for (int64_t head = 0; head < hash.heads(); ++head) rows.back().push_back(hash.row(window, head));
  }
  return rows;
}

}  // namespace

TEST_CASE("n-gram hash: the constants of the published table, and three tokens from the start of a sequence") {
  const NgramHash hash = NgramHash::tables(kPublished, 1).front();
  const auto same = [](std::span<const int64_t> got, std::vector<int64_t> expected) {
    return std::equal(got.begin(), got.end(), expected.begin(), expected.end());
  };
  CHECK(same(hash.multipliers(), {23703573157769, 20109073645365, 8052911324071}));
  std::vector<int64_t> primes;
  for (const int64_t above : {3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171}) {
    primes.push_back(20'000'000 + above);
  }
  CHECK(same(hash.primes(), primes));
  CHECK(hash.offsets().back() == 300001275);
  CHECK(hash.rows() == 320001536);
  const std::vector<std::vector<int64_t>> rows = rows_of(hash, {100, 200, 300});
  CHECK(same(rows[0], {5727835, 21884476, 43702108, 66434789, 84094509, 104112171, 134886528, 157314943, 162363667,
                       189466439, 200618315, 232121522, 258547276, 266199001, 289022207, 305180972}));
  CHECK(same(rows[1], {6669481, 25231135, 54517055, 75522994, 90676203, 102395039, 139974376, 143415227, 164675732,
                       199178354, 201246635, 232214480, 253236281, 274617176, 281823939, 318456244}));
  CHECK(same(rows[2], {6129193, 20484628, 57667260, 77728366, 86357215, 109234597, 123551585, 149309416, 172664702,
                       184433127, 201501905, 227445817, 243341740, 279238932, 284538191, 311036336}));
}

TEST_CASE("n-gram hash: primes run on from one table to the next, multipliers differ, seeds count") {
  const std::vector<NgramHash> tables = NgramHash::tables(kPublished, 2);
  const NgramHash &first = tables[0], &second = tables[1];
  CHECK(second.primes().front() > first.primes().back());
  CHECK(second.offsets().front() == 0);
  CHECK(second.multipliers()[0] != first.multipliers()[0]);
  NgramSettings other = kPublished;
  other.seed += 10007;  // what a table further on adds
  CHECK(NgramHash::tables(other, 1).front().multipliers()[2] == second.multipliers()[2]);
  NgramSettings tiny = kPublished;
  tiny.vocab = 97, tiny.size = 2, tiny.heads = 4, tiny.table_base = 1, tiny.rows_multiple = 1;
  const NgramHash small = NgramHash::tables(tiny, 1).front();
  CHECK(std::vector<int64_t>(small.primes().begin(), small.primes().end()) == std::vector<int64_t>{2, 3, 5, 7});
  CHECK(small.rows() == 17);
  for (const int64_t multiplier : small.multipliers()) {
    CHECK(multiplier % 2 == 1);
    CHECK(multiplier <= INT64_MAX / 97);
  }
}

TEST_CASE("n-gram hash: an end token closes its segment, to which it belongs itself") {
  const NgramHash hash = NgramHash::tables(kPublished, 1).front();
  constexpr int32_t kEnd = 248044;
  const auto text = rows_of(hash, {1, 2, kEnd, 3, 4, 5});
  const auto before = rows_of(hash, {1, 2, kEnd}), after = rows_of(hash, {3, 4, 5});
  CHECK(text[2] == before[2]);
  CHECK(text[2] != rows_of(hash, {kEnd})[0]);  // it sees what stands before it
  for (size_t t = 0; t < 3; ++t) CHECK(text[3 + t] == after[t]);
  const auto twice = rows_of(hash, {7, kEnd, kEnd, 8});
  CHECK(twice[2] == rows_of(hash, {kEnd})[0]);
  CHECK(twice[3] == rows_of(hash, {8})[0]);
}
