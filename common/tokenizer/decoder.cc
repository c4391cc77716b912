#include "common/tokenizer/decoder.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/unicode.h"

namespace atl::tokenizer {
namespace {

using Tokens = std::vector<std::string>;

// One that always works.
template <typename Function>
Decoder Make(Function function) {
  return [function = std::move(function)](Tokens* tokens) {
    function(tokens);
    return absl::OkStatus();
  };
}

void Fuse(Tokens* tokens) { *tokens = {absl::StrJoin(*tokens, "")}; }

void DecodeByteLevel(Tokens* tokens) {
  std::string bytes;
  for (const std::string& token : *tokens) {
    bytes += BytesFromByteLevel(token).value_or(token);
  }
  *tokens = {Repaired(bytes)};
}

// The byte that "<0xAB>" stands for.
std::optional<char> FallbackByte(const std::string& token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = 16 * value + digit;
  }
  return static_cast<char>(value);
}

void DecodeByteFallback(Tokens* tokens) {
  Tokens result;
  std::string bytes;
  const auto flush = [&] {
    if (IsWellFormed(bytes)) {
      if (!bytes.empty()) result.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) result.emplace_back("\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (std::string& token : *tokens) {
    if (const auto byte = FallbackByte(token); byte.has_value()) {
      bytes += *byte;
    } else {
      flush();
      result.push_back(std::move(token));
    }
  }
  flush();
  *tokens = std::move(result);
}

std::string CleanedUp(const std::string& text) {
  return absl::StrReplaceAll(text, {{" .", "."},
                                    {" ?", "?"},
                                    {" !", "!"},
                                    {" ,", ","},
                                    {" ' ", "'"},
                                    {" n't", "n't"},
                                    {" 'm", "'m"},
                                    {" do not", " don't"},
                                    {" 's", "'s"},
                                    {" 've", "'ve"},
                                    {" 're", "'re"}});
}

absl::StatusOr<Decoder> ParseWordPiece(const Json& json, const std::string& where) {
  ATOLL_ASSIGN_OR_RETURN(const std::string prefix, StringField(json, "prefix", where, "##"));
  ATOLL_ASSIGN_OR_RETURN(const bool cleanup, BoolField(json, "cleanup", where, true));
  return Make([prefix, cleanup](Tokens* tokens) {
    for (size_t i = 0; i < tokens->size(); ++i) {
      std::string& token = (*tokens)[i];
      if (i > 0) {
        token = absl::StartsWith(token, prefix) ? token.substr(prefix.size())
                                                : absl::StrCat(" ", token);
      }
      if (cleanup) token = CleanedUp(token);
    }
  });
}

absl::StatusOr<Decoder> ParseMetaspace(const Json& json, const std::string& where) {
  ATOLL_ASSIGN_OR_RETURN(const std::string replacement,
                         TextField(json, "replacement", where, "\xe2\x96\x81"));
  ATOLL_ASSIGN_OR_RETURN(const bool add, BoolField(json, "add_prefix_space", where, true));
  ATOLL_ASSIGN_OR_RETURN(const std::string scheme,
                         StringField(json, "prepend_scheme", where, add ? "always" : "never"));
  return Make([replacement, prepended = scheme != "never"](Tokens* tokens) {
    for (size_t i = 0; i < tokens->size(); ++i) {
      absl::string_view token = (*tokens)[i];
      if (i == 0 && prepended) absl::ConsumePrefix(&token, replacement);
      (*tokens)[i] = absl::StrReplaceAll(token, {{replacement, " "}});
    }
  });
}

absl::StatusOr<Decoder> ParseStrip(const Json& json, const std::string& where) {
  ATOLL_ASSIGN_OR_RETURN(const std::string content, TextField(json, "content", where, " "));
  ATOLL_ASSIGN_OR_RETURN(const int64_t start, IntField(json, "start", where, 0, 0, 1 << 20));
  ATOLL_ASSIGN_OR_RETURN(const int64_t stop, IntField(json, "stop", where, 0, 0, 1 << 20));
  return Make([content, start, stop](Tokens* tokens) {
    for (std::string& token : *tokens) {
      absl::string_view text = token;
      for (int64_t i = 0; i < start && absl::ConsumePrefix(&text, content); ++i) {
      }
      for (int64_t i = 0; i < stop && absl::ConsumeSuffix(&text, content); ++i) {
      }
      token = std::string(text);
    }
  });
}

absl::StatusOr<Decoder> ParseReplace(const Json& json, const std::string& where) {
  ATOLL_ASSIGN_OR_RETURN(const std::string content, StringField(json, "content", where));
  ATOLL_ASSIGN_OR_RETURN(Regex regex, ParsePattern(json, where));
  auto shared = std::make_shared<const Regex>(std::move(regex));
  return [shared, content](Tokens* tokens) -> absl::Status {
    for (std::string& token : *tokens) {
      ATOLL_ASSIGN_OR_RETURN(token, Replaced(*shared, token, content));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<Decoder> ParseSequence(const Json& json, const std::string& where, int depth) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Json> list, ListField(json, "decoders", where));
  std::vector<Decoder> steps;
  for (size_t i = 0; i < list.size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(steps.emplace_back(),
                           ParseDecoder(list[i], absl::StrCat(where, "[", i, "]"), depth + 1));
  }
  return [steps](Tokens* tokens) -> absl::Status {
    for (const Decoder& step : steps) ATOLL_RETURN_IF_ERROR(step(tokens));
    return absl::OkStatus();
  };
}

}  // namespace

absl::StatusOr<Decoder> ParseDecoder(const Json& json, const std::string& where, int depth) {
  if (depth > kMaxDepth) return Bad(where, "is nested too deeply");
  if (json.is_null()) {
    return Make([](Tokens* tokens) { *tokens = {absl::StrJoin(*tokens, " ")}; });
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string type, StringField(json, "type", where));
  if (type == "ByteLevel") return Make(DecodeByteLevel);
  if (type == "ByteFallback") return Make(DecodeByteFallback);
  if (type == "Fuse") return Make(Fuse);
  if (type == "WordPiece") return ParseWordPiece(json, where);
  if (type == "Metaspace") return ParseMetaspace(json, where);
  if (type == "Strip") return ParseStrip(json, where);
  if (type == "Replace") return ParseReplace(json, where);
  if (type == "Sequence") return ParseSequence(json, where, depth);
  if (type == "BPEDecoder") {
    ATOLL_ASSIGN_OR_RETURN(const std::string suffix, TextField(json, "suffix", where, "</w>"));
    return Make([suffix](Tokens* tokens) {
      for (size_t i = 0; i < tokens->size(); ++i) {
        const char* end = i + 1 < tokens->size() ? " " : "";
        (*tokens)[i] = absl::StrReplaceAll((*tokens)[i], {{suffix, end}});
      }
    });
  }
  return Unsupported(where, type);
}

}  // namespace atl::tokenizer
