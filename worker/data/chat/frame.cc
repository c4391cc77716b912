#include "worker/data/chat/frame.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "common/masked_tokens.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr char kDefault[] = "default";
constexpr char kToolUse[] = "tool_use";

uint64_t Digest(const std::string& text, uint64_t before) {
  return XXH3_64bits_withSeed(text.data(), text.size(), before);
}

// Returns whether the tokenizer finds the token in text: it finds no control token of
// SentencePiece.
bool FindsToken(const Tokenizer& tokenizer, const std::string& token) {
  const auto id = tokenizer.TokenId(token);
  std::vector<int32_t> ids;
  return id.has_value() && Encoder(tokenizer).Encode(token, &ids).ok() &&
         std::find(ids.begin(), ids.end(), *id) != ids.end();
}

// A field of a message that a template may show beside its content.
struct ShownField {
  const char* name;
  bool of_answers;  // of those that are learnt: earlier thoughts may be left out
};
constexpr ShownField kShownFields[] = {{"tool_calls", false},       {"function_call", false},
                                       {"channel", false},          {"recipient", false},
                                       {"reasoning_content", true}, {"reasoning", true},
                                       {"reasoning_details", true}, {"thinking", true}};

// Returns whether the message has a text, a list or an object under the name.
bool HasField(const ChatMessage& message, const char* name) {
  const auto found = message.fields.find(name);
  if (found == message.fields.end()) return false;
  return found->is_string() ? !found->get_ref<const std::string&>().empty()
                            : found->is_structured() && !found->empty();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatFrame>> ChatFrame::Open(const ChatOptions& options) {
  auto frame = std::make_unique<ChatFrame>();
  frame->options_ = options;
  if (options.tokenizer == nullptr) return frame;
  ATOLL_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(options.tokenizer_path));
  for (const auto& [name, text] : config.special_tokens) {
    frame->special_tokens_.emplace_back(name, jinja::Value(text));
    frame->digest_ = Digest(name + text, frame->digest_);
  }
  ATOLL_RETURN_IF_ERROR(Annotate(frame->ReadTemplates(config),
                                 absl::StrCat("chat template of ", config.chat_template_path)));
  if (frame->is_plain()) {
    frame->warning_ = absl::StrCat(
        options.tokenizer_path,
        ": has no chat_template (in tokenizer_config.json or chat_template.jinja): messages are "
        "trained on one after the other, without anything around them. Put the template there "
        "that the model is to be used with.");
    return frame;
  }
  ATOLL_RETURN_IF_ERROR(frame->CheckTokens(config));
  return frame;
}

absl::Status ChatFrame::ReadTemplates(const TokenizerConfig& config) {
  for (const auto& [name, text] : config.chat_templates) {
    if (name != kDefault && name != kToolUse) continue;  // of other uses of the model
    ATOLL_ASSIGN_OR_RETURN(templates_[name], jinja::Template::Parse(text));
    digest_ = Digest(text, digest_ + 1);
    if (!templates_[name]->Mentions("strftime_now")) continue;
    absl::CivilSecond day;
    if (!absl::ParseCivilTime(options_.date + "T00:00:00", &day)) {
      return absl::InvalidArgumentError(
          "it shows today's date: give data.chat_date = \"YYYY-MM-DD\", the same for every worker");
    }
    render_options_.now = day;
    digest_ = Digest(options_.date, digest_);
  }
  if (!templates_.empty() && !templates_.contains(kDefault)) {
    return absl::InvalidArgumentError("there is none with the name \"default\"");
  }
  if (!templates_.empty()) name_ = config.chat_template_path;
  return absl::OkStatus();
}

// That the tokens which the template names are found in its text.
absl::Status ChatFrame::CheckTokens(const TokenizerConfig& config) const {
  for (const auto& [name, token] : config.special_tokens) {
    const bool named = std::any_of(templates_.begin(), templates_.end(),
                                   [&](const auto& entry) { return entry.second->Mentions(name); });
    if (!named || token.empty() || FindsToken(*options_.tokenizer, token)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        config.chat_template_path, ": the chat template has ", name, " \"", token,
        "\", which the tokenizer does not find in text: use the model's tokenizer.json"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ChatFrame::Render(const std::vector<jinja::Value>& messages,
                                              size_t count, const jinja::Variables& variables,
                                              bool prompts) const {
  const bool tools = std::any_of(variables.begin(), variables.end(),
                                 [](const auto& entry) { return entry.first == "tools"; });
  const auto own = templates_.find(tools && templates_.contains(kToolUse) ? kToolUse : kDefault);
  jinja::Variables all = special_tokens_;
  const auto set = [&](const std::string& name, jinja::Value value) {
    for (auto& [known, old] : all) {
      if (known == name) return void(old = std::move(value));
    }
    all.emplace_back(name, std::move(value));
  };
  for (const auto& [name, value] : variables) set(name, value);
  set("messages",
      jinja::Value::MakeList({messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count)}));
  set("add_generation_prompt", jinja::Value(prompts));
  auto text = own->second->Render(all, render_options_);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("the chat template of ", name_, ", ", text.status().message()));
}

absl::Status ChatFrame::Check(const Conversation& chat) const {
  const auto shows = [&](const char* name) {
    return std::any_of(templates_.begin(), templates_.end(),
                       [&](const auto& entry) { return entry.second->Mentions(name); });
  };
  const auto hidden = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", what, ", and ",
        is_plain() ? absl::StrCat("there is no chat template in ", options_.tokenizer_path.empty()
                                                                       ? "a tokenizer's folder"
                                                                       : options_.tokenizer_path)
                   : absl::StrCat("the chat template of ", name_, " does not show that"),
        "; leave it out, or skip such lines by data.on_bad_document = \"skip\""));
  };
  for (const auto& [name, of_answers] : kShownFields) {
    if (shows(name)) continue;
    for (const ChatMessage& message : chat.messages) {
      if (!HasField(message, name) || (of_answers && !message.learnt)) continue;
      return hidden(absl::StrCat("a message with \"", name, "\""));
    }
  }
  for (const char* name : {"tools", "functions", "documents"}) {
    if (chat.variables.contains(name) && !shows(name)) return hidden(name);
  }
  return absl::OkStatus();
}

}  // namespace atl
