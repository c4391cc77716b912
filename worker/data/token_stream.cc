#include "worker/data/token_stream.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/bytes_text.h"
#include "common/check.h"
#include "common/file_kind.h"
#include "common/logging.h"
#include "common/machine/limits.h"
#include "common/object_store/hub.h"
#include "common/path_pattern.h"
#include "common/paths.h"
#include "common/plural.h"
#include "worker/data/block_cache.h"
#include "worker/data/chat/frame.h"
#include "worker/data/held_out.h"
#include "worker/data/inputs.h"
#include "worker/data/text_input.h"
#include "worker/data/token_cache.h"
#include "worker/data/tokenize.h"

namespace atl {
namespace {

constexpr int64_t kSamples = 256;
constexpr int64_t kSplitTokens = 1 << 20;  // of documents, read at once
constexpr auto kSayEvery = std::chrono::seconds(5);

absl::Status CheckVocabulary(int64_t model, int64_t tokens, const std::string& path) {
  if (tokens <= model) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model.vocabulary = ", model, ": the tokens of ",
                                                 path, " need at least ", tokens));
}

// Where the job names it: that the shards are of this tokenizer, which exports get.
absl::Status CheckTokenizer(const DataSpec& spec, const std::string& folder,
                            const Cancelled& cancelled) {
  if (spec.tokenizer_path.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const ShardIndex index, ReadShardIndex(folder, cancelled));
  ATOLL_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(spec.tokenizer_path));
  if (tokenizer->digest() == index.tokenizer_digest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data.tokenizer_path ", spec.tokenizer_path, ": the shards of ", folder,
                   " were made with another tokenizer, or by an older version: make them again by "
                   "`atoll tokenize`"));
}

}  // namespace

absl::Status TokenStream::Add(DataFormat format, const std::string& path,
                              const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(TokenFile file, TokenFile::Open(format, path, cancelled));
  begins_.push_back(begins_.back() + file.tokens());
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<TokenStream> TokenStream::OpenShards(const std::string& folder, int64_t vocabulary,
                                                    const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(const ShardIndex index, ReadShardIndex(folder, cancelled));
  ATOLL_RETURN_IF_ERROR(CheckVocabulary(vocabulary, index.vocabulary, folder));
  std::filesystem::path base = folder;
  if (base.filename() == "index.json") base = base.parent_path();
  TokenStream stream;
  stream.path_ = folder;
  stream.masked_ = index.masked;
  stream.end_of_text_ = index.end_of_text;
  const DataFormat format = index.masked             ? DataFormat::kChat
                            : index.token_bits == 16 ? DataFormat::kTokens16
                                                     : DataFormat::kTokens32;
  for (const ShardIndex::Shard& shard : index.shards) {
    ATOLL_RETURN_IF_ERROR(stream.Add(format, (base / shard.file).string(), cancelled));
    if (stream.files_.back().tokens() != shard.tokens) {
      return absl::InvalidArgumentError(absl::StrCat("data file ", stream.files_.back().path(),
                                                     ": has ", stream.files_.back().tokens(),
                                                     " tokens, its index says ", shard.tokens));
    }
  }
  return stream;
}

absl::StatusOr<TokenStream> TokenStream::Open(const DataSpec& spec, const std::string& path,
                                              int64_t vocabulary, const DataOptions& options) {
  const Cancelled& cancelled = options.watch.cancelled;
  if (spec.format == DataFormat::kShards) {
    ATOLL_RETURN_IF_ERROR(CheckTokenizer(spec, path, cancelled));
    ATOLL_ASSIGN_OR_RETURN(TokenStream stream, OpenShards(path, vocabulary, cancelled));
    if (!spec.pad_documents && !IsPacked(spec)) return stream;
    if (stream.masked_ || !stream.end_of_text_.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token shards ", path, ": data.",
          IsPacked(spec) ? "documents = \"mask\" or \"continue\"" : "pad_documents = true",
          " needs to know where documents end, ",
          stream.masked_ ? "and these are of conversations; use other data"
                         : "and the index names no end_of_text; make them with a tokenizer that "
                           "has such a token, or take the text itself"));
    }
    stream.marks_ = {.end = *stream.end_of_text_, .whole = IsPacked(spec)};
    if (options.frame.has_value()) {
      stream.marks_->before = options.frame->cls;
      stream.marks_->behind = options.frame->sep;
    }
    return stream;
  }
  if (IsText(spec.format)) return OpenText(spec, path, vocabulary, options);
  TokenStream stream;
  stream.path_ = path;
  std::string pattern = path;
  if (spec.format == DataFormat::kMegatron && FindPattern(path) != std::string::npos) {
    // Keeps one file of each pair.
    pattern = absl::StrCat(absl::StripSuffix(absl::StripSuffix(path, ".bin"), ".idx"), ".bin");
  }
  LeftOut left_out;
  ATOLL_ASSIGN_OR_RETURN(const auto files, ExpandGlob(pattern, cancelled, &left_out));
  LogLeftOut(path, left_out);
  Problems problems;
  for (const std::string& file : files) {
    ATOLL_RETURN_IF_ERROR(problems.Take(stream.Add(spec.format, file, cancelled)));
  }
  ATOLL_RETURN_IF_ERROR(problems.Status(std::ssize(files)));
  // A sample of remote files is a request: InspectData takes some.
  if (!IsRemotePath(path)) {
    ATOLL_RETURN_IF_ERROR(stream.CheckSamples(vocabulary, kSamples, cancelled));
  }
  return stream;
}

absl::Status TokenStream::CheckSamples(int64_t vocabulary, int64_t samples,
                                       const Cancelled& cancelled,
                                       std::vector<std::string>* warnings) const {
  Problems problems;
  for (const TokenFile& file : files_) {
    const double share =
        static_cast<double>(file.tokens()) / static_cast<double>(std::max<int64_t>(1, tokens()));
    const auto of_file = static_cast<int64_t>(share * static_cast<double>(samples));
    ATOLL_RETURN_IF_ERROR(problems.Take(
        file.CheckSamples(vocabulary, std::max<int64_t>(2, of_file), cancelled, warnings)));
  }
  return problems.Status(std::ssize(files_));
}

absl::StatusOr<TokenStream> TokenStream::OpenText(const DataSpec& spec, const std::string& path,
                                                  int64_t vocabulary, const DataOptions& options) {
  const Cancelled& cancelled = options.watch.cancelled;
  LeftOut left_out;
  ATOLL_ASSIGN_OR_RETURN(const auto files, ExpandGlob(path, cancelled, &left_out));
  LogLeftOut(path, left_out);
  ATOLL_ASSIGN_OR_RETURN(const bool direct, ReadsDirectly(spec, files, cancelled));
  TokenStream stream;
  if (direct) {
    for (const std::string& file : files) {
      ATOLL_RETURN_IF_ERROR(stream.Add(spec.format, file, cancelled));
    }
    if (spec.pad_documents) stream.marks_ = {.end = '\n', .behind = '\r', .files = true};
  } else {
    ATOLL_ASSIGN_OR_RETURN(const TextInput input, FindText(spec, path, vocabulary, cancelled));
    ATOLL_ASSIGN_OR_RETURN(const std::string folder, TokenizeOnce(spec, input, options));
    ATOLL_ASSIGN_OR_RETURN(const ShardIndex index, ReadShardIndex(folder, cancelled));
    if (index.skipped.count > 0) {
      LogWarning("data", "data path ", path, ": ", SkippedText(index.skipped));
    }
    ATOLL_ASSIGN_OR_RETURN(stream, OpenShards(folder, vocabulary, cancelled));
    if (spec.pad_documents || IsPacked(spec)) {
      stream.marks_ = GetDocumentMarks(OptionsFor(spec, input));
    }
  }
  stream.path_ = path;
  return stream;
}

absl::Status TokenStream::ReadDocuments(
    int64_t vocabulary, const ReadWatch& watch,
    const std::function<absl::Status(std::span<const Document>)>& take) const {
  std::vector<int32_t> part;
  std::vector<Document> documents;
  DocumentSplitter splitter(marks());
  auto said_at = std::chrono::steady_clock::now();
  const auto done_saying = absl::MakeCleanup([&, said = said_at] {
    if (watch.progress && said_at != said) watch.progress("");
  });
  for (int64_t begin = 0; begin < tokens();) {
    if (watch.cancelled && watch.cancelled()) {
      return absl::AbortedError(absl::StrCat("data path ", path_, ": reading is interrupted"));
    }
    const int64_t file_end = begins_[FindFileIndex(begin) + 1];
    const int64_t count = std::min(kSplitTokens, file_end - begin);
    part.resize(static_cast<size_t>(count));
    const Document range{begin, count};
    ATOLL_RETURN_IF_ERROR(Prefetch({&range, 1}, watch.cancelled));
    ATOLL_RETURN_IF_ERROR(Read(begin, vocabulary, part, watch.cancelled));
    begin += count;
    splitter.Add(part, &documents);
    if (begin == tokens() || (begin == file_end && marks().files)) splitter.End(&documents);
    ATOLL_RETURN_IF_ERROR(take(documents));
    documents.clear();
    if (watch.progress && std::chrono::steady_clock::now() - said_at >= kSayEvery) {
      said_at = std::chrono::steady_clock::now();
      watch.progress(absl::StrCat("finds the documents of ", path_, ": ", 100 * begin / tokens(),
                                  "% of ", CountText(tokens(), "token")));
    }
  }
  return absl::OkStatus();
}

size_t TokenStream::FindFileIndex(int64_t token) const {
  return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), token) -
                             begins_.begin() - 1);
}

absl::Status TokenStream::Prefetch(std::span<const Document> wanted,
                                   const Cancelled& cancelled) const {
  std::vector<std::vector<TokenFile::Range>> ranges(files_.size());
  for (const Document& range : wanted) {
    const int64_t end = std::min(range.begin + range.tokens, tokens());
    for (int64_t begin = range.begin; begin < end;) {
      const size_t file = FindFileIndex(begin);
      const int64_t part = std::min(end, begins_[file + 1]) - begin;
      ranges[file].push_back({begin - begins_[file], part});
      begin += part;
    }
  }
  for (size_t file = 0; file < files_.size(); ++file) {
    if (ranges[file].empty()) continue;
    ATOLL_RETURN_IF_ERROR(files_[file].Prefetch(ranges[file], cancelled));
  }
  return absl::OkStatus();
}

absl::Status TokenStream::Read(int64_t begin, int64_t vocabulary, std::span<int32_t> out,
                               const Cancelled& cancelled) const {
  ATOLL_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tokens());
  size_t file = FindFileIndex(begin);
  while (!out.empty()) {
    const int64_t inside = begin - begins_[file];
    const auto count = std::min(out.size(), static_cast<size_t>(files_[file].tokens() - inside));
    ATOLL_RETURN_IF_ERROR(files_[file].Read(inside, vocabulary, out.first(count), cancelled));
    out = out.subspan(count);
    begin += static_cast<int64_t>(count);
    ++file;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TokenStream::Digest(int64_t vocabulary, const DataOptions& options) const {
  uint64_t digest = 0;
  for (const TokenFile& file : files_) {
    ATOLL_ASSIGN_OR_RETURN(const TokenFileContent content, GetTokenFileContent(file, options));
    ATOLL_RETURN_IF_ERROR(file.CheckVocabulary(content, vocabulary));
    if (files_.size() == 1) return content.digest;
    digest = XXH3_64bits_withSeed(&content.digest, sizeof content.digest, digest);
  }
  return digest;
}

}  // namespace atl
