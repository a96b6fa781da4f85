// Checked against: Hugging Face's tokenizers 0.23.3 (generate_tokenizer_vectors.py wrote its output down), and the vectors
// that two other implementations, one in Python and one in JavaScript, agree on.
#include <doctest/doctest.h>

#include <unicode/normalizer2.h>

#include "engine/text/pre_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_json.h"
#include "kernels/base/error.h"
#include "tests/text/support.h"

namespace {

using ft::OrderedJson;
using ft::Tokenizer;
using Ids = std::vector<int32_t>;

const OrderedJson& reference() {
  static const OrderedJson file = ft_test::read_ordered(ft_test::data_path("tokenizers/reference.json"));
  return file;
}

Ids ids_of(const OrderedJson& test_case, const char* name) {
  return test_case.contains(name) ? test_case[name].get<Ids>() : test_case["all"].get<Ids>();
}

void check_encoding(const Tokenizer& tokenizer, const OrderedJson& cases) {
  for (const OrderedJson& test_case : cases) {
    const auto text = test_case["text"].get<std::string>();
    CAPTURE(text);
    CHECK(tokenizer.encode(text, true) == ids_of(test_case, "all"));
    CHECK(tokenizer.encode(text, false) == ids_of(test_case, "ordinary"));
    CHECK(tokenizer.encode(text, true, true) == ids_of(test_case, "added"));
  }
}

void check_decoding(const Tokenizer& tokenizer, const OrderedJson& cases) {
  for (const OrderedJson& test_case : cases) {
    const std::string expected = test_case.contains("decoded") ? test_case["decoded"] : test_case["text"];
    CHECK(tokenizer.decode(ids_of(test_case, "all"), true) == expected);
  }
}

void check_vectors(const Tokenizer& tokenizer, const OrderedJson& vectors) {
  CHECK(vectors.size() == 30);
  for (const OrderedJson& test_case : vectors) {
    CAPTURE(test_case["text"].get<std::string>());
    CHECK(tokenizer.encode(test_case["text"].get<std::string>(), true) == test_case["ids"].get<Ids>());
  }
}

std::unique_ptr<Tokenizer> qwen3() { return Tokenizer::load(std::getenv("FT_QWEN3_TOKENIZER")); }

}  // namespace

TEST_CASE("Split cuts as tokenizers does, for each behavior, inverted or not") {
  CHECK(reference()["splits"].size() == 90);
  for (const OrderedJson& entry : reference()["splits"]) {
    const std::string source = entry["pre_tokenizer"].dump();
    CAPTURE(source);
    const ft::Json json = ft::parse_json(source, "test");
    const auto pre_tokenizer = ft::PreTokenizer::parse({json, "$"});
    for (const OrderedJson& test_case : entry["cases"]) {
      const auto text = test_case[0].get<std::string>();
      CAPTURE(text);
      ft::PieceList list{text, {}};
      if (!text.empty()) list.pieces.push_back({0, text.size()});
      pre_tokenizer->apply(list);
      std::vector<std::string> pieces;
      for (const ft::TextSpan& piece : list.pieces) pieces.push_back(list.text.substr(piece.begin, piece.end - piece.begin));
      CHECK(pieces == test_case[1].get<std::vector<std::string>>());
    }
  }
}

TEST_CASE("small tokenizers: unknown tokens, byte fallback, added token flags, templates, ByteLevel's own pattern") {
  CHECK(reference()["synthetic"].size() == 8);
  for (const OrderedJson& entry : reference()["synthetic"]) {
    const auto tokenizer = Tokenizer::parse(entry["tokenizer"].dump(), "synthetic");
    check_encoding(*tokenizer, entry["cases"]);
    check_decoding(*tokenizer, entry["cases"]);
  }
}

TEST_CASE("the bundled model's tokenizer") {
  const auto tokenizer = Tokenizer::load(ft_test::data_path("tiny-moe/tokenizer.json"));
  CHECK(tokenizer->vocab_size() == 4096);
  check_encoding(*tokenizer, reference()["published"]["tiny-moe"]);
  check_decoding(*tokenizer, reference()["published"]["tiny-moe"]);
}

TEST_CASE("Qwen3's tokenizer") {
  const auto tokenizer = qwen3();
  CHECK(tokenizer->vocab_size() == 151669);
  CHECK(tokenizer->id_of("<|im_end|>") == 151645);
  CHECK(tokenizer->is_special(151645));
  CHECK(tokenizer->id_of("<think>") == 151667);
  CHECK_FALSE(tokenizer->is_special(151667));
  CHECK(tokenizer->id_of("no such token") == -1);
  check_vectors(*tokenizer, ft_test::read_ordered(ft_test::data_path("tokenizers/qwen3/vectors.json")));
  check_encoding(*tokenizer, reference()["published"]["qwen3"]);
  check_decoding(*tokenizer, reference()["published"]["qwen3"]);
}

TEST_CASE("special tokens in user text are ordinary text, other added tokens are tokens") {
  const auto tokenizer = qwen3();
  CHECK(tokenizer->encode("<|im_end|>", true) == Ids{151645});
  const Ids ordinary = tokenizer->encode("<|im_end|><think>", false);
  CHECK(ordinary.size() > 3);
  CHECK(ordinary.back() == 151667);
  CHECK(std::count(ordinary.begin(), ordinary.end(), 151645) == 0);
  CHECK(tokenizer->decode(ordinary, true) == "<|im_end|><think>");
}

TEST_CASE("the other published tokenizers") {
  for (const char* name : {"gptoss", "deepseek_v3", "gemma3"}) {
    const std::string packed = ft_test::shared_path(std::string("tokenizers/") + name + "/tokenizer.json.gz");
    if (packed.empty()) {
      MESSAGE("skipped: FT_SHARED/tokenizers is not there");
      return;
    }
    CAPTURE(name);
    const auto path = std::filesystem::temp_directory_path() / (std::string("ft_tokenizer_test_") + name + ".json");
    const std::string command = "gzip -dc '" + packed + "' > '" + path.string() + "'";
    REQUIRE(std::system(command.c_str()) == 0);
    const auto tokenizer = Tokenizer::load(path.string());
    std::filesystem::remove(path);
    check_vectors(*tokenizer, ft_test::read_ordered(ft_test::shared_path("tokenizers/tokenizer_vectors.json"))[name]);
    check_encoding(*tokenizer, reference()["published"][name]);
    if (std::string(name) != "gemma3") check_decoding(*tokenizer, reference()["published"][name]);
  }
}
