// Shards that text was made into, and indexes of documents, kept on this machine's disk for the
// next job on the same text.
//
// Folders that were not used for the longest time go first; streams that have one open read on.
// Several processes may share the cache: what one removes another makes again. Losing it costs time
// only.

#ifndef ATOLL_WORKER_DATA_TOKEN_CACHE_H_
#define ATOLL_WORKER_DATA_TOKEN_CACHE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace atl {

// The file of a folder that says what it holds.
inline constexpr char kCacheIndexName[] = "index.json";

class TokenCache {
 public:
  // Keeps at most `bytes_max` in `folder` besides the shards that are used now, whatever these
  // take.
  TokenCache(std::string folder, int64_t bytes_max);

  // The folder for `key`: the one that is there, else what `make` writes into the empty folder that
  // it is given, with a kCacheIndexName.
  absl::StatusOr<std::string> GetOrMake(
      uint64_t key, const std::function<absl::Status(const std::string&)>& make);

 private:
  absl::Status MakeRoom(const std::string& used) const;

  const std::string folder_;
  const int64_t bytes_max_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_TOKEN_CACHE_H_
