// The rows of a Parquet file, as lines of JSONL.

#ifndef ATOLL_WORKER_DATA_PARQUET_ROWS_H_
#define ATOLL_WORKER_DATA_PARQUET_ROWS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/parquet/metadata.h"
#include "worker/data/parquet/page.h"

namespace atl::parquet {

// Reads the rows of one file. Pages are plain or have dictionaries, packed with snappy, zstd or
// gzip or not; columns hold texts, numbers and booleans, and lists and structs of these, at any
// depth. What is beyond that is refused by name, where a wanted column has it. Holds a page of each
// column, not the file. One thread at a time.
class Rows {
 public:
  // `read`: of the file; errors of its own are returned as they are, others are INVALID_ARGUMENT
  // and name no file. `columns`: the wanted ones, which must be there; empty: all that can be read,
  // without leaving one of `used` out.
  static absl::StatusOr<std::unique_ptr<Rows>> Open(ColumnCursor::Read read, int64_t file_bytes,
                                                    const std::vector<std::string>& columns,
                                                    const std::vector<std::string>& used = {});

  // Appends a row as an object in one line, with its line end. REQUIRES: !ended().
  absl::Status AppendRow(std::string* out);

  bool ended() const { return row_ == metadata_.rows; }
  int64_t row() const { return row_; }  // those appended
  int64_t rows() const { return metadata_.rows; }

 private:
  Rows(ColumnCursor::Read read, Metadata metadata, std::vector<const Node*> columns);

  absl::Status BeginGroup();
  absl::Status Append(const Node& node, std::string* out);
  absl::Status AppendPresent(const Node& node, std::string* out);
  absl::Status AppendList(const Node& node, std::string* out);
  absl::Status AppendLeaf(const Node& node, std::string* out);
  // The cursor of a node's first column, at its next entry.
  absl::StatusOr<ColumnCursor*> Next(const Node& node);
  // Steps over an entry of every column of a node that is null here.
  absl::Status Skip(const Node& node);

  const ColumnCursor::Read read_;
  const Metadata metadata_;
  const std::vector<const Node*> columns_;  // of metadata_.root
  size_t group_ = 0;
  int64_t group_rows_left_ = 0;
  int64_t row_ = 0;
  std::vector<std::unique_ptr<ColumnCursor>> cursors_;  // of each leaf; null: not wanted
};

}  // namespace atl::parquet

#endif  // ATOLL_WORKER_DATA_PARQUET_ROWS_H_
