// The files that a data path names, and their text: plain, or packed with gzip, zstd, xz or bzip2;
// recognised by their first bytes, not by their names.

#ifndef ATOLL_WORKER_DATA_INPUTS_H_
#define ATOLL_WORKER_DATA_INPUTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file_kind.h"
#include "common/object_store/http.h"
#include "common/path_pattern.h"
#include "worker/data/data_file.h"

namespace atl {

// The files or objects that match (common/path_pattern.h), sorted by name; without a pattern in it
// the path itself, whether there is such a file or not; addresses of web servers are no patterns.
// NOT_FOUND: a pattern that matches none. `left_out` gets the folders that match it, and what
// ExpandPattern leaves out. FAILED_PRECONDITION: it matches folders alone.
absl::StatusOr<std::vector<std::string>> ExpandGlob(const std::string& path,
                                                    const Cancelled& cancelled = {},
                                                    LeftOut* left_out = nullptr);

// Warns of what a data path leaves out, if anything.
void LogLeftOut(const std::string& path, const LeftOut& left_out);

// The first kFileKindBytes, or all of a shorter file.
absl::StatusOr<std::string> ReadFileHead(const DataFile& file, const Cancelled& cancelled = {});

// Returns whether the file is packed text. INVALID_ARGUMENT: it is no text (common/file_kind.h).
absl::StatusOr<bool> IsCompressed(const std::string& path, const Cancelled& cancelled = {});

// Collects what is wrong with several files: all of it is reported at once.
class Problems {
 public:
  // Keeps an INVALID_ARGUMENT, once; others are returned.
  absl::Status Take(const absl::Status& status);
  // OK: there are none.
  absl::Status Status(int64_t files) const;

 private:
  std::vector<std::string> messages_;
};

struct TextOptions {
  Cancelled cancelled = {};
  std::string_view wanted = "text";  // for messages
  // The text is JSONL: the rows of a Parquet file are lines of it, of these columns; none: of all
  // that can be read.
  bool jsonl = false;
  std::vector<std::string> columns = {};
  std::vector<std::string> used_columns = {};  // of all columns, those that must not be left out
};

// Reads a file's text from its beginning to its end. One thread at a time.
class TextReader {
 public:
  // INVALID_ARGUMENT, which says what it is: not text.
  static absl::StatusOr<std::unique_ptr<TextReader>> Open(const std::string& path,
                                                          const TextOptions& options = {});
  virtual ~TextReader() = default;

  // Appends at most `bytes_max` bytes, at least one unless the text has ended. Compressed data that
  // breaks off or is damaged: INVALID_ARGUMENT with the file's name.
  virtual absl::Status Read(int64_t bytes_max, std::string* out) = 0;

  // Returns the kind of the text itself: unknown, or markup.
  const FoundKind& kind() const { return kind_; }

  virtual bool is_plain() const = 0;  // not packed
  virtual bool ended() const = 0;
  virtual int64_t file_bytes() const = 0;       // size of the file
  virtual int64_t file_bytes_read() const = 0;  // of it, so far

 protected:
  explicit TextReader(FoundKind kind) : kind_(std::move(kind)) {}

  FoundKind kind_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_INPUTS_H_
