// Checked against: the files of the bundled model, and folders written here.
#include "engine/text/text_model.h"

#include <doctest/doctest.h>

#include <fstream>

#include "kernels/base/error.h"
#include "tests/text/support.h"

namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / "ft_text_model_test") {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  void write(const char* name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  ft::TextModel load() const { return ft::load_text_model(path_.string()); }

 private:
  fs::path path_;
};

}  // namespace

TEST_CASE("the bundled model's folder") {
  const ft::TextModel model = ft::load_text_model(ft_test::data_path("tiny-moe"));
  REQUIRE(model.tokenizer != nullptr);
  REQUIRE(model.chat_template != nullptr);
  CHECK(model.missing.empty());
  CHECK(model.eos_ids == std::vector<int32_t>{2, 0});
  CHECK(model.eos_token == "<|im_end|>");
  CHECK(model.bos_token.empty());
  CHECK(model.defaults.temperature == 0.7);
  CHECK(model.defaults.top_p == 0.9);
  CHECK(model.defaults.top_k == 0);
  const ft::OrderedJson variables = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                                     {"add_generation_prompt", true}};
  const std::string prompt = model.chat_template->render(variables);
  CHECK(prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  CHECK(model.tokenizer->encode(prompt, true).front() == 1);
  // What transformers encoded for the prompt that the model was checked with.
  CHECK(model.tokenizer->encode("In the beginning God created", false) ==
        std::vector<int32_t>{826, 263, 3300, 595, 1472});
}

TEST_CASE("a folder without a tokenizer says so and still gives ids and defaults") {
  const Folder folder;
  folder.write("config.json", R"({"eos_token_id": 7})");
  const ft::TextModel model = folder.load();
  CHECK(model.tokenizer == nullptr);
  CHECK(model.missing.find("no tokenizer.json") != std::string::npos);
  CHECK(model.eos_ids == std::vector<int32_t>{7});
}

TEST_CASE("without a tokenizer, bytes: only when asked for, only where the vocabulary holds them all") {
  const Folder folder;
  folder.write("config.json", R"({"eos_token_id": 7})");
  ft::TextModel model = folder.load();
  CHECK(!ft::use_byte_tokenizer(model, 255));
  CHECK(model.tokenizer == nullptr);
  CHECK(!model.missing.empty());
  CHECK(ft::use_byte_tokenizer(model, 256));
  CHECK(model.missing.empty());
  CHECK(model.eos_ids.empty());  // 7 is a byte like any other
  CHECK(model.tokenizer->vocab_size() == 256);
  CHECK(!ft::use_byte_tokenizer(model, 300));
  CHECK(model.tokenizer->vocab_size() == 256);
  ft::TextModel bundled = ft::load_text_model(ft_test::data_path("tiny-moe"));
  CHECK(!ft::use_byte_tokenizer(bundled, 512));
  CHECK(bundled.eos_ids.size() == 2);
}

TEST_CASE("generation_config.json comes before config.json; do_sample false is greedy") {
  const Folder folder;
  folder.write("config.json", R"({"eos_token_id": [1, 2]})");
  folder.write("generation_config.json", R"({"eos_token_id": 5, "do_sample": false, "temperature": 0.6, "top_k": 20})");
  folder.write("tokenizer_config.json", R"({"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>"})");
  ft::TextModel model = folder.load();
  CHECK(model.eos_ids == std::vector<int32_t>{5});
  CHECK(model.defaults.temperature == 0);
  CHECK(model.bos_token == "<s>");
  CHECK(model.eos_token == "</s>");
  folder.write("generation_config.json",
               R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05})");
  model = folder.load();
  CHECK(model.eos_ids == std::vector<int32_t>{1, 2});
  CHECK(model.defaults.temperature == 0.6);
  CHECK(model.defaults.top_k == 20);
  CHECK(model.defaults.min_p == 0.1);
  CHECK(model.defaults.repetition_penalty == 1.05);
}

TEST_CASE("wrong types and values name the file and the place") {
  const Folder folder;
  const auto message = [&folder](const char* name, const std::string& text) {
    folder.write(name, text);
    try {
      folder.load();
    } catch (const ft::Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(message("generation_config.json", R"({"eos_token_id": "x"})").find("generation_config.json: $.eos_token_id") !=
        std::string::npos);
  CHECK(message("generation_config.json", R"({"eos_token_id": [-1]})").find("$.eos_token_id[0]") != std::string::npos);
  CHECK(message("generation_config.json", R"({"do_sample": 1})").find("$.do_sample") != std::string::npos);
  CHECK(message("generation_config.json", R"({"do_sample": true, "top_p": "1"})").find("$.top_p") != std::string::npos);
}
