#include "worker/data/token_stream.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/bytes_text.h"
#include "common/check.h"
#include "worker/data/block_cache.h"
#include "worker/data/chat.h"
#include "worker/data/held_out.h"
#include "worker/data/images.h"
#include "worker/data/inputs.h"
#include "worker/data/token_cache.h"
#include "worker/data/tokenize.h"

namespace atl {
namespace {

// Changes whenever the same input would make other tokens.
constexpr uint64_t kTokenizeVersion = 3;
constexpr int64_t kHeadBytes = 1 << 20;
constexpr size_t kHeadFiles = 16;
constexpr size_t kHeadImages = 64;

struct TextInput {
  std::vector<std::string> files;
  std::unique_ptr<const Tokenizer> tokenizer;  // null: bytes
  std::optional<int32_t> end_of_text;
};

bool IsText(DataFormat format) {
  return format == DataFormat::kText || format == DataFormat::kJsonl || format == DataFormat::kChat;
}

absl::Status CheckVocabulary(int64_t model, int64_t tokens, const std::string& path) {
  if (tokens <= model) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model.vocabulary = ", model, ": the tokens of ",
                                                 path, " need at least ", tokens));
}

absl::StatusOr<TextInput> OpenText(const DataSpec& spec, const std::string& path,
                                   int64_t vocabulary, const Cancelled& cancelled) {
  TextInput input;
  ATOLL_ASSIGN_OR_RETURN(input.files, ExpandGlob(path, cancelled));
  if (spec.tokenizer_path.empty()) {
    if (spec.format != DataFormat::kText) input.end_of_text = '\n';
    return input;
  }
  ATOLL_ASSIGN_OR_RETURN(input.tokenizer, OpenTokenizer(spec.tokenizer_path));
  ATOLL_RETURN_IF_ERROR(
      CheckVocabulary(vocabulary, input.tokenizer->vocabulary(), spec.tokenizer_path));
  ATOLL_ASSIGN_OR_RETURN(input.end_of_text, EndOfText(*input.tokenizer, spec.tokenizer_path));
  return input;
}

// Bytes of plain text files are tokens as they lie there.
absl::StatusOr<bool> ReadsDirectly(const DataSpec& spec, const std::vector<std::string>& files,
                                   const Cancelled& cancelled) {
  if (spec.format != DataFormat::kText || !spec.tokenizer_path.empty()) return false;
  for (const std::string& file : files) {
    ATOLL_ASSIGN_OR_RETURN(const bool compressed, IsCompressed(file, cancelled));
    if (compressed) return false;
  }
  return true;
}

// Two inputs with the same key make the same tokens.
absl::StatusOr<uint64_t> CacheKey(const DataSpec& spec, const TextInput& input,
                                  const DataOptions& options) {
  uint64_t key = XXH3_64bits_withSeed(spec.field.data(), spec.field.size(), kTokenizeVersion);
  const int64_t facts[] = {
      static_cast<int64_t>(spec.format),
      input.tokenizer == nullptr ? 0 : static_cast<int64_t>(input.tokenizer->digest()),
      input.end_of_text.value_or(-1), spec.format == DataFormat::kChat ? spec.sequence_length : 0};
  key = XXH3_64bits_withSeed(facts, sizeof facts, key);
  for (const std::string& path : input.files) {
    ATOLL_ASSIGN_OR_RETURN(const TokenFile file,
                           TokenFile::Open(DataFormat::kText, path, options.watch.cancelled));
    ATOLL_ASSIGN_OR_RETURN(const TokenFileContent content, ContentOf(file, options));
    key = XXH3_64bits_withSeed(&content.digest, sizeof content.digest, key);
  }
  return key;
}

// The folder of shards that hold the text's tokens: from the cache, else made now.
absl::StatusOr<std::string> TokenizeOnce(const DataSpec& spec, const TextInput& input,
                                         const DataOptions& data) {
  ATOLL_ASSIGN_OR_RETURN(const uint64_t key, CacheKey(spec, input, data));
  ATOLL_ASSIGN_OR_RETURN(const int64_t bytes_max, DataCacheBytes());
  TokenizeOptions options;
  options.files = input.files;
  options.jsonl = spec.format != DataFormat::kText;
  if (spec.format == DataFormat::kChat) options.chat_sequence_length = spec.sequence_length;
  options.field = spec.field;
  options.tokenizer = input.tokenizer.get();
  options.end_of_text = input.end_of_text;
  options.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  options.cancelled = data.watch.cancelled;
  return TokenCache(DataCacheFolder(), bytes_max).GetOrMake(key, [&](const std::string& folder) {
    return Tokenize(options, folder).status();
  });
}

struct Head {
  int64_t bytes = 0, tokens = 0, counted = 0;  // counted: by the loss
};

// The whole lines of `text`, and the last one if the file `ended` with it.
template <typename OnLine>
absl::Status ForLines(std::string_view text, bool ended, const OnLine& on_line) {
  int64_t line = 1;
  for (size_t at = 0; at < text.size(); ++line) {
    const size_t end = text.find('\n', at);
    if (end == std::string_view::npos && !ended) break;  // it goes on
    ATOLL_RETURN_IF_ERROR(on_line(text.substr(at, std::min(end, text.size()) - at), line));
    if (end == std::string_view::npos) break;
    at = end + 1;
  }
  return absl::OkStatus();
}

absl::Status InspectHead(const DataSpec& spec, const TextInput& input, const std::string& path,
                         std::string text, bool ended, Head* head) {
  std::vector<int32_t> ids;
  if (spec.format == DataFormat::kChat) {
    ChatEncoder encoder(input.tokenizer.get(), input.end_of_text);
    head->bytes += static_cast<int64_t>(text.size());
    ATOLL_RETURN_IF_ERROR(ForLines(text, ended, [&](std::string_view json, int64_t line) {
      const auto messages = ParseChat(json, path, line);
      return messages.ok() ? encoder.Encode(*messages, &ids) : messages.status();
    }));
    head->tokens += static_cast<int64_t>(ids.size());
    head->counted += std::count_if(ids.begin(), ids.end(), [](int32_t t) { return t >= 0; });
    return absl::OkStatus();
  }
  if (spec.format == DataFormat::kJsonl) {
    std::string texts;
    ATOLL_RETURN_IF_ERROR(ForLines(text, ended, [&](std::string_view json, int64_t line) {
      const auto found = JsonlText(json, spec.field, path, line);
      if (found.ok()) texts += found->value_or("");
      return found.status();
    }));
    text = std::move(texts);
  }
  head->bytes += static_cast<int64_t>(text.size());
  if (input.tokenizer == nullptr) {
    head->tokens += static_cast<int64_t>(text.size());
    return absl::OkStatus();
  }
  ATOLL_RETURN_IF_ERROR(Encoder(*input.tokenizer).Encode(text, &ids));
  head->tokens += static_cast<int64_t>(ids.size());
  return absl::OkStatus();
}

absl::Status CheckTokens(const DataSpec& spec, const std::string& path, int64_t tokens) {
  // Of a mixture the held-out parts count together.
  const bool is_split = path == spec.path && spec.validation_path.empty();
  const int64_t held_out = is_split ? HeldOut(tokens, spec.validation_fraction) : 0;
  if (tokens - held_out <= spec.sequence_length) {
    return absl::InvalidArgumentError(
        absl::StrCat("data path ", path, ": ", tokens - held_out, " tokens are less than one ",
                     "sequence of data.sequence_length = ", spec.sequence_length));
  }
  if (!is_split || spec.validation_fraction == 0 || held_out > spec.sequence_length) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("data path ", path, ": data.validation_fraction = ", spec.validation_fraction,
                   " holds out ", held_out, " of ", tokens, " tokens, less than one sequence of ",
                   "data.sequence_length = ", spec.sequence_length));
}

// Where the job names it: that the shards are of this tokenizer, which exports get.
absl::Status CheckTokenizer(const DataSpec& spec, const std::string& folder,
                            const Cancelled& cancelled) {
  if (spec.tokenizer_path.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const ShardIndex index, ReadShardIndex(folder, cancelled));
  ATOLL_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(spec.tokenizer_path));
  if (tokenizer->digest() == index.tokenizer_digest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data.tokenizer_path ", spec.tokenizer_path,
                                                 ": the shards of ", folder,
                                                 " were made with another tokenizer"));
}

absl::StatusOr<std::string> InspectText(const DataSpec& spec, const std::string& path,
                                        int64_t vocabulary) {
  ATOLL_ASSIGN_OR_RETURN(const TextInput input, OpenText(spec, path, vocabulary, {}));
  int64_t bytes = 0;
  Head head;
  bool whole = input.files.size() <= kHeadFiles;
  for (size_t i = 0; i < input.files.size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(const auto reader, TextReader::Open(input.files[i]));
    bytes += reader->file_bytes();
    if (i >= kHeadFiles) continue;
    std::string text;
    while (static_cast<int64_t>(text.size()) < kHeadBytes && !reader->ended()) {
      ATOLL_RETURN_IF_ERROR(reader->Read(kHeadBytes, &text));
    }
    whole = whole && reader->ended();
    ATOLL_RETURN_IF_ERROR(
        InspectHead(spec, input, input.files[i], std::move(text), reader->ended(), &head));
  }
  if (head.tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat("data path ", path, ": there is no text in it"));
  }
  if (whole) ATOLL_RETURN_IF_ERROR(CheckTokens(spec, path, head.tokens));
  const auto tokens = static_cast<double>(head.tokens);
  std::string said = absl::StrFormat("%d files of %s, %.2f bytes a token", input.files.size(),
                                     BytesText(bytes), static_cast<double>(head.bytes) / tokens);
  if (spec.format == DataFormat::kChat) {
    absl::StrAppendFormat(&said, ", template %s, %.0f%% of the tokens are of answers",
                          Name(FindChatTemplate(input.tokenizer.get())),
                          100 * static_cast<double>(head.counted) / tokens);
  }
  return said;
}

// Lists all, and reads some of them, spread evenly.
absl::StatusOr<std::string> InspectFolder(const DataSpec& spec, const std::string& path,
                                          int64_t classes) {
  ATOLL_ASSIGN_OR_RETURN(const ImageFolder folder,
                         CheckedImageFolder(path, spec.image_size, classes));
  const size_t tried = std::min(folder.files.size(), kHeadImages);
  std::vector<uint8_t> pixels(
      static_cast<size_t>(spec.image_size * spec.image_size * kImageChannels));
  for (size_t i = 0; i < tried; ++i) {
    const ImageFolder::File* const file = &folder.files[i * folder.files.size() / tried];
    ATOLL_RETURN_IF_ERROR(ReadImageFiles({file, 1}, spec.image_size, {}, pixels));
  }
  return absl::StrCat(folder.files.size(), " images of ", folder.classes.size(), " classes, made ",
                      spec.image_size, " x ", spec.image_size, " (", tried, " of them tried)");
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
  std::filesystem::path place = folder;
  if (place.filename() == "index.json") place = place.parent_path();
  TokenStream stream;
  stream.path_ = folder;
  stream.masked_ = index.masked;
  const DataFormat format = index.masked             ? DataFormat::kChat
                            : index.token_bits == 16 ? DataFormat::kTokens16
                                                     : DataFormat::kTokens32;
  for (const ShardIndex::Shard& shard : index.shards) {
    ATOLL_RETURN_IF_ERROR(stream.Add(format, (place / shard.file).string(), cancelled));
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
    return OpenShards(path, vocabulary, cancelled);
  }
  if (IsText(spec.format)) {
    ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> files, ExpandGlob(path, cancelled));
    ATOLL_ASSIGN_OR_RETURN(const bool direct, ReadsDirectly(spec, files, cancelled));
    if (!direct) {
      ATOLL_ASSIGN_OR_RETURN(const TextInput input, OpenText(spec, path, vocabulary, cancelled));
      ATOLL_ASSIGN_OR_RETURN(const std::string folder, TokenizeOnce(spec, input, options));
      ATOLL_ASSIGN_OR_RETURN(TokenStream stream, OpenShards(folder, vocabulary, cancelled));
      stream.path_ = path;
      return stream;
    }
  }
  TokenStream stream;
  stream.path_ = path;
  std::vector<std::string> files = {path};
  if (spec.format != DataFormat::kMegatron) {
    ATOLL_ASSIGN_OR_RETURN(files, ExpandGlob(path, cancelled));
  }
  for (const std::string& file : files) {
    ATOLL_RETURN_IF_ERROR(stream.Add(spec.format, file, cancelled));
  }
  return stream;
}

size_t TokenStream::FileOf(int64_t token) const {
  return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), token) -
                             begins_.begin() - 1);
}

absl::Status TokenStream::Prefetch(std::span<const int64_t> begins, int64_t count,
                                   const Cancelled& cancelled) const {
  std::vector<std::vector<TokenFile::Range>> ranges(files_.size());
  for (const int64_t first : begins) {
    const int64_t end = std::min(first + count, tokens());
    for (int64_t begin = first; begin < end;) {
      const size_t file = FileOf(begin);
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
  size_t file = FileOf(begin);
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
    ATOLL_ASSIGN_OR_RETURN(const TokenFileContent content, ContentOf(file, options));
    ATOLL_RETURN_IF_ERROR(file.CheckVocabulary(content, vocabulary));
    if (files_.size() == 1) return content.digest;
    digest = XXH3_64bits_withSeed(&content.digest, sizeof content.digest, digest);
  }
  return digest;
}

absl::StatusOr<std::string> InspectData(const DataSpec& spec, int64_t vocabulary) {
  const auto look = [&](const std::string& path) -> absl::StatusOr<std::string> {
    if (IsText(spec.format)) return InspectText(spec, path, vocabulary);
    if (spec.format == DataFormat::kImageFolder) return InspectFolder(spec, path, vocabulary);
    if (IsImages(spec.format)) {
      ATOLL_ASSIGN_OR_RETURN(const ImageSet images, ImageSet::Open(spec, path, vocabulary));
      const ImageShape& shape = images.shape();
      return absl::StrCat(images.images(), " images of ", shape.height, " x ", shape.width,
                          " with ", shape.channels, shape.channels == 1 ? " channel" : " channels");
    }
    ATOLL_ASSIGN_OR_RETURN(const TokenStream stream, TokenStream::Open(spec, path, vocabulary));
    ATOLL_RETURN_IF_ERROR(CheckTokens(spec, path, stream.tokens()));
    std::vector<int32_t> head(static_cast<size_t>(std::min(stream.tokens(), kHeadBytes)));
    ATOLL_RETURN_IF_ERROR(stream.Read(0, vocabulary, head));
    return absl::StrCat(stream.tokens(), " tokens");
  };
  const auto inspect = [&](const std::string& path) {
    absl::StatusOr<std::string> found = look(path);
    // The folder is here: what it lacks is an error.
    std::error_code error;
    if (absl::IsNotFound(found.status()) && std::filesystem::is_directory(path, error)) {
      found = absl::FailedPreconditionError(found.status().message());
    }
    return found;
  };
  std::vector<std::pair<std::string, std::string>> named;
  for (const DataSource& source : spec.sources) named.emplace_back(source.path, source.path);
  for (const SiteData& site : spec.sites) {
    named.emplace_back(site.site, site.path);
    if (!site.validation_path.empty()) {
      named.emplace_back(site.site + "'s validation", site.validation_path);
    }
  }
  for (const ValidationSet& set : spec.validation) {
    named.emplace_back(absl::StrCat("validation set ", set.name), set.path);
  }
  if (!spec.validation_path.empty()) named.emplace_back("validation", spec.validation_path);
  std::string text;
  if (!spec.path.empty()) {
    ATOLL_ASSIGN_OR_RETURN(text, inspect(spec.path));
  }
  for (const auto& [name, path] : named) {
    const auto found = inspect(path);
    if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
    absl::StrAppend(
        &text, text.empty() ? "" : "; ", name, ": ",
        found.ok() ? *found : absl::StrCat("not looked into: ", found.status().message()));
  }
  return text;
}

}  // namespace atl
