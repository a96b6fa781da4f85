// Checked against: files made here, each under all the names that it can have.
#include "kernels/base/inputs.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "kernels/base/error.h"

namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "ft-inputs-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name, const std::string& text = "{}") const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
    return at(name);
  }
  std::string at(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// The message; empty when it is accepted.
std::string refusal(const std::string& output, const std::string& input) try {
  const std::array<ft::InputPath, 2> inputs = {{{"--other", "/dev/null"}, {"--input", input}}};
  ft::check_no_input("--output", output, inputs);
  return {};
} catch (const ft::Error& error) {
  CHECK(error.kind() == ft::ErrorKind::kUsage);
  return error.what();
}

}  // namespace

TEST_CASE("an input under any of its names is no output, and the message has both") {
  const Folder folder;
  const std::string input = folder.file("a.json");
  fs::create_symlink(input, folder.at("link"));
  fs::create_hard_link(input, folder.at("hard"));
  fs::create_directory(folder.at("sub"));
  for (const std::string& output :
       {input, folder.at("sub/../a.json"), folder.at("link"), folder.at("hard"), folder.at(".//a.json")}) {
    CAPTURE(output);
    const std::string message = refusal(output, input);
    CHECK(message.find("--output refused, it would overwrite --input (" + input + "): '" + output + "'") == 0);
  }
  CHECK(!refusal(input, folder.at("link")).empty());
  CHECK(refusal(folder.at("b.json"), input).empty());     // not there
  CHECK(refusal(folder.file("c.json"), input).empty());   // there, another file of equal content
  CHECK(refusal(input, folder.at("none.json")).empty());  // the input is not there: that is for its reader to say
  CHECK(refusal(folder.at("none.json"), folder.at("none.json")).empty());
}

TEST_CASE("of a folder every file is read but profiles and samples") {
  const Folder folder;
  folder.file("model/config.json", R"({"model_type": "x", "version": 1})");
  folder.file("model/model.safetensors", "weights");
  folder.file("blobs/1", "shard");
  fs::create_symlink(folder.at("blobs/1"), folder.at("model/2.safetensors"));
  folder.file("model/profile.json", R"({"version": "1.2.0", "identity": {}})");
  const std::string model = folder.at("model");
  for (const char* name : {"model/config.json", "model/model.safetensors", "model/2.safetensors", "blobs/1"}) {
    CAPTURE(name);
    CHECK(refusal(folder.at(name), model).find("it would overwrite --input (" + model + "/") != std::string::npos);
  }
  CHECK(refusal(folder.at("model/profile.json"), model).empty());
  CHECK(!refusal(folder.at("model/profile.json"), folder.at("model/profile.json")).empty());  // named itself
  CHECK(refusal(folder.at("model/new.json"), model).empty());
  CHECK(refusal(folder.file("beside.json"), model).empty());
}
