#include "common/jinja/jinja.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/jinja/evaluator.h"
#include "common/jinja/lexer.h"
#include "common/jinja/parser.h"
#include "common/status.h"
#include "common/utf8.h"

namespace atl::jinja {

absl::StatusOr<std::unique_ptr<const Template>> Template::Parse(std::string_view text) {
  if (text.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", text.size(), " bytes, and at most ", kMaxTemplateBytes, " are read"));
  }
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes({text.data(), text.size()}, at);
    if (bytes == 0) return absl::InvalidArgumentError(absl::StrCat("is not UTF-8 at byte ", at));
    at += bytes;
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Token> tokens, Tokenize(text));
  ATOLL_ASSIGN_OR_RETURN(Body body, jinja::Parse(tokens));
  std::vector<std::string> names;
  for (const Token& token : tokens) {
    if (token.kind == Token::Kind::kName) names.push_back(token.text);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return std::unique_ptr<const Template>(new Template(std::move(body), std::move(names)));
}

absl::StatusOr<std::string> Template::Render(const Variables& variables,
                                             const RenderOptions& options) const {
  return Evaluator(options).Run(body_, variables);
}

bool Template::Mentions(std::string_view name) const {
  return std::binary_search(names_.begin(), names_.end(), name);
}

}  // namespace atl::jinja
