#include "worker/data/text_input.h"

#include <xxhash.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "common/machine/limits.h"
#include "common/plural.h"
#include "worker/data/block_cache.h"
#include "worker/data/documents.h"
#include "worker/data/token_cache.h"
#include "worker/data/token_file.h"

namespace atl {
namespace {

// Changes whenever the same input would make other tokens.
constexpr uint64_t kTokenizeVersion = 5;

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

absl::Status FindTokenizer(const DataSpec& spec, int64_t vocabulary, TextInput* input) {
  ATOLL_ASSIGN_OR_RETURN(input->tokenizer, OpenTokenizer(spec.tokenizer_path));
  ATOLL_RETURN_IF_ERROR(CheckVocabulary(vocabulary, *input->tokenizer, spec.tokenizer_path));
  ATOLL_ASSIGN_OR_RETURN(input->end_of_text, EndOfText(*input->tokenizer, spec.tokenizer_path));
  return absl::OkStatus();
}

// Two inputs with the same key make the same tokens.
absl::StatusOr<uint64_t> CacheKey(const DataSpec& spec, const TextInput& input,
                                  const DataOptions& options) {
  uint64_t key = XXH3_64bits_withSeed(spec.field.data(), spec.field.size(), kTokenizeVersion);
  const bool is_pairs = spec.documents == Documents::kPairs;
  const int64_t facts[] = {
      static_cast<int64_t>(spec.format),
      input.tokenizer == nullptr ? 0 : static_cast<int64_t>(input.tokenizer->digest()),
      input.end_of_text.value_or(-1),
      is_pairs                           ? -2 - spec.sequence_length
      : IsPacked(spec)                   ? -2
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

}  // namespace

bool IsText(DataFormat format) {
  return format == DataFormat::kText || format == DataFormat::kJsonl || format == DataFormat::kChat;
}

int64_t DocumentTokensMax(const DataSpec& spec) {
  return spec.pad_documents ? spec.sequence_length - kFrameTokens : 0;
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

absl::StatusOr<bool> ReadsDirectly(const DataSpec& spec, const std::vector<std::string>& files,
                                   const Cancelled& cancelled) {
  if (spec.format != DataFormat::kText || !spec.tokenizer_path.empty()) return false;
  for (const std::string& file : files) {
    ATOLL_ASSIGN_OR_RETURN(const bool compressed, IsCompressed(file, cancelled));
    if (compressed) return false;
  }
  return true;
}

TokenizeOptions OptionsFor(const DataSpec& spec, const TextInput& input) {
  TokenizeOptions options;
  options.files = input.files;
  options.jsonl = spec.format != DataFormat::kText;
  if (spec.format == DataFormat::kChat) options.chat_sequence_length = spec.sequence_length;
  options.document_tokens_max = DocumentTokensMax(spec);
  options.mark_documents = IsPacked(spec);
  if (spec.documents == Documents::kPairs) options.pair_tokens_max = spec.sequence_length + 1;
  options.field = spec.field;
  options.skip_bad_documents = spec.on_bad_document == OnBadDocument::kSkip;
  options.tokenizer = input.tokenizer.get();
  options.end_of_text = input.end_of_text;
  options.chat = input.chat.get();
  return options;
}

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

}  // namespace atl
