// Checked against: messages and limits written out by hand, and what the header promises.
#include "engine/text/chat_template.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <thread>

#include "engine/text/jinja/limits.h"
#include "kernels/base/error.h"
#include "tests/text/support.h"

namespace {

using ft::ChatTemplate;
using ft::Error;
using ft::OrderedJson;

std::string render(const std::string& source, const OrderedJson& variables = OrderedJson::object()) {
  return ChatTemplate::compile(source)->render(variables);
}

std::string message_of(const std::string& source, ft::ErrorKind kind) {
  try {
    render(source);
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  FAIL("no error: " << source);
  return {};
}

std::string repeat(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

}  // namespace

TEST_CASE("what is not supported is refused at compile time with its line") {
  for (const char* source : {"a\nb{% include 'x' %}", "\n{% extends 'x' %}", "\n{{ x | groupby('a') }}",
                             "\n{{ x is weird }}", "\n{% for a in b recursive %}{% endfor %}", "\n{{ f(*a) }}",
                             "\n{% break %}", "\n{{ 0x10 }}", "\n{{ '\\ud800' }}", "\n{% if a %}{% endfor %}",
                             "\n{{ a b }}", "\n{{ ) }}", "\n{{ [1, }}", "\n{# open", "\n{{ 'open", "\n{% raw %} x"}) {
    CAPTURE(source);
    const std::string message = message_of(source, ft::ErrorKind::kFailed);
    CHECK(message.find("line 2") != std::string::npos);
  }
  CHECK(message_of("{% include 'x' %}", ft::ErrorKind::kFailed).find("tag 'include'") != std::string::npos);
  CHECK(message_of("{{ x | groupby('a') }}", ft::ErrorKind::kFailed).find("filter 'groupby'") != std::string::npos);
}

TEST_CASE("every construct that jinja2 knows and ours does not is refused at load by its name") {
  const std::map<std::string, std::string> refused = {
      {"{% include 'x' %}", "tag 'include'"},
      {"{% import 'x' as y %}", "tag 'import'"},
      {"{% from 'x' import y %}", "tag 'from'"},
      {"{% extends 'x' %}", "tag 'extends'"},
      {"{% block b %}{% endblock %}", "tag 'block'"},
      {"{% autoescape true %}{% endautoescape %}", "tag 'autoescape'"},
      {"{% do x %}", "tag 'do'"},
      {"{% trans %}{% endtrans %}", "tag 'trans'"},
      {"{% debug %}", "tag 'debug'"},
      {"{% for x in y recursive %}{% endfor %}", "recursive loop"},
      {"{% for x in y %}{{ loop(x) }}{% endfor %}", "recursive loop"},
      {"{% for x in y %}{{ loop.changed(x) }}{% endfor %}", "'loop.changed'"},
      {"{{ self.b() }}", "'self'"},
      {"{{ super() }}", "function 'super'"},
      {"{{ cycler('a') }}", "function 'cycler'"},
      {"{{ joiner() }}", "function 'joiner'"},
      {"{{ lipsum() }}", "function 'lipsum'"},
      {"{{ f(*x) }}", "* and ** in a call"},
      {"{{ f(**x) }}", "* and ** in a call"},
      {"{{ '%s' % x }}", "'%' that formats a string"},
      {"{{ x.find('a', 1) }}", "method 'find' with a place to begin"},
      {"{{ x.startswith('a', 1) }}", "method 'startswith' with a place to begin"},
      {"{{ x.count('a', 1, 2) }}", "method 'count' with a place to begin"},
      {"{{ x | map('wordwrap') }}", "filter 'wordwrap'"},
      {"{{ x | select('filter') }}", "test 'filter'"},
      {"{{ x | rejectattr('a', 'test') }}", "test 'test'"},
      {"{{ 0x10 }}", "hexadecimal"},
      {"{{ '\\N{DASH}' }}", "\\N in a string"},
  };
  for (const auto& entry : refused) {
    CAPTURE(entry.first);
    const std::string message = message_of(entry.first, ft::ErrorKind::kFailed);
    CHECK(message.find("not supported: ") != std::string::npos);
    CHECK(message.find(entry.second) != std::string::npos);
  }
  // jinja2.filters.FILTERS and jinja2.tests.TESTS of 3.1.6 less what is supported; methods of str, list and dict.
  for (const char* name : {"center", "filesizeformat", "forceescape", "format", "groupby", "pprint", "random", "slice",
                           "striptags", "truncate", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"}) {
    const std::string source = std::string("{{ x | ") + name + " }}{% filter " + name + " %}{% endfilter %}";
    CHECK(message_of(source, ft::ErrorKind::kFailed).find("filter '" + std::string(name) + "'") != std::string::npos);
  }
  for (const char* name : {"filter", "test"}) {
    const std::string message = message_of(std::string("{{ x is ") + name + " 'a' }}", ft::ErrorKind::kFailed);
    CHECK(message.find("test '" + std::string(name) + "'") != std::string::npos);
  }
  for (const char* name :
       {"casefold", "center",  "clear",      "encode",    "expandtabs",   "format",    "format_map", "fromkeys",
        "isalnum",  "isalpha", "isascii",    "isdecimal", "isidentifier", "islower",   "isnumeric",  "isprintable",
        "istitle",  "isupper", "ljust",      "maketrans", "partition",    "popitem",   "remove",     "reverse",
        "rindex",   "rjust",   "rpartition", "sort",      "swapcase",     "translate", "zfill"}) {
    const std::string message = message_of(std::string("{{ x.") + name + "(1) }}", ft::ErrorKind::kFailed);
    CHECK(message.find("method '" + std::string(name) + "'") != std::string::npos);
  }
  // What only looks like it: keys of those names, a test or filter named by a variable.
  CHECK(render("{{ {'format': 1}.format }}{{ {'self': 2}.self }}{{ 7 % 4 }}{% set t = 'odd' %}{{ [3] | select(t) | "
               "first }}") == "1233");
}

TEST_CASE("a template that fails names its line; raise_exception gives its message") {
  CHECK(message_of("a\nb\n{{ x.y }}", ft::ErrorKind::kRequest) == "chat template, line 3: 'x' is undefined");
  CHECK(message_of("\n{{ raise_exception('no ' ~ 'user') }}", ft::ErrorKind::kRequest) ==
        "chat template, line 2, refuses the messages: no user");
}

TEST_CASE("generation blocks of transformers only group") {
  CHECK(render("{% generation %}a{% set x = 1 %}{% endgeneration %}[{{ x }}]") == "a[]");
}

TEST_CASE("work is bounded") {
  const std::string loop = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
  CHECK(message_of(loop, ft::ErrorKind::kRequest).find("more work") != std::string::npos);
  const std::string growth =
      "{% set ns = namespace(s='ab') %}{% for i in range(100000) %}{% set ns.s = ns.s + ns.s %}{% endfor %}";
  CHECK(message_of(growth, ft::ErrorKind::kRequest).find("longer than") != std::string::npos);
  message_of(
      "{% set l = [1] %}{% for i in l %}{% set _ = l.extend(l) %}{% for j in range(99) %}{% set _ = l.extend(l) %}"
      "{% endfor %}{% endfor %}",
      ft::ErrorKind::kRequest);
  message_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ft::ErrorKind::kRequest);
  message_of("{{ 'a' * 99999999999 }}", ft::ErrorKind::kRequest);
  message_of("{{ 9223372036854775807 + 1 }}", ft::ErrorKind::kRequest);
}

TEST_CASE("a range ends at the limit of jinja2's sandbox") {
  CHECK(render("{{ range(" + std::to_string(ft::jinja::kMaxRange) + ") | length }}") == "100000");
  message_of("{{ range(100001) | length }}", ft::ErrorKind::kRequest);
  message_of("{{ range(-9223372036854775807, 9223372036854775807) | length }}", ft::ErrorKind::kRequest);
}

TEST_CASE("a string reaches the limit and no further") {
  const auto limit = std::to_string(ft::jinja::kMaxOutputBytes);
  CHECK(render("{{ ('a' * " + limit + ") | length }}") == limit);
  message_of("{{ ('a' * (" + limit + " + 1)) | length }}", ft::ErrorKind::kRequest);
  CHECK(render("{{ 'a' * " + limit + " }}").size() == ft::jinja::kMaxOutputBytes);
  message_of("{{ 'a' * " + limit + " }}b", ft::ErrorKind::kRequest);
}

TEST_CASE("nesting in the source is bounded") {
  CHECK(render("{{ " + repeat("(", 90) + "1" + repeat(")", 90) + " }}") == "1");
  message_of("{{ " + repeat("(", 201) + "1" + repeat(")", 201) + " }}", ft::ErrorKind::kFailed);
  message_of("{{ " + repeat("not ", 5000) + "1 }}", ft::ErrorKind::kFailed);
  message_of("{{ " + repeat("-", 5000) + "1 }}", ft::ErrorKind::kFailed);
  message_of("{{ 1" + repeat(" if 1 else 1", 5000) + " }}", ft::ErrorKind::kFailed);
  CHECK(render("{{ 1" + repeat(" + 1", 198) + " }}") == "199");
  message_of("{{ 1" + repeat(" + 1", 5000) + " }}", ft::ErrorKind::kFailed);
  message_of(repeat("{% if 1 %}", 5000) + repeat("{% endif %}", 5000), ft::ErrorKind::kFailed);
}

TEST_CASE("a template at the size limit compiles, a byte more does not") {
  CHECK(render(std::string(ft::jinja::kMaxTemplateBytes, 'x')).size() == ft::jinja::kMaxTemplateBytes);
  message_of(std::string(ft::jinja::kMaxTemplateBytes + 1, 'x'), ft::ErrorKind::kFailed);
  message_of("\xff", ft::ErrorKind::kFailed);
}

TEST_CASE("values that contain themselves and very deep values are freed and never followed without end") {
  message_of("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", ft::ErrorKind::kRequest);
  message_of("{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}", ft::ErrorKind::kRequest);
  message_of("{% set a = [] %}{% set b = [] %}{% set _ = a.append(a) %}{% set _ = b.append(b) %}{{ a == b }}",
             ft::ErrorKind::kRequest);
  CHECK(render("{% set ns = namespace(x=[]) %}{% set ns.x = ns %}{% set ns.l = loop %}ok") == "ok");
  CHECK(render("{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}ok") ==
        "ok");
  CHECK(render("{% set d = {} %}{% set _ = d.update({'d': d}) %}{% set _ = d.setdefault('e', d) %}ok") == "ok");
}

TEST_CASE("methods of a macro's block end with the block") {
  message_of(
      "{% set ns = namespace() %}{% for i in [1] %}{% macro m() %}{% endmacro %}{% set ns.m = m %}{% endfor %}{{ "
      "ns.m() }}",
      ft::ErrorKind::kRequest);
}

TEST_CASE("one template renders on several threads at once") {
  const auto chat_template =
      ChatTemplate::compile("{% for m in messages %}{{ m.role ~ ': ' ~ m.content | upper }}\n{% endfor %}");
  std::vector<std::thread> threads;
  std::vector<std::string> results(4);
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      const OrderedJson variables = {{"messages", {{{"role", "user"}, {"content", "text " + std::to_string(i)}}}}};
      for (int n = 0; n < 200; ++n) results[i] = chat_template->render(variables);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < results.size(); ++i) CHECK(results[i] == "user: TEXT " + std::to_string(i) + "\n");
}

TEST_CASE("a template is found in the file, the string or the list of a folder") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / "ft_chat_template_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  CHECK(ChatTemplate::load(folder.string()) == nullptr);
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(folder / name) << text; };
  write("tokenizer_config.json", "{}");
  CHECK(ChatTemplate::load(folder.string()) == nullptr);
  write("tokenizer_config.json", R"({"chat_template": "string"})");
  CHECK(ChatTemplate::load(folder.string())->render(OrderedJson::object()) == "string");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "list"}]})");
  CHECK(ChatTemplate::load(folder.string())->render(OrderedJson::object()) == "list");
  write("chat_template.jinja", "file");
  CHECK(ChatTemplate::load(folder.string())->render(OrderedJson::object()) == "file");
  write("chat_template.jinja", "{% bad %}");
  CHECK_THROWS_AS(ChatTemplate::load(folder.string()), Error);
  fs::remove_all(folder);
}
