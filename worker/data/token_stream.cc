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
#include "worker/data/token_cache.h"
#include "worker/data/tokenize.h"

namespace atl {
namespace {

// Changes whenever the same input would make other tokens.
constexpr uint64_t kTokenizeVersion = 5;
constexpr size_t kHeadImages = 64;
constexpr int64_t kSamples = 256, kRemoteSamples = 32;
constexpr int64_t kSplitTokens = 1 << 20;  // of documents, read at once
constexpr auto kSayEvery = std::chrono::seconds(5);

struct TextInput {
  std::vector<std::string> files;
  std::unique_ptr<const Tokenizer> tokenizer;  // null: bytes
  std::unique_ptr<const ChatFrame> chat;       // of conversations
  std::optional<int32_t> end_of_text;
  LeftOut left_out;
};

bool IsText(DataFormat format) {
  return format == DataFormat::kText || format == DataFormat::kJsonl || format == DataFormat::kChat;
}

absl::Status CheckVocabulary(int64_t model, const Tokenizer& tokenizer, const std::string& path) {
  const int64_t beyond = tokenizer.vocabulary() - model;
  if (beyond <= 0) return absl::OkStatus();
  const std::array<int32_t, 1> first = {static_cast<int32_t>(model)};
  ATOLL_ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(first, false));
  return absl::InvalidArgumentError(
      absl::StrCat("model.vocabulary = ", model, ": the tokenizer ", path, " has ",
                   CountText(beyond, "token"), " beyond it, the first is \"", text, "\" (token ",
                   model, "): use the model's own tokenizer, or leave them out of this one"));
}

absl::Status CheckVocabulary(int64_t model, int64_t tokens, const std::string& path) {
  if (tokens <= model) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model.vocabulary = ", model, ": the tokens of ",
                                                 path, " need at least ", tokens));
}

// 0: they are not padded.
int64_t DocumentTokensMax(const DataSpec& spec) {
  return spec.pad_documents ? spec.sequence_length - kFrameTokens : 0;
}

absl::Status FindTokenizer(const DataSpec& spec, int64_t vocabulary, TextInput* input) {
  ATOLL_ASSIGN_OR_RETURN(input->tokenizer, OpenTokenizer(spec.tokenizer_path));
  ATOLL_RETURN_IF_ERROR(CheckVocabulary(vocabulary, *input->tokenizer, spec.tokenizer_path));
  ATOLL_ASSIGN_OR_RETURN(input->end_of_text, EndOfText(*input->tokenizer, spec.tokenizer_path));
  return absl::OkStatus();
}

absl::StatusOr<TextInput> FindText(const DataSpec& spec, const std::string& path,
                                   int64_t vocabulary, const Cancelled& cancelled) {
  TextInput input;
  ATOLL_ASSIGN_OR_RETURN(input.files, ExpandGlob(path, cancelled, &input.left_out));
  const bool bytes = spec.tokenizer_path.empty();
  if (bytes) {
    if (spec.format != DataFormat::kText) input.end_of_text = '\n';
  } else {
    ATOLL_RETURN_IF_ERROR(FindTokenizer(spec, vocabulary, &input));
  }
  if (spec.format != DataFormat::kChat) return input;
  ATOLL_ASSIGN_OR_RETURN(input.chat, ChatFrame::Open({input.tokenizer.get(), spec.tokenizer_path,
                                                      input.end_of_text, spec.chat_date}));
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
      input.end_of_text.value_or(-1),
      IsPacked(spec)                     ? -2
      : spec.format == DataFormat::kChat ? spec.sequence_length
      : spec.pad_documents               ? -1
                                         : 0,
      spec.on_bad_document == OnBadDocument::kSkip ? 1 : 0,
      input.chat == nullptr ? 0 : static_cast<int64_t>(input.chat->digest())};
  key = XXH3_64bits_withSeed(facts, sizeof facts, key);
  for (const std::string& path : input.files) {
    ATOLL_ASSIGN_OR_RETURN(const TokenFile file,
                           TokenFile::Open(DataFormat::kText, path, options.watch.cancelled));
    ATOLL_ASSIGN_OR_RETURN(const TokenFileContent content, GetTokenFileContent(file, options));
    key = XXH3_64bits_withSeed(&content.digest, sizeof content.digest, key);
  }
  return key;
}

TokenizeOptions OptionsFor(const DataSpec& spec, const TextInput& input) {
  TokenizeOptions options;
  options.files = input.files;
  options.jsonl = spec.format != DataFormat::kText;
  if (spec.format == DataFormat::kChat) options.chat_sequence_length = spec.sequence_length;
  options.document_tokens_max = DocumentTokensMax(spec);
  options.mark_documents = IsPacked(spec);
  options.field = spec.field;
  options.skip_bad_documents = spec.on_bad_document == OnBadDocument::kSkip;
  options.tokenizer = input.tokenizer.get();
  options.end_of_text = input.end_of_text;
  options.chat = input.chat.get();
  return options;
}

// The folder of shards that hold the text's tokens: from the cache, else made now.
absl::StatusOr<std::string> TokenizeOnce(const DataSpec& spec, const TextInput& input,
                                         const DataOptions& data) {
  ATOLL_ASSIGN_OR_RETURN(const uint64_t key, CacheKey(spec, input, data));
  ATOLL_ASSIGN_OR_RETURN(const int64_t bytes_max, DataCacheBytes());
  TokenizeOptions options = OptionsFor(spec, input);
  options.threads = ReadMachineLimits().cpus;
  options.cancelled = data.watch.cancelled;
  return TokenCache(DataCacheFolder(), bytes_max).GetOrMake(key, [&](const std::string& folder) {
    return Tokenize(options, folder).status();
  });
}

// One of the paths of a job's data, and what a worker takes from it.
struct DataPart {
  std::string name;  // "" of the only one
  std::string path;
  double held_out = 0;     // a share of it
  bool is_source = false;  // of a mixture, whose held-out parts count together
};

// The sequences that a worker packs these documents into, which have so many tokens.
// INVALID_ARGUMENT: there are none to train on, or to validate with.
absl::StatusOr<std::string> PackedText(const DataSpec& spec, const DataPart& part,
                                       std::span<const Document> documents) {
  DocumentPacker packer(spec.sequence_length + 1);
  std::vector<DocumentPacker::Sequence> packed;
  int64_t tokens = 0;
  for (const Document& document : documents) {
    packer.Add(document, &packed);
    tokens += document.tokens;
  }
  packer.End(&packed);
  const int64_t sequences = std::ssize(packed), held_out = HeldOut(sequences, part.held_out);
  const bool lacks_held_out = part.held_out > 0 && !part.is_source && held_out == 0;
  if (sequences - held_out == 0 || lacks_held_out) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", part.path, ": ", CountText(std::ssize(documents), "document"), " with ",
        CountText(tokens, "token"), " fill ", CountText(sequences, "sequence"), " of data.",
        "sequence_length = ", spec.sequence_length, ", and data.validation_fraction = ",
        part.held_out, " leaves none to ", lacks_held_out ? "validate with" : "train on",
        ": use more data, shorter sequences or another fraction"));
  }
  return absl::StrCat(CountText(tokens, "token"), ", ",
                      CountText(std::ssize(documents), "document"), " in ",
                      CountText(sequences - held_out, "sequence"),
                      held_out > 0 ? absl::StrCat(" and ", held_out, " held out") : "");
}

// The sequences that a worker makes of so many tokens. INVALID_ARGUMENT: there are none.
absl::StatusOr<std::string> SequencesText(const DataSpec& spec, const DataPart& part,
                                          int64_t tokens) {
  const int64_t held_out = HeldOut(tokens, part.held_out);
  const int64_t sequences = SequencesIn(tokens - held_out, spec.sequence_length);
  const int64_t held_out_sequences = SequencesIn(held_out, spec.sequence_length);
  if (sequences == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", part.path, ": ", CountText(tokens - held_out, "token"),
        " to train on, less than one sequence of data.sequence_length = ", spec.sequence_length,
        " and its last target: use more data, a smaller data.sequence_length or another data.",
        "validation_fraction"));
  }
  if (part.held_out > 0 && !part.is_source && held_out_sequences == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data path ", part.path, ": data.validation_fraction = ", part.held_out,
                     " holds out ", held_out, " of ", CountText(tokens, "token"),
                     ", less than one sequence of data.sequence_length = ", spec.sequence_length));
  }
  return absl::StrCat(CountText(tokens, "token"), ", ", CountText(sequences, "sequence"),
                      held_out > 0 ? absl::StrCat(" and ", held_out_sequences, " held out") : "");
}

// The same of documents that are padded, some of which are cut.
absl::StatusOr<std::string> DocumentsText(const DataSpec& spec, const DataPart& part,
                                          int64_t documents, int64_t cut) {
  const int64_t held_out = HeldOut(documents, part.held_out);
  const bool lacks_held_out = part.held_out > 0 && !part.is_source && held_out == 0;
  if (documents - held_out == 0 || lacks_held_out) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", part.path, ": ", CountText(documents, "document"), " with data.",
        "validation_fraction = ", part.held_out, " leave none to ",
        lacks_held_out ? "validate with" : "train on", ": use more data or another fraction"));
  }
  return absl::StrCat(CountText(documents - held_out, "document"),
                      held_out > 0 ? absl::StrCat(" and ", held_out, " held out") : "", ", ", cut,
                      " of them cut at ", CountText(DocumentTokensMax(spec), "token"));
}

// Adds what is known of the documents of a part that was read to its end, or not.
absl::Status AddDocumentsText(const DataSpec& spec, const DataPart& part, bool whole,
                              int64_t documents, int64_t cut, DataInspection* found) {
  if (!whole) {
    absl::StrAppend(&found->text, cut, " of the first ", CountText(documents, "document"),
                    " cut at ", CountText(DocumentTokensMax(spec), "token"));
    return absl::OkStatus();
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string text, DocumentsText(spec, part, documents, cut));
  found->text += text;
  return absl::OkStatus();
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

void WarnOfLeftOut(const std::string& path, const LeftOut& left_out, DataInspection* found) {
  const std::string text = left_out.Text();
  if (!text.empty()) found->warnings.push_back(absl::StrCat("data path ", path, ": ", text));
}

absl::Status InspectText(const DataSpec& spec, const DataPart& part, int64_t vocabulary,
                         const InspectionDepth& depth, DataInspection* found) {
  ATOLL_ASSIGN_OR_RETURN(const TextInput input, FindText(spec, part.path, vocabulary, {}));
  WarnOfLeftOut(part.path, input.left_out, found);
  ATOLL_ASSIGN_OR_RETURN(const TextHeads heads,
                         TokenizeHeads(OptionsFor(spec, input), depth.head_bytes));
  const std::string skipped = heads.skipped.count > 0 ? SkippedText(heads.skipped) : "";
  if (heads.text_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", part.path, ": there is no text in it", skipped.empty() ? "" : "; ", skipped));
  }
  if (!skipped.empty()) {
    found->warnings.push_back(absl::StrCat("data path ", part.path, ": ", skipped));
  }
  found->warnings.insert(found->warnings.end(), heads.warnings.begin(), heads.warnings.end());
  ATOLL_ASSIGN_OR_RETURN(const bool direct, ReadsDirectly(spec, input.files, {}));
  absl::StrAppend(&found->text, CountText(std::ssize(input.files), "file"), " of ",
                  BytesText(heads.file_bytes));
  const bool whole = heads.unread.empty();
  if (spec.pad_documents) {
    found->text += ", ";
    ATOLL_RETURN_IF_ERROR(
        AddDocumentsText(spec, part, whole, heads.documents, heads.documents_cut, found));
    found->unread.insert(found->unread.end(), heads.unread.begin(), heads.unread.end());
  } else if (whole && IsPacked(spec)) {
    ATOLL_ASSIGN_OR_RETURN(const std::string packed, PackedText(spec, part, heads.packed));
    absl::StrAppend(&found->text, ", ", packed);
  } else if (direct || whole) {
    const int64_t tokens = direct ? heads.file_bytes : heads.tokens + heads.filler;
    ATOLL_ASSIGN_OR_RETURN(const std::string sequences, SequencesText(spec, part, tokens));
    absl::StrAppend(&found->text, ", ", sequences);
  } else {
    found->unread.insert(found->unread.end(), heads.unread.begin(), heads.unread.end());
  }
  const auto tokens = static_cast<double>(heads.tokens);
  absl::StrAppendFormat(&found->text, ", %.2f bytes a token",
                        static_cast<double>(heads.text_bytes) / tokens);
  if (spec.format == DataFormat::kChat) {
    absl::StrAppendFormat(&found->text, ", template %s, %.0f%% of the tokens are of answers",
                          input.chat->name(), 100 * static_cast<double>(heads.counted) / tokens);
    if (!input.chat->warning().empty()) found->warnings.push_back(input.chat->warning());
  }
  if (input.tokenizer != nullptr && !input.tokenizer->warning().empty()) {
    found->warnings.push_back(input.tokenizer->warning());
  }
  return absl::OkStatus();
}

absl::Status CheckImageKind(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const auto file, OpenDataFile(path));
  ATOLL_ASSIGN_OR_RETURN(const std::string head, ReadFileHead(*file));
  return CheckFileKind(absl::StrCat("data file ", path), head, "a JPEG or PNG",
                       {FileKind::kJpeg, FileKind::kPng});
}

// Lists all, reads some of them, spread evenly, and the first bytes of more.
absl::Status InspectFolder(const DataSpec& spec, const std::string& path, int64_t classes,
                           DataInspection* found) {
  ATOLL_ASSIGN_OR_RETURN(const ImageFolder folder,
                         CheckedImageFolder(path, spec.image_size, classes));
  WarnOfLeftOut(path, folder.left_out, found);
  const size_t tried = std::min(folder.files.size(), kHeadImages);
  std::vector<uint8_t> pixels(
      static_cast<size_t>(spec.image_size * spec.image_size * kImageChannels));
  Problems problems;
  const size_t looked_at = IsRemotePath(path) ? 0 : std::min(folder.files.size(), kHeadFiles);
  for (size_t i = 0; i < looked_at; ++i) {
    const ImageFolder::File& file = folder.files[i * folder.files.size() / looked_at];
    ATOLL_RETURN_IF_ERROR(problems.Take(CheckImageKind(file.path)));
  }
  ATOLL_RETURN_IF_ERROR(problems.Status(std::ssize(folder.files)));
  for (size_t i = 0; i < tried; ++i) {
    const ImageFolder::File* const file = &folder.files[i * folder.files.size() / tried];
    ATOLL_RETURN_IF_ERROR(problems.Take(ReadImageFiles({file, 1}, spec.image_size, {}, pixels)));
  }
  ATOLL_RETURN_IF_ERROR(problems.Status(std::ssize(folder.files)));
  absl::StrAppend(&found->text, CountText(std::ssize(folder.files), "image"), " of ",
                  CountText(std::ssize(folder.classes), "class"), ", made ", spec.image_size, " x ",
                  spec.image_size, " (", tried, " of them tried)");
  if (tried < folder.files.size()) {
    found->unread.push_back(absl::StrCat(
        CountText(static_cast<int64_t>(folder.files.size() - tried), "image"), " of ", path));
  }
  return absl::OkStatus();
}

absl::Status InspectPart(const DataSpec& spec, const DataPart& part, int64_t vocabulary,
                         const std::optional<ImageShape>& model, const DataOptions& options,
                         const InspectionDepth& depth, DataInspection* found) {
  if (IsText(spec.format)) return InspectText(spec, part, vocabulary, depth, found);
  if (spec.format == DataFormat::kImageFolder) {
    return InspectFolder(spec, part.path, vocabulary, found);
  }
  if (IsImages(spec.format)) {
    ATOLL_ASSIGN_OR_RETURN(const ImageSet images, ImageSet::Open(spec, part.path, vocabulary));
    const ImageShape& shape = images.shape();
    if (model.has_value()) ATOLL_RETURN_IF_ERROR(CheckImageShape(shape, *model));
    absl::StrAppend(&found->text, CountText(images.images(), "image"), " of ", shape.height, " x ",
                    shape.width, " with ", CountText(shape.channels, "channel"));
    return absl::OkStatus();
  }
  ATOLL_ASSIGN_OR_RETURN(const TokenStream stream,
                         TokenStream::Open(spec, part.path, vocabulary, options));
  if (spec.format != DataFormat::kShards) {
    const int64_t samples = IsRemotePath(part.path) ? kRemoteSamples : kSamples;
    ATOLL_RETURN_IF_ERROR(stream.CheckSamples(vocabulary, samples, {}, &found->warnings));
  }
  std::vector<int32_t> head(static_cast<size_t>(std::min(stream.tokens(), depth.head_bytes)));
  ATOLL_RETURN_IF_ERROR(stream.Read(0, vocabulary, head));
  const bool whole = std::ssize(head) == stream.tokens();
  if (spec.pad_documents) {
    DocumentSplitter splitter(stream.marks());
    std::vector<Document> documents;
    splitter.Add(head, &documents);
    if (whole) splitter.End(&documents);
    ATOLL_RETURN_IF_ERROR(AddDocumentsText(spec, part, whole, std::ssize(documents),
                                           CountLonger(documents, DocumentTokensMax(spec)), found));
  } else if (IsPacked(spec)) {
    if (whole) {
      DocumentSplitter splitter(stream.marks());
      std::vector<Document> documents;
      splitter.Add(head, &documents);
      splitter.End(&documents);
      ATOLL_ASSIGN_OR_RETURN(const std::string packed, PackedText(spec, part, documents));
      found->text += packed;
    } else {
      found->text += CountText(stream.tokens(), "token");
    }
  } else {
    ATOLL_ASSIGN_OR_RETURN(const std::string sequences, SequencesText(spec, part, stream.tokens()));
    found->text += sequences;
  }
  if (!whole) {
    found->unread.push_back(
        absl::StrCat(part.path, " after its first ", CountText(std::ssize(head), "token")));
  }
  return absl::OkStatus();
}

// Returns whether the data may be where they are wanted, though not for this machine.
bool IsElsewhere(const absl::Status& status, const std::string& path) {
  if (absl::IsNotFound(status)) {
    const auto found = FindPath(path);
    return found.ok() && !*found;
  }
  // A web server refuses every machine, a store those without its keys.
  const bool refused = absl::IsPermissionDenied(status) && !absl::StartsWith(path, "http");
  return IsRemotePath(path) &&
         (absl::IsUnavailable(status) || absl::IsUnauthenticated(status) || refused);
}

std::vector<DataPart> ListDataParts(const DataSpec& spec) {
  const double held_out = spec.validation_path.empty() ? spec.validation_fraction : 0;
  std::vector<DataPart> parts;
  if (!spec.path.empty()) parts.push_back({"", spec.path, held_out});
  for (const DataSource& source : spec.sources) {
    parts.push_back({source.path, source.path, held_out, /*is_source=*/true});
  }
  for (const SiteData& site : spec.sites) {
    const bool is_split = site.validation_path.empty();
    parts.push_back({site.site, site.path, is_split ? spec.validation_fraction : 0});
    if (!is_split) parts.push_back({site.site + "'s validation", site.validation_path});
  }
  for (const ValidationSet& set : spec.validation) {
    parts.push_back({absl::StrCat("validation set ", set.name), set.path});
  }
  if (!spec.validation_path.empty()) parts.push_back({"validation", spec.validation_path});
  return parts;
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

absl::StatusOr<DataInspection> InspectData(const DataSpec& spec, int64_t vocabulary,
                                           const std::optional<ImageShape>& images,
                                           const std::optional<DocumentFrame>& frame,
                                           const InspectionDepth& depth) {
  DataInspection found;
  DataOptions options;
  options.frame = frame;
  for (const DataPart& part : ListDataParts(spec)) {
    absl::StrAppend(&found.text, found.text.empty() ? "" : "; ", part.name,
                    part.name.empty() ? "" : ": ");
    if (!depth.remote && IsRemotePath(part.path)) {
      found.unread.push_back(part.path);
      continue;
    }
    bool lacks_tokenizer = false;
    if (!spec.tokenizer_path.empty() && !IsHubPath(spec.tokenizer_path)) {
      ATOLL_ASSIGN_OR_RETURN(const auto tokenizer, FindPath(spec.tokenizer_path));
      lacks_tokenizer = !tokenizer;
    }
    const std::string& missing = lacks_tokenizer ? spec.tokenizer_path : part.path;
    const absl::Status status = InspectPart(spec, part, vocabulary, images, options, depth, &found);
    if (status.ok()) continue;
    if (!IsElsewhere(status, missing)) return status;
    absl::StrAppend(&found.text, "not looked at: ", status.message());
    found.unread.push_back(part.path);
    found.missing.push_back(missing);
  }
  return found;
}

}  // namespace atl
