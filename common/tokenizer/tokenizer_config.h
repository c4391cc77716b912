// Reads what lies beside a tokenizer for transformers: tokenizer_config.json,
// special_tokens_map.json and the chat template. Files are untrusted.

#ifndef ATOLL_COMMON_TOKENIZER_TOKENIZER_CONFIG_H_
#define ATOLL_COMMON_TOKENIZER_TOKENIZER_CONFIG_H_

#include <map>
#include <optional>
#include <string>

#include "common/status.h"

namespace atl {

struct TokenizerConfig {
  std::string path;  // of tokenizer_config.json, for messages; it may not be there
  std::string tokenizer_class;
  std::optional<bool> add_bos, add_eos;
  std::map<std::string, std::string> special_tokens;  // "eos_token" to "</s>"
  // Jinja, by name; "default" and often "tool_use". Empty: there is none.
  std::map<std::string, std::string> chat_templates;
  std::string chat_template_path;  // the file that has them

  // "" where there is none.
  std::string SpecialToken(const std::string& name) const;
};

// Reads the configuration of the tokenizer at `path`, a file or its folder. Missing files count as
// empty.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::string& path);

}  // namespace atl

#endif  // ATOLL_COMMON_TOKENIZER_TOKENIZER_CONFIG_H_
