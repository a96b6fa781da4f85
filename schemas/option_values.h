// The text of one option's value to a checked value. Internal to schemas/: programs use ParsedOptions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schemas/command_line.h"

namespace ft {

// All throw Error(kUsage) naming the option, the value and what is allowed.
int64_t parse_integer_value(const OptionSpec& spec, std::string_view text);
int64_t parse_bytes_value(const OptionSpec& spec, std::string_view text);
double parse_number_value(const OptionSpec& spec, std::string_view text);
std::vector<int64_t> parse_integers_value(const OptionSpec& spec, std::string_view text);
std::vector<std::string> parse_texts_value(const OptionSpec& spec, std::string_view text);
CountOrPercent parse_count_or_percent_value(const OptionSpec& spec, std::string_view text);
std::optional<uint64_t> parse_weights_value(const OptionSpec& spec, std::string_view text);

// Any of the above, for its errors only.
void check_option_value(const OptionSpec& spec, std::string_view text);

// "integer, 1 to 64", "one of auto, cuda, host": what help and errors say about a value.
std::string allowed_values(const OptionSpec& spec);

}  // namespace ft
