// Objects by name, in S3 (or what speaks its protocol), on a web server (read only), or in a
// folder.
//
//   ATOLL_ASSIGN_OR_RETURN(const auto store, OpenObjectStore("s3://bucket/prefix"));
//   ATOLL_RETURN_IF_ERROR(store->Write("run-1/unit-0", parts));
//
// Every call ends: requests have time limits and are repeated a few times, with growing pauses,
// where the server or the network may only be busy. Errors name the object and say what to do.

#ifndef ATOLL_COMMON_OBJECT_STORE_OBJECT_STORE_H_
#define ATOLL_COMMON_OBJECT_STORE_OBJECT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files.h"
#include "common/object_store/http.h"

namespace atl {

struct ObjectInfo {
  std::string name;  // below the store's prefix
  int64_t bytes = 0;
  std::string tag;         // changes when the content does
  bool exact_tag = false;  // and stands for every byte: S3's ETag, a web server's strong one
};

// Options of one call.
struct CallOptions {
  Cancelled cancelled;  // then the call is ABORTED within a second or so
  std::string tag;      // of Read, empty: any. The object as it was when Stat gave this tag.
};

// Thread-safe. Names are parts joined by '/', none of them empty, "." or "..".
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // NOT_FOUND: there is no such object.
  virtual absl::StatusOr<ObjectInfo> Stat(const std::string& name, const CallOptions& call) = 0;

  // All of `out`, from `offset` on. OUT_OF_RANGE: the object ends before. DATA_LOSS: it is another
  // than call.tag says.
  virtual absl::Status Read(const std::string& name, int64_t offset, std::span<std::byte> out,
                            const CallOptions& call) = 0;

  // The object has all the parts one after the other, or is as it was before. Large ones go up in
  // parts, each with a checksum that the server compares.
  // UNIMPLEMENTED, of this and of List and Remove: the store can only be read.
  virtual absl::Status Write(const std::string& name, std::span<const ByteSpan> buffers);

  // Lists the objects whose names begin with `prefix`, sorted by name, at most `most`.
  virtual absl::StatusOr<std::vector<ObjectInfo>> List(const std::string& prefix, int64_t most,
                                                       const CallOptions& call);

  // OK also where there is none.
  virtual absl::Status Remove(const std::string& name);

  // "s3://bucket/prefix", "https://host/path", or the folder.
  virtual std::string url() const = 0;

 private:
  absl::Status ReadOnly() const;
};

// `url`: s3://bucket[/prefix], http(s)://host/path as a browser takes it (Stat and Read alone),
// hf://ORG/NAME (hub.h; no Write), or a folder's path.
// Credentials, region and endpoint come from where AWS's tools take them (credentials.h).
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(const std::string& url);

// The object is another than it was.
absl::Status ChangedError(const std::string& url);

// OK: `name` may name an object.
absl::Status CheckObjectName(const std::string& name);

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_OBJECT_STORE_H_
