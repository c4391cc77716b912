// Metadata of a Parquet file: its schema, and where the columns lie.

#ifndef ATOLL_WORKER_DATA_PARQUET_METADATA_H_
#define ATOLL_WORKER_DATA_PARQUET_METADATA_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace atl::parquet {

enum class ValueType : uint8_t {
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kInt96 = 3,
  kFloat = 4,
  kDouble = 5,
  kBytes = 6,
  kFixedBytes = 7,
};
enum class Repetition : uint8_t { kRequired = 0, kOptional = 1, kRepeated = 2 };
enum class Codec : uint8_t { kNone = 0, kSnappy = 1, kGzip = 2, kZstd = 6 };

// A field of the schema with those inside. Those of one file form a tree of bounded depth.
struct Node {
  std::string name;
  Repetition repetition = Repetition::kRequired;
  bool is_list = false, is_map = false;  // by its annotation
  bool is_text = false;                  // of kBytes: annotated as text, an enum or JSON
  ValueType type = ValueType::kBytes;    // of a leaf
  int leaf = -1;                         // its number among the file's columns; -1: a group
  int definition_level = 0, repetition_level = 0;
  std::vector<Node> children;
};

// A column of a row group. INVARIANT: lies in the file.
struct Chunk {
  int64_t begin = 0, bytes = 0;  // its pages, the dictionary first
  int64_t values = 0;            // nulls too
  int codec = 0;
};

struct RowGroup {
  int64_t rows = 0;
  std::vector<Chunk> chunks;  // of each leaf
};

struct Metadata {
  Node root;
  int leaves = 0;
  int64_t rows = 0;
  std::vector<RowGroup> groups;
};

struct PageHeader {
  enum class Type : uint8_t { kData = 0, kIndex = 1, kDictionary = 2, kData2 = 3 };
  Type type = Type::kData;
  int64_t header_bytes = 0;
  int64_t packed_bytes = 0, bytes = 0;  // of the page, as it lies there and unpacked
  int64_t values = 0;
  int encoding = 0;
  // Set for kData2.
  int64_t definition_bytes = 0, repetition_bytes = 0;
  bool packed = true;
  int definition_encoding = 3;  // of kData
};

// INVALID_ARGUMENT: `footer` is none, or what it says does not fit into a file of `file_bytes`.
absl::StatusOr<Metadata> ParseMetadata(std::string_view footer, int64_t file_bytes);

// `bytes` begin with one. OUT_OF_RANGE: it goes on behind them.
absl::StatusOr<PageHeader> ParsePageHeader(std::string_view bytes);

}  // namespace atl::parquet

#endif  // ATOLL_WORKER_DATA_PARQUET_METADATA_H_
