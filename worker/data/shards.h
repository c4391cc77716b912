// Token shards: a folder with tokens-00000.bin, ... (little-endian uint16 or uint32 without a
// header, as nanoGPT's) and index.json, which says what they are and is written last.

#ifndef ATOLL_WORKER_DATA_SHARDS_H_
#define ATOLL_WORKER_DATA_SHARDS_H_

#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/files.h"
#include "common/object_store/http.h"

namespace atl {

// Documents that were left out, and why the first one was.
struct SkippedDocuments {
  int64_t count = 0;
  std::string first;

  void Add(const SkippedDocuments& more) {
    if (count == 0) first = more.first;
    count += more.count;
  }
};

// "3 documents are left out; the first: ..."
std::string SkippedText(const SkippedDocuments& skipped);

struct ShardIndex {
  struct Shard {
    std::string file;  // a name inside the folder
    int64_t tokens = 0;
    uint64_t digest = 0;  // XXH3 of its bytes
  };
  int64_t token_bits = 16;  // or 32
  bool masked = false;      // some tokens are no targets (common/masked_tokens.h); then of 32 bits
  int64_t vocabulary = 0;   // ids are below it
  uint64_t tokenizer_digest = 0;
  std::optional<int32_t> end_of_text;  // the token after each document
  int64_t documents = 0;
  SkippedDocuments skipped;  // besides
  int64_t tokens = 0;
  std::vector<Shard> shards;
};

// `folder` or its index.json. Everything is checked except that the files are there.
absl::StatusOr<ShardIndex> ReadShardIndex(const std::string& folder,
                                          const Cancelled& cancelled = {});

// Writes a folder of shards; removes them again unless it comes to Finish. One thread at a time.
class ShardWriter {
 public:
  // Makes the folder. ALREADY_EXISTS: it is there and holds something. `index` has all but what
  // counts tokens and shards.
  static absl::StatusOr<std::unique_ptr<ShardWriter>> Create(std::string folder, ShardIndex index,
                                                             int64_t shard_tokens_max);
  ~ShardWriter();

  // REQUIRES: tokens are in [0, index.vocabulary), or masked ones of these.
  absl::Status Append(std::span<const int32_t> tokens);
  void AddDocuments(int64_t count, const SkippedDocuments& skipped) {
    index_.documents += count;
    index_.skipped.Add(skipped);
  }
  int64_t tokens() const { return index_.tokens; }
  const SkippedDocuments& skipped() const { return index_.skipped; }

  // Everything is on the disk, the index last.
  absl::StatusOr<ShardIndex> Finish();

 private:
  ShardWriter(std::string folder, ShardIndex index, int64_t shard_tokens_max);
  absl::Status Begin();
  absl::Status End();

  const std::string folder_;
  const int64_t shard_tokens_max_;
  ShardIndex index_;
  bool made_folder_ = false, finished_ = false;
  std::unique_ptr<AppendFile> file_;
  XXH3_state_t* hash_;
  std::vector<unsigned char> bytes_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_SHARDS_H_
