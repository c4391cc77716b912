// Blocks of remote files on this machine's disk, shared by all processes that have the same cache
// folder (DataCacheFolder).
//
// A block ends with a checksum: one that is damaged, or half-written when the machine stopped, is
// as good as none. The blocks that were not read for the longest time go first. Losing the cache
// costs time only: what cannot be kept is no error.

#ifndef ATOLL_WORKER_DATA_BLOCK_CACHE_H_
#define ATOLL_WORKER_DATA_BLOCK_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/cache_folder.h"

namespace atl {

// Returns the bytes that fetched blocks may take on the disk: $ATOLL_DATA_CACHE_BYTES ("20GiB"),
// else 10 GiB.
absl::StatusOr<int64_t> DataCacheBytes();

// Thread-safe.
class BlockCache {
 public:
  // One process keeps at most `bytes_max` in the folder; each further one at the same time may keep
  // an eighth of that more.
  BlockCache(std::string folder, int64_t bytes_max);

  // The one of this process for the folder and the bound that the environment names.
  static absl::StatusOr<BlockCache*> Get();

  bool Has(const std::string& name) const;
  // False: it is not there, or damaged, or not of that length.
  bool Read(const std::string& name, std::span<std::byte> block) const;
  void Store(const std::string& name, std::span<const std::byte> block);

 private:
  std::string Path(const std::string& name) const;
  // REQUIRES: mutex_ is held.
  void MakeRoom(int64_t bytes);

  const std::string folder_;
  const int64_t bytes_max_;
  std::mutex mutex_;
  bool counted_ = false;
  int64_t kept_ = 0;  // bytes at the last count, and what was stored since
  int64_t since_ = 0;
  uint64_t next_ = 0;  // numbers files that are being written
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_BLOCK_CACHE_H_
