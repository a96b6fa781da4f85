// --packed-cache DIR: what packing a checkpoint made, kept in a file, so that the next start reads it straight into its
// banks. One file per checkpoint content and packed layout, DIR/HASH.ftpack, about as large as the expert banks and the
// dense matrices.
//
// What makes it safe to use:
//   - The name is a hash over names, dtypes, shapes and file sizes of the checkpoint, samples of its data, the layouts
//     of this build and what its packing makes of a small expert: a build that packs otherwise looks for another file.
//   - The header holds when each file of the checkpoint was last modified; another time is another checkpoint, and the
//     file is replaced. (A checkpoint whose bytes are changed and whose times are set back is not noticed.)
//   - Every byte is covered by a sum that is checked while it is read. A damaged file is reported, the checkpoint is
//     loaded in its place and the file replaced.
//   - It is written under another name, synced and renamed, under an advisory lock: nobody reads half a file, one
//     process writes it, and what a killed one left is overwritten by the next.
// Nothing about it fails a start but a DIR that is no folder: whatever else is wrong costs a warning.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "engine/model/weight_plan.h"
#include "engine/model/weights.h"

namespace ft {

// Refuses what cannot work before anything is loaded: synthetic weights, which are made faster than they are read, and
// a DIR that is not a folder and cannot become one (which makes it, unless dry_run). Throws Error(kUsage) naming the
// option. Nothing to do without a packed cache.
void check_packed_cache(const WeightSource& source, bool dry_run);

class PackedCache {
 public:
  // Of a plan that was made from a checkpoint, which outlives the cache.
  PackedCache(std::string folder, const WeightPlan& plan);

  const std::string& path() const { return path_; }
  int64_t file_bytes() const { return header_bytes_ + data_bytes_; }
  // Bytes of each region, in order: experts, dense matrices, their globals, vectors.
  const std::vector<int64_t>& region_bytes() const { return region_bytes_; }

  // The regions in memory; sizes as region_bytes().
  using Regions = std::vector<std::span<std::byte>>;
  // Fills them in parallel. False: there is no file, or it cannot be used, which is a warning; regions then hold
  // anything. Throws what options.progress throws.
  bool read(const Regions& regions, WorkerPool& pool, const LoadOptions& options);
  // Writes the file, or replaces the one that read() refused, unless another process is about it or was faster. Throws
  // what options.progress throws, and only that: what keeps it from being written is a warning.
  void write(const Regions& regions, WorkerPool& pool, const LoadOptions& options) const;

  // For --dry-run: whether the file is there and would be used, or would be written and whether that can work.
  std::string state_text() const;

 private:
  void refuse_other_content(const std::string& description) const;  // throws Error with the reason
  void write_locked(int fd, const std::string& temporary, const Regions& regions, WorkerPool& pool,
                    const LoadOptions& options) const;

  std::string folder_, path_;
  std::string description_;
  std::vector<int64_t> region_bytes_;
  int64_t header_bytes_ = 0, data_bytes_ = 0;
  uint64_t refused_inode_ = 0;  // of the file that read() could not use
};

// state_text() for a source, empty without a packed cache.
std::string packed_cache_text(const Family& family, const WeightSource& source);

}  // namespace ft
