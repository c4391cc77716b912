#include "worker/data/document_index.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/files.h"
#include "worker/data/block_cache.h"
#include "worker/data/token_cache.h"

namespace atl {
namespace {

// Changes whenever the same tokens would make another index.
constexpr uint64_t kIndexVersion = 2;
constexpr char kEntriesName[] = "documents.bin", kSequencesName[] = "sequences.bin";

// An entry is a document's begin and, in its lower bits, its tokens, of which a sequence takes
// fewer than these bits hold.
constexpr int kTokenBits = 21;
constexpr int64_t kTokensMax = (int64_t{1} << kTokenBits) - 1;
constexpr int64_t kStreamTokensMax = int64_t{1} << (64 - kTokenBits);

// A file of numbers that is being written.
class NumberFile {
 public:
  explicit NumberFile(std::string path)
      : path_(std::move(path)), file_(std::fopen(path_.c_str(), "wbxe"), std::fclose) {
    Note(file_ != nullptr);
  }

  void Add(uint64_t number) {
    if (error_ == 0) Note(std::fwrite(&number, sizeof number, 1, file_.get()) == 1);
  }
  absl::Status Keep() {
    if (error_ == 0) Note(std::fflush(file_.get()) == 0 && fsync(fileno(file_.get())) == 0);
    return status();
  }
  absl::Status status() const {
    return error_ == 0 ? absl::OkStatus()
                       : absl::ErrnoToStatus(error_, absl::StrCat("writing ", path_));
  }

 private:
  void Note(bool done) {
    if (!done) error_ = errno;
  }

  const std::string path_;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  int error_ = 0;  // the first
};

absl::Status WriteEntries(const TokenStream& stream, int64_t vocabulary, int64_t packed,
                          const ReadWatch& watch, const std::filesystem::path& folder) {
  NumberFile entries((folder / kEntriesName).string());
  std::optional<NumberFile> firsts;
  if (packed > 0) firsts.emplace((folder / kSequencesName).string());
  uint64_t count = 0;
  const auto write = [&](std::span<const Document> sequence) {
    if (firsts.has_value()) firsts->Add(count);
    for (const Document& document : sequence) {
      entries.Add(static_cast<uint64_t>(document.begin) << kTokenBits |
                  static_cast<uint64_t>(std::min(document.tokens, kTokensMax)));
      ++count;
    }
  };
  DocumentPacker packer(std::max<int64_t>(2, packed));
  std::vector<DocumentPacker::Sequence> sequences;
  DocumentPacker::Sequence pair;
  ATOLL_RETURN_IF_ERROR(
      stream.ReadDocuments(vocabulary, watch, [&](std::span<const Document> documents) {
        for (const Document& document : documents) {
          if (stream.marks().pairs) {
            pair.push_back(document);
            if (pair.size() == 2) sequences.push_back(std::exchange(pair, {}));
          } else if (packed > 0) {
            packer.Add(document, &sequences);
          } else {
            write({&document, 1});
          }
        }
        std::ranges::for_each(sequences, write);
        sequences.clear();
        return entries.status();
      }));
  packer.End(&sequences);
  std::ranges::for_each(sequences, write);
  if (firsts.has_value()) {
    firsts->Add(count);
    ATOLL_RETURN_IF_ERROR(firsts->Keep());
  }
  return entries.Keep();
}

absl::Status Write(const TokenStream& stream, int64_t vocabulary, int64_t packed,
                   const ReadWatch& watch, const std::filesystem::path& folder) {
  ATOLL_RETURN_IF_ERROR(WriteEntries(stream, vocabulary, packed, watch, folder));
  const std::string text = "{\"format\": \"atoll-documents\"}\n";
  const ByteSpan buffer = std::as_bytes(std::span(text));
  return WriteFileAtomically(RealFiles(), (folder / kCacheIndexName).string(), {&buffer, 1});
}

}  // namespace

absl::StatusOr<DocumentIndex> DocumentIndex::Open(const TokenStream& stream, int64_t vocabulary,
                                                  int64_t packed, const DataOptions& options) {
  if (stream.tokens() > kStreamTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("data path ", stream.path(), ": ", stream.tokens(), " tokens; with data.",
                     packed > 0 ? "documents" : "pad_documents", " there may be ", kStreamTokensMax,
                     " of them: divide the data"));
  }
  ATOLL_ASSIGN_OR_RETURN(const uint64_t tokens, stream.Digest(vocabulary, options));
  const DocumentMarks& marks = stream.marks();
  const int64_t facts[] = {marks.end.value_or(INT64_MIN),
                           marks.before.value_or(-1),
                           marks.behind.value_or(-1),
                           marks.files ? 1 : 0,
                           (marks.whole ? 1 : 0) + (marks.pairs ? 2 : 0),
                           static_cast<int64_t>(tokens),
                           packed};
  const uint64_t key = XXH3_64bits_withSeed(facts, sizeof facts, kIndexVersion);
  ATOLL_ASSIGN_OR_RETURN(const int64_t bytes_max, DataCacheBytes());
  ATOLL_ASSIGN_OR_RETURN(
      const std::string folder,
      TokenCache(DataCacheFolder(), bytes_max).GetOrMake(key, [&](const std::string& made) {
        return Write(stream, vocabulary, packed, options.watch, made);
      }));
  const std::filesystem::path made = folder;
  const Cancelled& cancelled = options.watch.cancelled;
  ATOLL_ASSIGN_OR_RETURN(auto file, OpenDataFile((made / kEntriesName).string(), cancelled));
  DocumentIndex index(std::move(file), packed, stream.tokens());
  if (packed > 0) {
    ATOLL_ASSIGN_OR_RETURN(index.sequences_,
                           OpenDataFile((made / kSequencesName).string(), cancelled));
    if (index.sequences() < 0) return index.Damaged(*index.sequences_, 0);
  }
  return index;
}

absl::Status DocumentIndex::Damaged(const DataFile& file, int64_t number) const {
  return absl::DataLossError(absl::StrCat("data cache file ", file.path(), ": sequence ", number,
                                          " lies outside of the data: remove the file's folder"));
}

absl::StatusOr<std::vector<Document>> DocumentIndex::Read(int64_t number,
                                                          const Cancelled& cancelled) const {
  ATOLL_CHECK(number >= 0 && number < sequences());
  int64_t range[2] = {number, number + 1};  // of entries
  if (packed_ > 0) {
    ATOLL_RETURN_IF_ERROR(sequences_->Read(number * kEntryBytes, range, sizeof range, cancelled));
    const bool inside = range[0] >= 0 && range[0] < range[1] &&
                        range[1] <= file_->bytes() / kEntryBytes && range[1] - range[0] <= packed_;
    if (!inside) return Damaged(*sequences_, number);
  }
  std::vector<uint64_t> entries(static_cast<size_t>(range[1] - range[0]));
  ATOLL_RETURN_IF_ERROR(file_->Read(range[0] * kEntryBytes, entries.data(),
                                    std::ssize(entries) * kEntryBytes, cancelled));
  std::vector<Document> documents;
  int64_t left = packed_ > 0 ? packed_ : INT64_MAX;
  for (const uint64_t entry : entries) {
    const Document document{static_cast<int64_t>(entry >> kTokenBits),
                            static_cast<int64_t>(entry) & kTokensMax};
    left -= document.tokens;
    const bool inside =
        document.tokens > 0 && left >= 0 && document.tokens <= tokens_ - document.begin;
    if (!inside) return Damaged(*file_, number);
    documents.push_back(document);
  }
  return documents;
}

}  // namespace atl
