#include "profiles/build_info.h"

namespace ft {

std::string build_text() {
  const BuildInfo build = build_info();
  std::string text =
      std::string(build.version) + " (" + std::string(build.compiler) + ", code " + std::string(build.code_hash) + ", ";
  text += build.commit.empty() ? "no commit" : "commit " + std::string(build.commit);
  return text + (build.dirty ? " dirty)" : ")");
}

}  // namespace ft
