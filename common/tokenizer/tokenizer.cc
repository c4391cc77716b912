#include "common/tokenizer/tokenizer.h"

#include <xxhash.h>

#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

// The command by which transformers writes a tokenizer.json of what a folder has.
std::string HowToConvert(const std::string& folder) {
  return absl::StrCat("make a tokenizer.json of it: python3 -c \"import transformers as t; t.",
                      "AutoTokenizer.from_pretrained('", folder, "').save_pretrained('", folder,
                      "')\"");
}

// Describes what a folder has in place of the two files.
absl::Status NoTokenizer(const std::string& folder) {
  std::string others;
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names, RealFiles().List(folder));
  for (const std::string& name : names) {
    for (const char* end : {".model", ".tiktoken", ".spm", "tekken.json", "vocab.json", "vocab.txt",
                            "merges.txt", "tokenizer.model.v3"}) {
      if (!absl::EndsWith(name, end)) continue;
      absl::StrAppend(&others, others.empty() ? ", but " : ", ", name);
      break;
    }
  }
  const std::string problem = absl::StrCat(
      "tokenizer ", folder, ": has neither a tokenizer.json nor a tokenizer.model", others);
  if (others.empty()) return absl::NotFoundError(problem);  // a model of bytes may have none
  return absl::InvalidArgumentError(absl::StrCat(problem, ": ", HowToConvert(folder),
                                                 "; a SentencePiece model may be named itself"));
}

// A line of a tiktoken file: a token in base64, and its rank.
bool IsTiktoken(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  const size_t space = line.find(' ');
  std::string token;
  int64_t rank = 0;
  return line.size() < 1024 && space != std::string_view::npos && space > 0 &&
         absl::Base64Unescape({line.data(), space}, &token) &&
         absl::SimpleAtoi(absl::string_view(line.data(), line.size()).substr(space + 1), &rank);
}

bool IsJson(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
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
    if (!there) return NoTokenizer(*local);
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  const std::string what = absl::StrCat("tokenizer ", file);
  ATOLL_RETURN_IF_ERROR(CheckFileKind(what, text, "a tokenizer.json or SentencePiece model"));
  ATOLL_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(file));
  if (IsJson(text)) return ParseTokenizerJson(text, file, std::nullopt, config);
  if (IsTiktoken(text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": is a tiktoken file, which has no pattern that cuts texts into words: ",
        HowToConvert(std::filesystem::path(file).parent_path().string())));
  }
  const bool is_model = std::filesystem::path(file).extension() == ".model";
  if (!is_model && tokenizer::IsWellFormed(text) && text.find('\0') == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, text.empty() ? ": is empty"
                                        : ": is a text, neither a tokenizer.json nor a "
                                          "SentencePiece model"));
  }
  return ParseSentencePiece(text, file, config);
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

absl::StatusOr<std::optional<int32_t>> EndOfText(const Tokenizer& tokenizer,
                                                 const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(path));
  if (const std::string token = config.SpecialToken("eos_token"); !token.empty()) {
    const auto id = tokenizer.TokenId(token);
    if (id.has_value()) return id;
    return absl::InvalidArgumentError(
        absl::StrCat(config.path, ": eos_token \"", token, "\" is not a token of the tokenizer"));
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"}) {
    if (const auto id = tokenizer.TokenId(name); id.has_value()) return id;
  }
  return std::nullopt;
}

}  // namespace atl
