// The files that a data path names, and their text: plain, gzip or zstd, recognised by their first
// bytes, not by their names.

#ifndef ATOLL_WORKER_DATA_INPUTS_H_
#define ATOLL_WORKER_DATA_INPUTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/object_store/http.h"

namespace atl {

// The files or objects that match, sorted by name; without any of * ? [ in it the path itself,
// whether there is such a file or not; addresses of web servers are no patterns. NOT_FOUND: a
// pattern that matches none.
absl::StatusOr<std::vector<std::string>> ExpandGlob(const std::string& path,
                                                    const Cancelled& cancelled = {});

// Whether the file begins as gzip or zstd data do.
absl::StatusOr<bool> IsCompressed(const std::string& path, const Cancelled& cancelled = {});

// Reads a file's text from its beginning to its end. One thread at a time.
class TextReader {
 public:
  static absl::StatusOr<std::unique_ptr<TextReader>> Open(const std::string& path,
                                                          const Cancelled& cancelled = {});
  virtual ~TextReader() = default;

  // Appends at most `bytes_max` bytes, at least one unless the text has ended. Compressed data that
  // breaks off or is damaged: INVALID_ARGUMENT with the file's name.
  virtual absl::Status Read(int64_t bytes_max, std::string* out) = 0;

  virtual bool ended() const = 0;
  virtual int64_t file_bytes() const = 0;       // size of the file
  virtual int64_t file_bytes_read() const = 0;  // of it, so far
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_INPUTS_H_
