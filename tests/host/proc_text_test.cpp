// Checked against: values worked out by hand for texts in the forms of proc(5) and sysfs, and for damaged ones.
#include "kernels/host/proc_text.h"

#include <doctest/doctest.h>

#include "tests/host/recorded_tree.h"

TEST_CASE("a number is all of its text, and within 64 bits") {
  CHECK(ft::parse_proc_number("42\n") == 42);
  CHECK(ft::parse_proc_number(" \t-7 \r\n") == -7);
  CHECK(ft::parse_proc_number("9223372036854775807") == INT64_MAX);
  for (const char* broken :
       {"", " ", "\n", "x", "4 2", "4x", "0x10", "1.5", "--1", "+1", "9223372036854775808", "\xff"}) {
    CAPTURE(broken);
    CHECK_FALSE(ft::parse_proc_number(broken).has_value());
  }
}

TEST_CASE("files that are missing, empty or folders hold nothing") {
  RecordedTree tree;
  tree.add("/folder/number", "5\n").add("/empty", "").add("/two", "first line \nsecond\n");
  CHECK(ft::read_proc_number(tree.root() + "/folder/number") == 5);
  CHECK_FALSE(ft::read_proc_number(tree.root() + "/folder").has_value());
  CHECK_FALSE(ft::read_proc_number(tree.root() + "/missing").has_value());
  CHECK(ft::read_proc_line(tree.root() + "/empty").empty());
  CHECK(ft::read_proc_line(tree.root() + "/two") == "first line");
}

TEST_CASE("fields of files with one key a line") {
  const std::string text = "SwapTotal:       1024 kB\nSwapTotalX: 5\nHugePages_Free:\t 7\nnr_throttled 9\nbare\n";
  CHECK(ft::find_proc_number(text, "SwapTotal") == 1024);
  CHECK(ft::find_proc_number(text, "HugePages_Free") == 7);
  CHECK(ft::find_proc_number(text, "nr_throttled") == 9);
  CHECK_FALSE(ft::find_proc_number(text, "Swap").has_value());
  CHECK_FALSE(ft::find_proc_number(text, "bare").has_value());
  CHECK(ft::find_proc_field(text, "SwapTotal") == "1024 kB");
}

TEST_CASE("lists of CPUs, up to the bound and one past it") {
  CHECK(ft::parse_cpu_list("0-3,8,10-11\n") == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  CHECK(ft::parse_cpu_list("5,1,5") == std::vector<int>{1, 5});
  CHECK(ft::parse_cpu_list("").value().empty());
  CHECK(ft::parse_cpu_list("1048575") == std::vector<int>{ft::kMaxCpuIndex});
  CHECK(ft::parse_cpu_list("0-1048575")->size() == size_t{ft::kMaxCpuIndex} + 1);
  for (const char* broken :
       {"1048576", "0-1048576", "0-1048575,0", "3-1", "-1", "a", "1,", ",1", "1-", "1--2", "0-99999999999"}) {
    CAPTURE(broken);
    CHECK_FALSE(ft::parse_cpu_list(broken).has_value());
  }
}

TEST_CASE("the chosen word of a setting, and plain words") {
  CHECK(ft::chosen_word("always [madvise] never") == "madvise");
  for (const char* none : {"", "always", "[never", "]x[", "never]"}) CHECK(ft::chosen_word(none).empty());
  CHECK(ft::plain_word("amd-pstate-epp") == "amd-pstate-epp");
  CHECK(ft::plain_word(std::string(64, 'a')) == std::string(64, 'a'));
  CHECK(ft::plain_word(std::string(65, 'a')).empty());
  for (const char* odd : {"two words", "caf\xc3\xa9", "a\x1b[0m", "a\"b"}) CHECK(ft::plain_word(odd).empty());
}
