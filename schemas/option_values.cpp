#include "schemas/option_values.h"

#include <charconv>
#include <cmath>
#include <set>

#include "kernels/base/error.h"

namespace ft {
namespace {

[[noreturn]] void refuse(const OptionSpec& spec, std::string_view text) {
  throw Error(ErrorKind::kUsage, {.what = "option refused",
                                  .value = text.empty() ? "(empty)" : std::string(text),
                                  .allowed = allowed_values(spec),
                                  .path = std::string(spec.name)});
}

// Whole text or nothing; no sign but '-', no spaces, no hexadecimal.
template <class T>
std::optional<T> whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool has_range(const OptionSpec& spec) { return spec.low != 0 || spec.high != 0; }

bool in_range(const OptionSpec& spec, double value) {
  return !has_range(spec) || (value >= spec.low && value <= spec.high);
}

std::string plain_number(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  FT_CHECK(error == std::errc());
  return {buffer, end};
}

// Powers of 1024 with their unit where that is exact: "1 MiB".
std::string plain_bytes(double value) {
  static constexpr const char* kUnits[] = {" bytes", " KiB", " MiB", " GiB", " TiB", " PiB"};
  size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && value >= 1024 && std::fmod(value, 1024) == 0) value /= 1024, ++unit;
  return plain_number(value) + kUnits[unit];
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace

std::string allowed_values(const OptionSpec& spec) {
  const std::string range =
      has_range(spec) ? ", " + plain_number(spec.low) + " to " + plain_number(spec.high) : std::string();
  switch (spec.kind) {
    case OptionKind::kFlag:
      return "no value";
    case OptionKind::kText:
      return "text that is not empty";
    case OptionKind::kTexts:
      return "names separated by commas, at most " + std::to_string(kMaxListItems);
    case OptionKind::kInteger:
      return "integer" + range;
    case OptionKind::kNumber:
      return "number" + range;
    case OptionKind::kIntegers:
      return "integers separated by commas, no duplicates, at most " + std::to_string(kMaxListItems) + range;
    case OptionKind::kBytes:
      return "bytes with optional KiB, MiB, GiB or TiB, " + plain_bytes(spec.low) + " to " + plain_bytes(spec.high);
    case OptionKind::kCountOrPercent:
      return "integer" + range + ", or 0% to 100%";
    case OptionKind::kWeights:
      return "checkpoint, synthetic, or synthetic:SEED with SEED 0 to " + std::to_string(kMaxSyntheticSeed);
    case OptionKind::kChoice:
      break;
  }
  std::string text = "one of ";
  for (const std::string_view choice : split(spec.choices, '|')) {
    if (text.size() > 7) text += ", ";
    text += choice;
  }
  return text;
}

int64_t parse_integer_value(const OptionSpec& spec, std::string_view text) {
  const auto value = whole<int64_t>(text);
  if (!value || !in_range(spec, static_cast<double>(*value))) refuse(spec, text);
  return *value;
}

int64_t parse_bytes_value(const OptionSpec& spec, std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto count = whole<int64_t>(text.substr(0, digits));
  const std::string_view unit = text.substr(digits);
  int shift = -1;
  if (unit.empty() || unit == "B") shift = 0;
  if (unit == "K" || unit == "KiB") shift = 10;
  if (unit == "M" || unit == "MiB") shift = 20;
  if (unit == "G" || unit == "GiB") shift = 30;
  if (unit == "T" || unit == "TiB") shift = 40;
  if (!count || shift < 0 || *count > (INT64_MAX >> shift)) refuse(spec, text);
  const int64_t value = *count << shift;
  if (!in_range(spec, static_cast<double>(value))) refuse(spec, text);
  return value;
}

double parse_number_value(const OptionSpec& spec, std::string_view text) {
  const auto value = whole<double>(text);
  if (!value || !std::isfinite(*value) || !in_range(spec, *value)) refuse(spec, text);
  return *value;
}

std::vector<int64_t> parse_integers_value(const OptionSpec& spec, std::string_view text) {
  std::vector<int64_t> values;
  std::set<int64_t> seen;
  for (const std::string_view part : split(text, ',')) {
    const auto value = whole<int64_t>(part);
    if (!value || !in_range(spec, static_cast<double>(*value)) || !seen.insert(*value).second) refuse(spec, text);
    values.push_back(*value);
    if (values.size() > kMaxListItems) refuse(spec, text);
  }
  return values;
}

std::vector<std::string> parse_texts_value(const OptionSpec& spec, std::string_view text) {
  std::vector<std::string> values;
  for (const std::string_view part : split(text, ',')) {
    if (part.empty() || values.size() == kMaxListItems) refuse(spec, text);
    values.emplace_back(part);
  }
  return values;
}

CountOrPercent parse_count_or_percent_value(const OptionSpec& spec, std::string_view text) {
  if (text.ends_with('%')) {
    const auto percent = whole<double>(text.substr(0, text.size() - 1));
    if (!percent || !(*percent >= 0 && *percent <= 100)) refuse(spec, text);
    return {.count = std::nullopt, .percent = percent};
  }
  return {.count = parse_integer_value(spec, text), .percent = std::nullopt};
}

std::optional<uint64_t> parse_weights_value(const OptionSpec& spec, std::string_view text) {
  if (text == "checkpoint") return std::nullopt;
  constexpr std::string_view kSynthetic = "synthetic";
  if (!text.starts_with(kSynthetic)) refuse(spec, text);
  const std::string_view rest = text.substr(kSynthetic.size());
  if (rest.empty()) return kDefaultSyntheticSeed;
  const auto seed = rest.front() == ':' ? whole<uint64_t>(rest.substr(1)) : std::nullopt;
  if (!seed || *seed > kMaxSyntheticSeed) refuse(spec, text);
  return seed;
}

void check_option_value(const OptionSpec& spec, std::string_view text) {
  switch (spec.kind) {
    case OptionKind::kFlag:
      return;
    case OptionKind::kText:
      if (text.empty()) refuse(spec, text);
      return;
    case OptionKind::kTexts:
      parse_texts_value(spec, text);
      return;
    case OptionKind::kInteger:
      parse_integer_value(spec, text);
      return;
    case OptionKind::kNumber:
      parse_number_value(spec, text);
      return;
    case OptionKind::kIntegers:
      parse_integers_value(spec, text);
      return;
    case OptionKind::kBytes:
      parse_bytes_value(spec, text);
      return;
    case OptionKind::kCountOrPercent:
      parse_count_or_percent_value(spec, text);
      return;
    case OptionKind::kWeights:
      parse_weights_value(spec, text);
      return;
    case OptionKind::kChoice:
      for (const std::string_view choice : split(spec.choices, '|')) {
        if (choice == text) return;
      }
      refuse(spec, text);
  }
}

}  // namespace ft
