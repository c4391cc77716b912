// A file of data: on this machine, in an object store or on a web server.
//
// Of a remote file only those blocks are fetched that are read. block_cache.h keeps them.

#ifndef ATOLL_WORKER_DATA_DATA_FILE_H_
#define ATOLL_WORKER_DATA_DATA_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/files.h"
#include "common/object_store/object_store.h"
#include "common/path_pattern.h"

namespace atl {

class BlockCache;

struct ByteRange {
  int64_t offset = 0, bytes = 0;
};

// Thread-safe. Errors name the file. Every call that is given `cancelled` returns ABORTED within a
// second or so of when that is true.
class DataFile {
 public:
  virtual ~DataFile() = default;

  virtual const std::string& path() const = 0;

  // Returns the identity of the content at the time when the file was opened.
  virtual const FileIdentity& identity() const = 0;
  int64_t bytes() const { return identity().bytes; }

  // Stands for all bytes of the file on any machine; absent: they have to be read to know them.
  virtual std::optional<uint64_t> tag() const = 0;

  // All of [offset, offset + bytes). DATA_LOSS, for good: the file ends before, or a remote one has
  // changed since it was opened.
  virtual absl::Status Read(int64_t offset, void* out, int64_t bytes,
                            const Cancelled& cancelled) const = 0;

  // Fetches what of the ranges is neither here nor in the cache, several blocks at a time, so that
  // Read finds them there.
  virtual absl::Status Prefetch(std::span<const ByteRange> ranges,
                                const Cancelled& cancelled) const = 0;
};

// `path`: of a regular file, or s3://BUCKET/NAME, http(s)://..., hf://ORG/NAME/PATH (hub.h).
absl::StatusOr<std::unique_ptr<DataFile>> OpenDataFile(const std::string& path,
                                                       const Cancelled& cancelled = {});

bool IsRemotePath(const std::string& path);

// The objects of a store that a pattern names, sorted; a '*' does not match a '/', and what stands
// for a folder, whose name ends so, is none. `left_out` gets what matches but for objects below it.
// NOT_FOUND: none.
absl::StatusOr<std::vector<std::string>> ExpandRemoteGlob(const std::string& path,
                                                          const Cancelled& cancelled,
                                                          LeftOut* left_out);

// A folder of an object store. Thread-safe.
class RemoteFolder {
 public:
  static absl::StatusOr<std::shared_ptr<const RemoteFolder>> Open(const std::string& path);

  // The objects below it, by their names in it, sorted; INVALID_ARGUMENT: more than `most`.
  absl::StatusOr<std::vector<ObjectInfo>> List(int64_t most, const Cancelled& cancelled) const;

  // One of them as it was listed, without another request to the store. Its first Read fetches up
  // to 4 MB.
  std::unique_ptr<DataFile> OpenListed(const ObjectInfo& object) const;

 private:
  RemoteFolder(std::string path, std::shared_ptr<ObjectStore> store, BlockCache* cache)
      : path_(std::move(path)), store_(std::move(store)), cache_(cache) {}

  std::string path_;  // without a '/' at its end
  std::shared_ptr<ObjectStore> store_;
  BlockCache* cache_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_DATA_FILE_H_
