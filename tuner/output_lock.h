// One tuning at a time for one --output: two would share the samples that --resume goes on from.
#pragma once

#include <string>

namespace ft {

// "OUTPUT.tuning", there while a tuning runs. A killed one leaves it; the next one takes it over, and removes it.
std::string lock_path(const std::string& output);

class OutputLock {
 public:
  // Throws Error: kUsage when another process holds it (it is named) or the file is not ours, kNotWritten when it
  // cannot be made. A file system without locks gives no protection, and no error.
  explicit OutputLock(const std::string& output);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace ft
