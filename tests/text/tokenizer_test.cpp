// Checked against: a BPE that searches all pairs before every merge, the text itself (round trips), messages and limits
// written out by hand.
#include "engine/text/tokenizer.h"

#include <doctest/doctest.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <map>

#include "engine/text/added_tokens.h"
#include "engine/text/normalizer.h"
#include "engine/text/regex.h"
#include "engine/text/utf8.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "tests/text/support.h"

namespace {

using ft::Error;
using ft::Tokenizer;
using Ids = std::vector<int32_t>;

using Pairs = std::vector<std::pair<std::string, std::string>>;
const Pairs kOnePair = {{"a", "b"}};

// A tokenizer.json with single letters a to f, `merges`, and more top-level members.
struct Source {
  std::map<std::string, int> vocab;
  std::string merges, added = "[]", extra, model_extra;

  explicit Source(const Pairs& pairs) {
    for (char c = 'a'; c <= 'f'; ++c) vocab.emplace(std::string(1, c), c - 'a');
    for (const auto& [left, right] : pairs) {
      vocab.emplace(left + right, static_cast<int>(vocab.size()));
      merges += (merges.empty() ? "\"" : ",\"") + left + " " + right + "\"";
    }
  }
  std::string json() const {
    std::string ids;
    for (const auto& [token, id] : vocab) ids += (ids.empty() ? "\"" : ",\"") + token + "\":" + std::to_string(id);
    return R"({"added_tokens":)" + added + extra + R"(,"decoder":{"type":"Fuse"},"model":{"type":"BPE")" + model_extra +
           R"(,"vocab":{)" + ids + R"(},"merges":[)" + merges + "]}}";
  }
};

std::string refusal(const std::string& json) {
  try {
    Tokenizer::parse(json, "tokenizer.json");
  } catch (const Error& error) {
    return error.what();
  }
  FAIL("accepted: " << json);
  return {};
}

ft::ErrorKind refusal_kind(const Tokenizer& tokenizer, std::string_view text) {
  try {
    tokenizer.encode(text, true);
  } catch (const Error& error) {
    return error.kind();
  }
  FAIL("accepted");
  return ft::ErrorKind::kFailed;
}

std::string random_text(ft::Random& random, size_t code_points) {
  std::string text;
  while (code_points > 0) {
    const auto limit = std::vector<char32_t>{0x80, 0x800, 0x3400, 0x10000, 0x110000}[random.below(5)];
    const auto c = static_cast<char32_t>(random.below(limit));
    if (c >= 0xd800 && c <= 0xdfff) continue;
    ft::append_utf8(text, c);
    --code_points;
  }
  return text;
}

std::unique_ptr<Tokenizer> bundled() { return Tokenizer::load(ft_test::data_path("tiny-moe/tokenizer.json")); }

}  // namespace

TEST_CASE("merges happen in the order of a search over all pairs") {
  ft::Random random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c"};
    Pairs pairs;
    for (int i = 0; i < 12; ++i) {
      const std::string left = tokens[random.below(tokens.size())], right = tokens[random.below(tokens.size())];
      if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
      tokens.push_back(left + right);
      pairs.emplace_back(left, right);
    }
    const Source source(pairs);
    const auto tokenizer = Tokenizer::parse(source.json(), "test");
    for (int n = 0; n < 40; ++n) {
      std::vector<std::string> symbols;
      std::string text;
      for (uint64_t i = 0, count = 1 + random.below(30); i < count; ++i) {
        symbols.emplace_back(1, static_cast<char>('a' + random.below(3)));
        text += symbols.back();
      }
      while (true) {
        size_t best_rank = pairs.size(), best = 0;
        for (size_t i = 0; i + 1 < symbols.size(); ++i) {
          const auto found = std::find(pairs.begin(), pairs.end(), std::make_pair(symbols[i], symbols[i + 1]));
          const auto rank = static_cast<size_t>(found - pairs.begin());
          if (rank < best_rank) best_rank = rank, best = i;
        }
        if (best_rank == pairs.size()) break;
        symbols[best] += symbols[best + 1];
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      }
      Ids expected;
      for (const std::string& symbol : symbols) expected.push_back(source.vocab.at(symbol));
      CAPTURE(text);
      REQUIRE(tokenizer->encode(text, true) == expected);
    }
  }
}

TEST_CASE("one long piece is merged in n log n: a million letters") {
  const Source source(Pairs{{"a", "b"}, {"a", "a"}, {"aa", "aa"}});
  const auto tokenizer = Tokenizer::parse(source.json(), "test");
  const Ids ids = tokenizer->encode(std::string(1 << 20, 'a'), true);
  CHECK(ids.size() == (1u << 18));
  CHECK(ids.back() == tokenizer->id_of("aaaa"));
}

TEST_CASE("random Unicode text survives encoding, up to normalization") {
  const auto tokenizer = bundled();
  UErrorCode status = U_ZERO_ERROR;
  const icu::UnicodeSet known(u"[:age=9.0:]", status);
  const icu::FilteredNormalizer2 nfc(*icu::Normalizer2::getNFCInstance(status), known);
  REQUIRE(U_SUCCESS(status));
  ft::Random random(11);
  for (int n = 0; n < 3000; ++n) {
    const std::string text = random_text(random, 1 + random.below(40));
    std::string expected;
    icu::StringByteSink<std::string> sink(&expected);
    nfc.normalizeUTF8(0, text, sink, nullptr, status);
    REQUIRE(U_SUCCESS(status));
    REQUIRE(tokenizer->decode(tokenizer->encode(text, false), false) == expected);
  }
}

TEST_CASE("streamed text is the decoded text, whole code points at a time") {
  const auto tokenizer = bundled();
  ft::Random random(3);
  for (int n = 0; n < 500; ++n) {
    Ids ids = tokenizer->encode(random_text(random, 20), false);
    // Random ids make bytes that are no UTF-8.
    for (int i = 0; n % 2 == 1 && i < 10; ++i) ids[random.below(ids.size())] = static_cast<int32_t>(random.below(4200)) - 50;
    ft::Detokenizer detokenizer(*tokenizer, true);
    std::string text;
    for (const int32_t id : ids) {
      const std::string part = detokenizer.add(id);
      REQUIRE(ft::valid_utf8_bytes(part) == part.size());
      text += part;
    }
    text += detokenizer.finish();
    REQUIRE(text == tokenizer->decode(ids, true));
  }
}

TEST_CASE("invalid UTF-8 is a request error") {
  const auto tokenizer = bundled();
  for (const std::string_view text : {"\x80", "a\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\xff"}) {
    CHECK(refusal_kind(*tokenizer, text) == ft::ErrorKind::kRequest);
  }
}

TEST_CASE("a text of kMaxEncodeBytes is encoded, a byte more is refused") {
  Source source(Pairs{});
  const std::string token(ft::kMaxAddedTokenBytes, 'a');
  source.added = R"([{"id":6,"content":")" + token + R"(","special":false}])";
  const auto tokenizer = Tokenizer::parse(source.json(), "test");
  std::string text(ft::kMaxEncodeBytes, 'a');
  CHECK(tokenizer->encode(text, true).size() == ft::kMaxEncodeBytes / ft::kMaxAddedTokenBytes);
  text += 'a';
  CHECK(refusal_kind(*tokenizer, text) == ft::ErrorKind::kCapacity);
  source.added = R"([{"id":6,"content":"a)" + token + R"(","special":false}])";
  CHECK(refusal(source.json()).find("$.added_tokens[0].content") != std::string::npos);
}

TEST_CASE("long runs of marks are put in order in n log n") {
  std::string text = "a", expected = "a";
  constexpr int kMarks = 200'000;
  for (int i = 0; i < kMarks; ++i) text += "\xcc\x95\xcc\x80";      // U+0315 (class 232), U+0300 (230)
  for (int i = 0; i < kMarks; ++i) expected += "\xcc\x80";
  for (int i = 0; i < kMarks; ++i) expected += "\xcc\x95";
  CHECK(ft::sort_long_mark_runs(text) == expected);
  const std::string short_run = "a\xcc\x95\xcc\x80";
  CHECK(ft::sort_long_mark_runs(short_run) == short_run);
  CHECK(bundled()->encode(text, false).size() > 1000);
}

TEST_CASE("a regular expression cannot run without end") {
  Source source(Pairs{});
  source.extra = R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?:a+)+[bc]"},"behavior":"Isolated"})";
  const auto tokenizer = Tokenizer::parse(source.json(), "test");
  CHECK(refusal_kind(*tokenizer, std::string(64, 'a')) == ft::ErrorKind::kRequest);
}

TEST_CASE("constructs that Oniguruma reads differently are refused") {
  for (const char* pattern : {"\\h", "[a[b]]", "[a&&b]", "(?m:a)", "a(?i)b", "a{2}+", "\\bword", "\\1", "(*UTF)", "[[:alpha:]]",
                              "\\p{Foo}", "\\R", "[", "(", "a{1,2,3}", "(?<n>a)", "\\x80", "[]a]"}) {
    CAPTURE(pattern);
    CHECK_THROWS_AS(ft::Regex{pattern}, Error);
  }
  CHECK(ft::translate_regex("a{,3}[\\s]") .starts_with("a{0,3}[\\x{9}-"));
  CHECK(ft::translate_regex("\\p{Han}\\p{^Lu}\\u00e9") == "\\p{sc:Han}\\P{Lu}\\x{00e9}");
  CHECK_NOTHROW(ft::Regex{std::string(ft::kMaxRegexBytes, 'a')});
  CHECK_THROWS_AS(ft::Regex{std::string(ft::kMaxRegexBytes + 1, 'a')}, Error);
}

TEST_CASE("what is not supported names its place in the file") {
  Source good(kOnePair);
  CHECK_NOTHROW(Tokenizer::parse(good.json(), "test"));
  const auto with_extra = [](const std::string& extra) {
    Source source(kOnePair);
    source.extra = "," + extra;
    return refusal(source.json());
  };
  CHECK(with_extra(R"("normalizer":{"type":"Lowercase"})").find("tokenizer.json: $.normalizer is 'Lowercase'") != std::string::npos);
  CHECK(with_extra(R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Metaspace"}]})")
            .find("$.pre_tokenizer.pretokenizers[0] is 'Metaspace'") != std::string::npos);
  CHECK(with_extra(R"("post_processor":{"type":"BertProcessing"})").find("$.post_processor") != std::string::npos);
  CHECK(with_extra(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\h"},"behavior":"Isolated"})")
            .find("$.pre_tokenizer.pattern.Regex") != std::string::npos);
  const auto with_model = [](const std::string& extra) {
    Source source(kOnePair);
    source.model_extra = "," + extra;
    return refusal(source.json());
  };
  CHECK(with_model(R"("end_of_word_suffix":"</w>")").find("$.model.end_of_word_suffix") != std::string::npos);
  CHECK(with_model(R"("dropout":0.1)").find("$.model.dropout") != std::string::npos);
  CHECK(with_model(R"("unk_token":"?")").find("$.model.unk_token") != std::string::npos);
  CHECK(refusal(R"({"model":{"type":"WordPiece","vocab":{},"merges":[]}})").find("$.model.type is 'WordPiece'") != std::string::npos);
  CHECK(refusal(R"({"model":{"vocab":{"a":0,"b":0},"merges":[]},"decoder":{"type":"Fuse"}})").find("two tokens") != std::string::npos);
  CHECK(refusal(R"({"model":{"vocab":{"a":4194304},"merges":[]},"decoder":{"type":"Fuse"}})").find("out of range") != std::string::npos);
  CHECK(refusal(R"({"model":{"vocab":{"a":-1},"merges":[]},"decoder":{"type":"Fuse"}})").find("out of range") != std::string::npos);
  CHECK(refusal(R"({"model":{"vocab":{"a":0},"merges":["a b"]},"decoder":{"type":"Fuse"}})").find("$.model.merges[0]") != std::string::npos);
  CHECK(refusal(R"({"model":{"vocab":{"a":0},"merges":[]}})").find("$.decoder") != std::string::npos);
  CHECK(refusal("{").find("tokenizer.json") != std::string::npos);
}
