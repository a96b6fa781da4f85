#include "engine/text/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <vector>

#include "engine/text/text_pattern.h"
#include "engine/text/utf8.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr size_t kMaxStepsInSequence = 32;

void check_normalized_size(size_t bytes) {
  if (bytes <= kMaxNormalizedBytes) return;
  throw Error(ErrorKind::kRequest, {"normalized text too long", std::to_string(bytes) + " bytes",
                                    "at most " + std::to_string(kMaxNormalizedBytes), "shorten the text", ""});
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

const icu::Normalizer2& icu_form(std::string_view type) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* form = type == "NFC"    ? icu::Normalizer2::getNFCInstance(status)
                                 : type == "NFD"  ? icu::Normalizer2::getNFDInstance(status)
                                 : type == "NFKC" ? icu::Normalizer2::getNFKCInstance(status)
                                                  : icu::Normalizer2::getNFKDInstance(status);
  if (U_FAILURE(status) || form == nullptr) {
    throw Error(ErrorKind::kFailed,
                {"Unicode data of ICU cannot be loaded", u_errorName(status), "", "reinstall ICU", ""});
  }
  return *form;
}

// Hugging Face's tokenizers normalize with the data of Unicode 9; code points assigned later are left as they are, and
// so they must be here: the models saw them so.
icu::UnicodeSet known_code_points() {
  UErrorCode status = U_ZERO_ERROR;
  icu::UnicodeSet set(u"[:age=9.0:]", status);
  if (U_FAILURE(status)) {
    throw Error(ErrorKind::kFailed,
                {"Unicode data of ICU cannot be loaded", u_errorName(status), "", "reinstall ICU", ""});
  }
  set.freeze();
  return set;
}

struct Mark {
  uint8_t combining_class;
  char32_t code_point;
};

// Appends the canonical decomposition of `c` and says whether it is made of combining marks only.
bool decompose_mark(const icu::Normalizer2& nfd, char32_t c, std::vector<Mark>& marks) {
  if (c < 0x300) return false;
  icu::UnicodeString decomposition;
  if (!nfd.getDecomposition(static_cast<UChar32>(c), decomposition)) {
    const uint8_t combining_class = nfd.getCombiningClass(static_cast<UChar32>(c));
    if (combining_class == 0) return false;
    marks.push_back({combining_class, c});
    return true;
  }
  if (nfd.getCombiningClass(decomposition.char32At(0)) == 0) return false;
  for (int32_t i = 0; i < decomposition.length(); i = decomposition.moveIndex32(i, 1)) {
    const UChar32 part = decomposition.char32At(i);
    marks.push_back({nfd.getCombiningClass(part), static_cast<char32_t>(part)});
  }
  return true;
}

// See sort_long_mark_runs.
std::string sort_mark_runs(const icu::Normalizer2& nfd, std::string_view text) {
  std::string result;
  result.reserve(text.size());
  std::vector<Mark> marks;
  size_t run_begin = 0;
  const auto finish_run = [&](size_t end) {
    if (marks.size() <= kLongMarkRun) {
      result += text.substr(run_begin, end - run_begin);
    } else {
      std::stable_sort(marks.begin(), marks.end(),
                       [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
      for (const Mark& mark : marks) append_utf8(result, mark.code_point);
    }
    marks.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    const auto length = static_cast<size_t>(step.length);
    if (!decompose_mark(nfd, step.code_point, marks)) {
      finish_run(at);
      result += text.substr(at, length);
      run_begin = at + length;
    }
    at += length;
  }
  finish_run(text.size());
  return result;
}

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(std::string_view type)
      : known_(known_code_points()), form_(icu_form(type), known_), nfd_(icu_form("NFD"), known_) {}

  std::string normalize(std::string text) const override {
    if (is_ascii(text)) return text;
    UErrorCode status = U_ZERO_ERROR;
    const std::string sorted = sort_mark_runs(nfd_, text);
    std::string result;
    icu::StringByteSink<std::string> sink(&result, static_cast<int32_t>(sorted.size()));
    form_.normalizeUTF8(0, icu::StringPiece(sorted.data(), static_cast<int32_t>(sorted.size())), sink, nullptr, status);
    if (U_FAILURE(status)) {
      throw Error(ErrorKind::kRequest, {"text cannot be normalized", u_errorName(status), "", "", ""});
    }
    check_normalized_size(result.size());
    return result;
  }

 private:
  const icu::UnicodeSet known_;
  const icu::FilteredNormalizer2 form_, nfd_;
};

class Replace : public Normalizer {
 public:
  explicit Replace(const JsonNode& node) : pattern_(node.at("pattern")), content_(node.at("content").text()) {}

  std::string normalize(std::string text) const override {
    std::vector<TextSpan> matches;
    TextPattern::Finder(pattern_).find_all(text, matches);
    check_normalized_size(text.size() + matches.size() * content_.size());
    std::string result;
    size_t done = 0;
    for (const TextSpan& match : matches) {
      result.append(text, done, match.begin - done);
      result += content_;
      done = match.end;
    }
    result.append(text, done);
    return result;
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(const JsonNode& node) : prefix_(node.at("prepend").text()) {}
  std::string normalize(std::string text) const override { return text.empty() ? text : prefix_ + text; }

 private:
  std::string prefix_;
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(const JsonNode& list) {
    if (list.size() > kMaxStepsInSequence) {
      list.refuse("too many steps", std::to_string(list.size()), "at most " + std::to_string(kMaxStepsInSequence));
    }
    for (size_t i = 0; i < list.size(); ++i) steps_.push_back(Normalizer::parse(list.at(i)));
  }
  std::string normalize(std::string text) const override {
    for (const auto& step : steps_) {
      if (step != nullptr) text = step->normalize(std::move(text));
    }
    return text;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::string sort_long_mark_runs(std::string_view text) {
  const icu::UnicodeSet known = known_code_points();
  return sort_mark_runs(icu::FilteredNormalizer2(icu_form("NFD"), known), text);
}

std::unique_ptr<Normalizer> Normalizer::parse(const JsonNode& node) {
  if (node.is_null()) return nullptr;
  const std::string type = node.at("type").text();
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") return std::make_unique<UnicodeForm>(type);
  if (type == "Replace") return std::make_unique<Replace>(node);
  if (type == "Prepend") return std::make_unique<Prepend>(node);
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(node.at("normalizers"));
  node.refuse("normalizer not supported", type, "NFC, NFD, NFKC, NFKD, Replace, Prepend, Sequence");
}

}  // namespace ft
