// How conversations are framed: by the chat template of the tokenizer's folder, as a server frames
// them, or, where there is none, not at all ("plain": contents one after the other, and behind an
// answer the end of text).

#ifndef ATOLL_WORKER_DATA_CHAT_FRAME_H_
#define ATOLL_WORKER_DATA_CHAT_FRAME_H_

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/jinja/jinja.h"
#include "common/tokenizer/tokenizer.h"
#include "worker/data/chat/conversation.h"

namespace atl {

struct ChatOptions {
  const Tokenizer* tokenizer = nullptr;  // null: bytes are tokens; it must outlive the frame
  std::string tokenizer_path;
  std::optional<int32_t> end_of_text;
  std::string date;  // "2026-03-04", that templates show; "": they may not
};

// Thread-safe.
class ChatFrame {
 public:
  // INVALID_ARGUMENT: the template cannot be used, and why.
  static absl::StatusOr<std::unique_ptr<const ChatFrame>> Open(const ChatOptions& options);

  // "plain", or where the template is from.
  const std::string& name() const { return name_; }
  bool is_plain() const { return templates_.empty(); }
  // "" or what a conversation loses by being framed so.
  const std::string& warning() const { return warning_; }
  // Two frames with the same digest make the same tokens.
  uint64_t digest() const { return digest_; }
  const ChatOptions& options() const { return options_; }

  // The text of the first `count` messages. `prompts`: and of what comes before an answer.
  // INVALID_ARGUMENT says why the template refuses them.
  absl::StatusOr<std::string> Render(const std::vector<jinja::Value>& messages, size_t count,
                                     const jinja::Variables& variables, bool prompts) const;

  // INVALID_ARGUMENT: the conversation has what the template does not show.
  absl::Status Check(const Conversation& chat) const;

 private:
  absl::Status ReadTemplates(const TokenizerConfig& config);
  absl::Status CheckTokens(const TokenizerConfig& config) const;

  ChatOptions options_;
  std::string name_ = "plain", warning_;
  uint64_t digest_ = 0;
  std::map<std::string, std::unique_ptr<const jinja::Template>> templates_;
  jinja::Variables special_tokens_;
  jinja::RenderOptions render_options_;
};

// One thread at a time.
class ChatEncoder {
 public:
  // `frame` must outlive it.
  explicit ChatEncoder(const ChatFrame& frame);

  // Appends a conversation's tokens, those that do not count masked. Special tokens that a content
  // spells are text, not tokens. After an error `out` has tokens of no meaning behind its former
  // ones. INVALID_ARGUMENT: the conversation cannot be framed, and why.
  absl::Status Encode(const Conversation& chat, std::vector<int32_t>* out);

  // Appends the chosen conversation and the rejected one, with marks where they begin, and returns
  // where they end. Likewise; and both have at most so many tokens, and each some that count.
  absl::Status EncodePair(const ChatPair& pair, int64_t tokens_max, std::vector<int32_t>* out,
                          std::array<size_t, 2>* ends);

 private:
  class Framed;

  absl::Status EncodePlain(const Conversation& chat, std::vector<int32_t>* out);
  absl::Status Add(std::string_view text, std::vector<int32_t>* out);

  const ChatFrame& frame_;
  std::optional<Encoder> encoder_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_CHAT_FRAME_H_
