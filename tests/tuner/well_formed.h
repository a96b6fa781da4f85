// Is a text well-formed XML, as far as our pages use it? Independent of what writes them.
#pragma once

#include <string>
#include <string_view>

namespace ft {

// Empty: yes. Else what is wrong and where. Knows elements, attributes in double quotes, the five named references,
// decimal ones, and a leading <!DOCTYPE html>.
std::string well_formed(std::string_view text);

}  // namespace ft
