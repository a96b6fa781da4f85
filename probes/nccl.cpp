#include "probes/nccl.h"

#include <dlfcn.h>

#include <filesystem>
#include <numeric>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr const char* kSoname = "libnccl.so.2";
constexpr int kSum = 0;  // ncclSum

using GetVersion = int (*)(int* version);
using GetErrorString = const char* (*)(int code);
using CommInitAll = int (*)(NcclCommunicator** comms, int devices, const int* device_list);
using CommDestroy = int (*)(NcclCommunicator* comm);
using Group = int (*)();
using AllReduce = int (*)(const void* send, void* receive, size_t count, int type, int operation,
                          NcclCommunicator* comm, cuda::StreamHandle stream);

// A bare name lets the loader look among the system's libraries and the run path.
std::vector<std::string> candidates() {
  std::vector<std::string> paths;
#ifdef FT_NCCL_PATH
  paths.emplace_back(FT_NCCL_PATH);
#endif
  paths.emplace_back(kSoname);
  paths.push_back(std::string("/usr/local/cuda/lib64/") + kSoname);
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (const char* root : {"/usr/local/lib", "/usr/lib"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(root, ignored)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      for (const char* packages : {"dist-packages", "site-packages"}) {
        const fs::path file = entry.path() / packages / "nvidia" / "nccl" / "lib" / kSoname;
        if (fs::exists(file, ignored)) paths.push_back(file.string());
      }
    }
  }
  return paths;
}

}  // namespace

Nccl::Nccl() {
#ifdef FT_NO_NCCL
  reason_ = "this build has no NCCL (-Dnccl=disabled)";
#else
  for (const std::string& path : candidates()) {
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) continue;
    reason_ = path;
    break;
  }
  if (library_ == nullptr) {
    reason_ =
        std::string("no ") + kSoname + " in the CUDA toolkit, the system or an installed Python package (nvidia-nccl)";
    return;
  }
  for (const char* name : {"ncclGetVersion", "ncclCommInitAll", "ncclCommDestroy", "ncclGroupStart", "ncclGroupEnd",
                           "ncclAllReduce", "ncclGetErrorString"}) {
    if (function(name) != nullptr) continue;
    reason_ += std::string(" has no ") + name;
    dlclose(library_);
    library_ = nullptr;
    return;
  }
  reinterpret_cast<GetVersion>(function("ncclGetVersion"))(&version_);
#endif
}

Nccl::~Nccl() {
  if (library_ != nullptr) dlclose(library_);
}

void* Nccl::function(const char* name) const { return dlsym(library_, name); }

void Nccl::check(int code, const char* what) const {
  if (code == 0) return;
  throw Error(ErrorKind::kFailed, {.what = std::string("NCCL: ") + what,
                                   .value = reinterpret_cast<GetErrorString>(function("ncclGetErrorString"))(code),
                                   .action = "set NCCL_DEBUG=INFO to see why"});
}

std::vector<NcclCommunicator*> Nccl::start(int devices) const {
  std::vector<NcclCommunicator*> all(static_cast<size_t>(devices));
  std::vector<int> list(all.size());
  std::iota(list.begin(), list.end(), 0);
  check(reinterpret_cast<CommInitAll>(function("ncclCommInitAll"))(all.data(), devices, list.data()),
        "cannot make communicators");
  return all;
}

void Nccl::stop(const std::vector<NcclCommunicator*>& all) const {
  for (NcclCommunicator* one : all) reinterpret_cast<CommDestroy>(function("ncclCommDestroy"))(one);
}

void Nccl::all_reduce(const std::vector<NcclCommunicator*>& all, const std::vector<void*>& buffers,
                      const std::vector<cuda::StreamHandle>& streams, size_t count, NcclType type) const {
  const auto reduce = reinterpret_cast<AllReduce>(function("ncclAllReduce"));
  check(reinterpret_cast<Group>(function("ncclGroupStart"))(), "cannot start a group");
  for (size_t i = 0; i < all.size(); ++i) {
    check(reduce(buffers[i], buffers[i], count, static_cast<int>(type), kSum, all[i], streams[i]), "all-reduce failed");
  }
  check(reinterpret_cast<Group>(function("ncclGroupEnd"))(), "all-reduce failed");
}

}  // namespace ft
