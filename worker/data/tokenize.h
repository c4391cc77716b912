// Text files to token shards, on all cores: what `atoll tokenize` does, and a worker whose job
// names a tokenizer. The result depends on the files and the options alone, not on the number of
// threads.
//
// A text file is one document. It is encoded in parts of about 256 KB, cut where the tokens are
// those of the whole text: before lines that do not begin with white space, where there are any. A
// line of a JSONL file is one document. After each document comes the end-of-text token, where the
// tokenizer has one; without a tokenizer, bytes are tokens and a line feed ends a document.

#ifndef ATOLL_WORKER_DATA_TOKENIZE_H_
#define ATOLL_WORKER_DATA_TOKENIZE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "worker/data/chat/frame.h"
#include "worker/data/documents.h"
#include "worker/data/shards.h"

namespace atl {

inline constexpr int32_t kDocumentEnd = -1;  // a masked token, which no document has

struct TokenizeProgress {
  int64_t bytes_read = 0;  // of the files as they lie on the disk
  int64_t bytes_total = 0;
  int64_t tokens = 0;
};

struct TokenizeOptions {
  std::vector<std::string> files;
  bool jsonl = false;
  std::string field = "text";  // of a JSONL object
  // Above 0: each line is a conversation (chat/), and the tokens are masked ones. One that does
  // not fit into what is left of a sequence of this length begins a new one, behind masked ends of
  // text.
  int64_t chat_sequence_length = 0;
  const ChatFrame* chat = nullptr;  // of conversations; it must outlive the calls
  // Above 0: of a job that pads documents, of which so many tokens fit into a sequence. They have
  // no frame, kDocumentEnd ends each, and without a tokenizer each line of text is one.
  int64_t document_tokens_max = 0;
  // Each document's first token says that it begins one (MarkDocument), and nothing stands between
  // conversations. Of JSONL alone.
  bool mark_documents = false;
  // Above 0: each line is a pair of conversations, two documents that together have at most so many
  // tokens. With mark_documents.
  int64_t pair_tokens_max = 0;
  // True if unusable lines of JSONL are left out and counted, and so are conversations. False: an
  // error.
  bool skip_bad_documents = false;
  const Tokenizer* tokenizer = nullptr;  // null: bytes are tokens
  std::optional<int32_t> end_of_text;    // after each document
  int threads = 1;
  int64_t shard_tokens_max = int64_t{1} << 28;
  std::function<void(const TokenizeProgress&)> progress;  // from one thread, now and then
  Cancelled cancelled;
};

// How documents end in shards that are made so. REQUIRES: document_tokens_max is above 0, or
// mark_documents.
DocumentMarks GetDocumentMarks(const TokenizeOptions& options);

// Writes the shards to `folder`, which must be new or empty. After an error nothing of them is
// left. ABORTED: cancelled.
absl::StatusOr<ShardIndex> Tokenize(const TokenizeOptions& options, const std::string& folder);

// The result of tokenizing the heads of the files.
struct TextHeads {
  int64_t file_bytes = 0;              // of all files
  int64_t text_bytes = 0, tokens = 0;  // of the heads
  int64_t counted = 0;                 // of these tokens, those that the loss counts
  int64_t filler = 0;                  // tokens besides: between conversations
  // With document_tokens_max: those that are not empty, and of these the longer ones.
  int64_t documents = 0, documents_cut = 0;
  std::vector<Document> packed;  // with mark_documents: all, placed from their own file's head
  SkippedDocuments skipped;
  std::vector<std::string> warnings;  // of files that may not be what they seem
  std::vector<std::string> unread;    // what is left of files and their number; human-readable
};

// How many files TokenizeHeads reads so much of, and of how many more a first few kilobytes.
inline constexpr size_t kLongHeads = 16, kHeadFiles = 2000;

// Reads `bytes_max` of text of the first files, less of others, and whole lines of JSONL. What is
// packed and of moderate size is unpacked to its end.
// INVALID_ARGUMENT names every file that is not what it should be.
absl::StatusOr<TextHeads> TokenizeHeads(const TokenizeOptions& options, int64_t bytes_max);

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_TOKENIZE_H_
