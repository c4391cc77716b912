#include "worker/data/document_index.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/files.h"
#include "worker/data/block_cache.h"
#include "worker/data/token_cache.h"

namespace atl {
namespace {

// Changes whenever the same tokens would make another index.
constexpr uint64_t kIndexVersion = 1;
constexpr char kEntriesName[] = "documents.bin";

// An entry is a document's begin and, in its lower bits, its tokens, of which a sequence takes
// fewer than these bits hold.
constexpr int kTokenBits = 21;
constexpr int64_t kTokensMax = (int64_t{1} << kTokenBits) - 1;
constexpr int64_t kStreamTokensMax = int64_t{1} << (64 - kTokenBits);

absl::Status DiskError(const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("writing ", path));
}

absl::Status WriteEntries(const TokenStream& stream, int64_t vocabulary, const ReadWatch& watch,
                          const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wbxe"),
                                                             std::fclose);
  if (file == nullptr) return DiskError(path);
  std::vector<uint64_t> entries;
  ATOLL_RETURN_IF_ERROR(
      stream.ReadDocuments(vocabulary, watch, [&](std::span<const Document> documents) {
        entries.clear();
        for (const Document& document : documents) {
          entries.push_back(static_cast<uint64_t>(document.begin) << kTokenBits |
                            static_cast<uint64_t>(std::min(document.tokens, kTokensMax)));
        }
        const size_t written =
            std::fwrite(entries.data(), sizeof entries[0], entries.size(), file.get());
        return written == entries.size() ? absl::OkStatus() : DiskError(path);
      }));
  const bool kept = std::fflush(file.get()) == 0 && fsync(fileno(file.get())) == 0;
  return kept ? absl::OkStatus() : DiskError(path);
}

absl::Status Write(const TokenStream& stream, int64_t vocabulary, const ReadWatch& watch,
                   const std::filesystem::path& folder) {
  ATOLL_RETURN_IF_ERROR(WriteEntries(stream, vocabulary, watch, (folder / kEntriesName).string()));
  const std::string text = "{\"format\": \"atoll-documents\"}\n";
  const ByteSpan buffer = std::as_bytes(std::span(text));
  return WriteFileAtomically(RealFiles(), (folder / kCacheIndexName).string(), {&buffer, 1});
}

}  // namespace

absl::StatusOr<DocumentIndex> DocumentIndex::Open(const TokenStream& stream, int64_t vocabulary,
                                                  const DataOptions& options) {
  if (stream.tokens() > kStreamTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("data path ", stream.path(), ": ", stream.tokens(), " tokens; with data.",
                     "pad_documents there may be ", kStreamTokensMax, " of them: divide the data"));
  }
  ATOLL_ASSIGN_OR_RETURN(const uint64_t tokens, stream.Digest(vocabulary, options));
  const DocumentMarks& marks = stream.marks();
  const int64_t facts[] = {marks.end, marks.before.value_or(-1), marks.behind.value_or(-1),
                           marks.files ? 1 : 0, static_cast<int64_t>(tokens)};
  const uint64_t key = XXH3_64bits_withSeed(facts, sizeof facts, kIndexVersion);
  ATOLL_ASSIGN_OR_RETURN(const int64_t bytes_max, DataCacheBytes());
  ATOLL_ASSIGN_OR_RETURN(
      const std::string folder,
      TokenCache(DataCacheFolder(), bytes_max).GetOrMake(key, [&](const std::string& made) {
        return Write(stream, vocabulary, options.watch, made);
      }));
  const std::filesystem::path path = std::filesystem::path(folder) / kEntriesName;
  ATOLL_ASSIGN_OR_RETURN(auto file, OpenDataFile(path.string(), options.watch.cancelled));
  return DocumentIndex(std::move(file), stream.tokens());
}

absl::StatusOr<Document> DocumentIndex::Read(int64_t number, const Cancelled& cancelled) const {
  ATOLL_CHECK(number >= 0 && number < documents());
  uint64_t entry = 0;
  ATOLL_RETURN_IF_ERROR(file_->Read(number * kEntryBytes, &entry, kEntryBytes, cancelled));
  const Document document{static_cast<int64_t>(entry >> kTokenBits),
                          static_cast<int64_t>(entry) & kTokensMax};
  if (document.tokens > 0 && document.tokens <= tokens_ - document.begin) return document;
  return absl::DataLossError(absl::StrCat("data cache file ", file_->path(), ": document ", number,
                                          " lies outside of the data: remove the file's folder"));
}

}  // namespace atl
