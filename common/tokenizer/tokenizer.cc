#include "common/tokenizer/tokenizer.h"

#include <xxhash.h>

#include <filesystem>
#include <utility>

#include "common/check.h"
#include "common/file_kind.h"
#include "common/files.h"
#include "common/object_store/hub.h"
#include "common/paths.h"
#include "common/status.h"
#include "common/tokenizer/unicode.h"

namespace atl {
namespace {

// Gemma's 262,144 tokens take 33 MB.
constexpr int64_t kMaxFileBytes = int64_t{512} << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const auto file = InputFile::Open(path);
  const auto text = file.ok() ? file->ReadAll(kMaxFileBytes) : file.status();
  if (!text.ok()) return Annotate(text.status(), "tokenizer");
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> OpenTokenizer(const std::string& path) {
  auto local = FetchFromHub(path, HubFiles::kTokenizer);
  if (!local.ok()) return Annotate(local.status(), "tokenizer");
  std::string file = *local;
  ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(file));
  if (found && found->is_folder) {
    const std::filesystem::path folder = file;
    ATOLL_ASSIGN_OR_RETURN(const auto json, FindPath((folder / "tokenizer.json").string()));
    file = (folder / (json ? "tokenizer.json" : "tokenizer.model")).string();
    ATOLL_ASSIGN_OR_RETURN(const auto there, FindPath(file));
    if (!there) {
      return absl::NotFoundError(
          absl::StrCat("tokenizer ", path, ": has neither a tokenizer.json nor a tokenizer.model"));
    }
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  ATOLL_RETURN_IF_ERROR(CheckFileKind(absl::StrCat("tokenizer ", file), text,
                                      "a tokenizer.json or SentencePiece model"));
  ATOLL_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(file));
  if (std::filesystem::path(file).extension() == ".model") {
    return ParseSentencePiece(text, file, config);
  }
  return ParseTokenizerJson(text, file, std::nullopt, config);
}

absl::Status Encoder::Encode(std::string_view text, std::vector<int32_t>* out, bool continues) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a text of ", text.size(),
                                                   " bytes is longer than ", kMaxTextBytes,
                                                   "; cut it into documents"));
  }
  if (!tokenizer::IsWellFormed(text)) {
    return tokenizer_.Append(tokenizer::Repaired(text), continues, &scratch_, out);
  }
  return tokenizer_.Append(text, continues, &scratch_, out);
}

absl::Status Encoder::EncodeFramed(std::string_view text, std::vector<int32_t>* out) {
  out->insert(out->end(), tokenizer_.before().begin(), tokenizer_.before().end());
  ATOLL_RETURN_IF_ERROR(Encode(text, out));
  out->insert(out->end(), tokenizer_.after().begin(), tokenizer_.after().end());
  return absl::OkStatus();
}

}  // namespace atl
