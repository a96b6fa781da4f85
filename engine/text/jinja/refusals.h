// What jinja2 or Python would do and the interpreter cannot, found while a template is parsed: such a template is
// refused at load, by name and line, instead of failing in a request or printing something else.
#pragma once

#include "engine/text/jinja/ast.h"

namespace ft::jinja {

// Each throws Error (refuse_template) when the expression, complete with its arguments, needs something unsupported.
void refuse_unsupported_call(const Expression& call);            // functions and methods by name; loop(..), super()
void refuse_unsupported_attribute(const Expression& attribute);  // loop.changed, self.block
void refuse_unsupported_filter(const Expression& filter);        // names that map and select are given
void refuse_unsupported_binary(const Expression& binary);        // 'text' % values

}  // namespace ft::jinja
