// Pages of one column: levels and values.

#ifndef ATOLL_WORKER_DATA_PARQUET_PAGE_H_
#define ATOLL_WORKER_DATA_PARQUET_PAGE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/parquet/metadata.h"

namespace atl::parquet {

// A page unpacked, and a page's head, are at most so large; entries of one page at most so many.
inline constexpr int64_t kPageBytesMax = 256 << 20;
inline constexpr int64_t kPageValuesMax = 1 << 24;

// Numbers of `width` bits (0 to 32) in runs and packed groups, Parquet's "RLE". INVALID_ARGUMENT:
// there are fewer than `count`.
absl::Status DecodeRuns(std::string_view bytes, int width, int64_t count,
                        std::vector<uint32_t>* out);

// INVALID_ARGUMENT: the codec is not supported, which it names, or the bytes do not give exactly
// `bytes` unpacked.
absl::StatusOr<std::string> Unpack(int codec, std::string_view packed, int64_t bytes);

// One value as JSON has it; of text without its quotation marks.
struct Value {
  std::string_view text;  // of kBytes, in a page
  int64_t number = 0;     // of whole numbers and booleans
  double real = 0;        // of kFloat and kDouble
};

// Walks over the entries of a column chunk: an entry is a value, or a null or an empty list at some
// level. One thread at a time.
class ColumnCursor {
 public:
  using Read = std::function<absl::Status(int64_t offset, char* out, int64_t bytes)>;

  // `leaf` outlives it.
  ColumnCursor(const Node& leaf, const Chunk& chunk, Read read);

  // Returns whether there is another entry; loads its page.
  absl::StatusOr<bool> HasNext();
  // Levels of the next entry. REQUIRES: HasNext() was true.
  int definition() const { return definitions_.empty() ? 0 : static_cast<int>(definitions_[at_]); }
  int repetition() const { return repetitions_.empty() ? 0 : static_cast<int>(repetitions_[at_]); }
  bool has_value() const { return definition() == leaf_.definition_level; }
  // Valid until the next HasNext(). REQUIRES: has_value().
  const Value& value() const { return values_[value_at_]; }
  void Advance();

 private:
  absl::StatusOr<PageHeader> ReadHeader();
  absl::Status LoadPage();
  absl::Status LoadDictionary(const PageHeader& header, std::string packed);
  absl::Status LoadData(const PageHeader& header, std::string packed);
  absl::Status LoadData2(const PageHeader& header, std::string packed);
  absl::Status DecodeValues(int encoding, std::string_view bytes);
  absl::Status DecodeOther(int encoding, std::string_view bytes, int64_t count);
  absl::Status DecodePlain(std::string_view bytes, int64_t count, std::vector<Value>* out) const;

  const Node& leaf_;
  const Chunk chunk_;
  const Read read_;
  int64_t read_bytes_ = 0;  // of the chunk
  int64_t entries_ = 0;     // of the pages so far
  std::string dictionary_page_, page_;
  std::string joined_;  // texts that do not lie in page_ as they are
  std::vector<Value> dictionary_;
  bool has_dictionary_ = false;
  int64_t page_entries_ = 0;
  std::vector<uint32_t> definitions_, repetitions_;  // empty: all are 0
  std::vector<Value> values_;
  size_t at_ = 0, value_at_ = 0;
};

}  // namespace atl::parquet

#endif  // ATOLL_WORKER_DATA_PARQUET_PAGE_H_
