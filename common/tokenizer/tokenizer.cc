#include "common/tokenizer/tokenizer.h"

#include <xxhash.h>

#include <filesystem>
#include <utility>

#include "common/check.h"
#include "common/files.h"
#include "common/git_lfs.h"
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
  ATOLL_RETURN_IF_ERROR(Annotate(CheckNoLfsPointer(*text, path), "tokenizer"));
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> OpenTokenizer(const std::string& path) {
  std::string file = path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    const std::filesystem::path folder = path;
    const bool json = std::filesystem::exists(folder / "tokenizer.json", error);
    file = (folder / (json ? "tokenizer.json" : "tokenizer.model")).string();
    if (!std::filesystem::exists(file, error)) {
      return absl::NotFoundError(
          absl::StrCat("tokenizer ", path, ": has neither a tokenizer.json nor a tokenizer.model"));
    }
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
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
