// Conversations to tokens, by a frame.
//
// The whole conversation is rendered once, and its tokens are those of that text. Where an answer
// begins and ends in it follows from rendering less: the messages before it with the generation
// prompt, and those up to it. Templates render earlier messages otherwise when later ones follow
// (Qwen 3 leaves out what an earlier answer thought); then a mark in place of a content finds it.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/jinja/text.h"
#include "common/masked_tokens.h"
#include "common/status.h"
#include "worker/data/chat/frame.h"

namespace atl {
namespace {

using Json = nlohmann::ordered_json;

// Noncharacters, which no text has: before a special token that a content spells, and in place of a
// content.
constexpr std::string_view kSpelt = "\xef\xb7\x90", kContent = "\xef\xb7\x91";

// In whole characters.
size_t CommonBeginning(std::string_view a, std::string_view b) {
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto common = static_cast<size_t>(differ.first - a.begin());
  while (common > 0 && common < a.size() &&
         (static_cast<unsigned char>(a[common]) & 0xc0) == 0x80) {
    --common;
  }
  return common;
}

// Marks what texts spell of special tokens, everywhere in a value.
absl::Status MarkSpelt(const Tokenizer& tokenizer, Json* json) {
  if (json->is_structured()) {
    for (auto& element : *json) ATOLL_RETURN_IF_ERROR(MarkSpelt(tokenizer, &element));
    return absl::OkStatus();
  }
  if (!json->is_string()) return absl::OkStatus();
  const std::string& text = json->get_ref<const std::string&>();
  if (text.find(kSpelt) != std::string::npos || text.find(kContent) != std::string::npos) {
    return absl::InvalidArgumentError("has U+FDD0 or U+FDD1, which are no characters of a text");
  }
  const std::vector<SpecialTokenPlace> places = tokenizer.FindSpecialTokens(text);
  if (places.empty()) return absl::OkStatus();
  std::string marked;
  size_t done = 0;
  for (const SpecialTokenPlace& place : places) {
    marked.append(text, done, place.begin - done).append(kSpelt);
    done = place.begin;
  }
  *json = marked.append(text, done);
  return absl::OkStatus();
}

// A rendered text without its marks, and where they were.
struct Rendered {
  std::string text;
  std::vector<size_t> spelt;
};

Rendered WithoutMarks(const std::string& marked) {
  Rendered rendered;
  for (size_t at = 0; at < marked.size();) {
    const size_t mark = std::min(marked.find(kSpelt, at), marked.size());
    rendered.text.append(marked, at, mark - at);
    if (mark < marked.size()) rendered.spelt.push_back(rendered.text.size());
    at = mark + kSpelt.size();
  }
  return rendered;
}

// Encodes a part of a text that begins at byte `offset` of it. A special token that a content
// spells at one of `spelt` is text: its first character and the rest are encoded apart.
absl::Status EncodeSpelt(std::string_view part, const std::vector<size_t>& spelt, size_t offset,
                         Encoder* encoder, std::vector<int32_t>* out) {
  size_t done = 0;
  for (const size_t place : spelt) {
    const size_t cut =
        std::min(part.size(), place - offset + jinja::CharacterAt(part, place - offset).bytes);
    ATOLL_RETURN_IF_ERROR(encoder->Encode(part.substr(done, cut - done), out, done > 0));
    done = cut;
  }
  return done < part.size() ? encoder->Encode(part.substr(done), out, done > 0) : absl::OkStatus();
}

struct Span {
  size_t begin = 0, end = 0;  // bytes
};

}  // namespace

// One conversation in its template.
class ChatEncoder::Framed {
 public:
  Framed(const ChatFrame& frame, const Conversation& chat)
      : frame_(frame), tokenizer_(*frame.options().tokenizer), chat_(chat) {}

  absl::Status Render() {
    ATOLL_RETURN_IF_ERROR(frame_.Check(chat_));
    for (const ChatMessage& message : chat_.messages) {
      Json fields = message.fields;
      for (auto& [name, value] : fields.items()) {
        if (name != "role") ATOLL_RETURN_IF_ERROR(MarkSpelt(tokenizer_, &value));
      }
      ATOLL_ASSIGN_OR_RETURN(jinja::Value value, jinja::FromJson(fields));
      messages_.push_back(std::move(value));
    }
    for (const auto& [name, variable] : chat_.variables.items()) {
      Json marked = variable;
      ATOLL_RETURN_IF_ERROR(MarkSpelt(tokenizer_, &marked));
      ATOLL_ASSIGN_OR_RETURN(jinja::Value value, jinja::FromJson(marked));
      variables_.emplace_back(name, std::move(value));
    }
    ATOLL_ASSIGN_OR_RETURN(const std::string marked,
                           frame_.Render(messages_, messages_.size(), variables_, false));
    whole_ = WithoutMarks(marked);
    for (const SpecialTokenPlace& place : tokenizer_.FindSpecialTokens(whole_.text)) {
      if (!std::binary_search(whole_.spelt.begin(), whole_.spelt.end(), place.begin)) {
        frame_tokens_.push_back(place);
      }
    }
    return CheckContents();
  }

  // Where the tokens of an answer that count lie. REQUIRES: Render.
  absl::StatusOr<Span> FindAnswer(size_t i) const {
    ATOLL_ASSIGN_OR_RETURN(const size_t begin, FindBegin(i));
    const auto own = Prefix(i + 1, /*prompts=*/false);
    if (!own.ok()) return Lost(i, own.status().message());
    Span span{begin, own->size()};
    std::string end_token;
    const size_t shared_end = FindSharedEnd(*own, begin);
    if (whole_.text.starts_with(*own)) {
      span.end = own->size();
    } else if (shared_end > 0) {
      span.end = shared_end;
    } else {
      // The end of the answer is a special token, where the message that follows begins.
      const auto places = tokenizer_.FindSpecialTokens(*own);
      if (!places.empty()) end_token = own->substr(places.back().begin, places.back().bytes);
      span.end = i + 1 < messages_.size() ? FindContent(i + 1) : whole_.text.size();
    }
    if (span.end <= span.begin) return Lost(i, "its text is empty, or is not there");
    const auto last = std::find_if(
        frame_tokens_.rbegin(), frame_tokens_.rend(), [&](const SpecialTokenPlace& place) {
          return place.begin >= span.begin && place.begin + place.bytes <= span.end &&
                 (end_token.empty() ||
                  std::string_view(whole_.text).substr(place.begin, place.bytes) == end_token);
        });
    if (last != frame_tokens_.rend()) span.end = last->begin + last->bytes;
    if (last == frame_tokens_.rend() && !end_token.empty()) return Lost(i, "its end is not found");
    return span;
  }

  // Appends the tokens of the text; those of `spans` count.
  absl::Status Encode(const std::vector<Span>& spans, Encoder* encoder,
                      std::vector<int32_t>* out) const {
    size_t begin = 0, next = 0;
    for (size_t cut = 0; cut <= frame_tokens_.size(); ++cut) {
      // A special token is not encoded with what is before it: the text is cut there.
      if (cut < frame_tokens_.size() && frame_tokens_[cut].takes_spaces_before) continue;
      const size_t end = cut < frame_tokens_.size() ? frame_tokens_[cut].begin : whole_.text.size();
      if (end == begin) continue;
      const size_t first = out->size();
      ATOLL_RETURN_IF_ERROR(EncodePart(begin, end, encoder, out));
      std::vector<bool> counts(out->size() - first, false);
      for (; next < spans.size() && spans[next].begin < end; ++next) {
        ATOLL_ASSIGN_OR_RETURN(const size_t from,
                               CountTokens(begin, spans[next].begin, first, true, encoder, *out));
        size_t to = counts.size();
        if (spans[next].end < end) {
          ATOLL_ASSIGN_OR_RETURN(to,
                                 CountTokens(begin, spans[next].end, first, false, encoder, *out));
        }
        for (size_t i = from; i < std::min(to, counts.size()); ++i) counts[i] = true;
        if (spans[next].end > end) break;
      }
      for (size_t i = 0; i < counts.size(); ++i) {
        if (!counts[i]) (*out)[first + i] = MaskToken((*out)[first + i]);
      }
      begin = end;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Lost(size_t i, absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat("message ", i + 1,
                                                   ": where the chat template of ", frame_.name(),
                                                   " puts this answer is not known: ", why));
  }

  absl::StatusOr<std::string> Prefix(size_t count, bool prompts) const {
    ATOLL_ASSIGN_OR_RETURN(const std::string marked,
                           frame_.Render(messages_, count, variables_, prompts));
    return WithoutMarks(marked).text;
  }

  // Where the content of a message begins: up to there the text stays when the content changes.
  size_t FindContent(size_t i) const {
    std::vector<jinja::Value> messages = messages_;
    jinja::Dict fields = messages[i].dict();
    fields.Set(jinja::Value("content"), jinja::Value(std::string(kContent)));
    messages[i] = jinja::Value(std::move(fields));
    const auto marked = frame_.Render(messages, messages.size(), variables_, false);
    if (!marked.ok()) return 0;
    return CommonBeginning(WithoutMarks(*marked).text, whole_.text);
  }

  // Where an answer that begins at `begin` ends in both texts, of which `own` ends with it: behind
  // a special token, after which `own` has such tokens and white space alone (Phi-3 ends every text
  // by one). 0: there is no such place.
  size_t FindSharedEnd(const std::string& own, size_t begin) const {
    const size_t common = CommonBeginning(own, whole_.text);
    size_t end = 0;
    for (const SpecialTokenPlace& place : frame_tokens_) {
      if (place.begin >= begin && place.begin + place.bytes <= common) {
        end = place.begin + place.bytes;
      }
    }
    if (end == 0) return 0;
    std::string rest = own.substr(end);
    const std::vector<SpecialTokenPlace> places = tokenizer_.FindSpecialTokens(rest);
    for (auto place = places.rbegin(); place != places.rend(); ++place) {
      rest.erase(place->begin, place->bytes);
    }
    return jinja::Strip(rest, true, false).empty() ? end : 0;
  }

  // Where a model that is given the messages before the answer begins to write.
  absl::StatusOr<size_t> FindBegin(size_t i) const {
    const auto prompt = i == 0 ? absl::StatusOr<std::string>(absl::InvalidArgumentError(""))
                               : Prefix(i, /*prompts=*/true);
    if (prompt.ok() && whole_.text.starts_with(*prompt)) return prompt->size();
    const size_t begin = FindContent(i);
    if (begin == 0 || begin == whole_.text.size()) return Lost(i, "it is not in the text");
    return begin;
  }

  // That no message is left out in silence.
  absl::Status CheckContents() const {
    for (size_t i = 0; i < messages_.size(); ++i) {
      const std::string* const content = chat_.messages[i].content();
      if (content == nullptr || chat_.messages[i].role() == "assistant") continue;
      const std::string_view text = jinja::Strip(*content, true, true);
      if (whole_.text.find(text) != std::string::npos) continue;
      std::vector<jinja::Value> others = messages_;
      others.erase(others.begin() + static_cast<ptrdiff_t>(i));
      const auto without = frame_.Render(others, others.size(), variables_, false);
      if (!without.ok() || WithoutMarks(*without).text != whole_.text) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("message ", i + 1, " of the role \"", chat_.messages[i].role(),
                       "\" is left out by the chat template of ", frame_.name(),
                       "; leave it out, or skip such lines by data.on_bad_document = \"skip\""));
    }
    return absl::OkStatus();
  }

  absl::Status EncodePart(size_t begin, size_t end, Encoder* encoder,
                          std::vector<int32_t>* out) const {
    const auto first = std::lower_bound(whole_.spelt.begin(), whole_.spelt.end(), begin);
    const auto last = std::lower_bound(first, whole_.spelt.end(), end);
    return EncodeSpelt(std::string_view(whole_.text).substr(begin, end - begin), {first, last},
                       begin, encoder, out);
  }

  // How many tokens of the part from `begin` on, which are out[first..], come before byte `at`. One
  // that lies on both sides counts for the earlier where `after`.
  absl::StatusOr<size_t> CountTokens(size_t begin, size_t at, size_t first, bool after,
                                     Encoder* encoder, const std::vector<int32_t>& out) const {
    if (at <= begin) return size_t{0};
    std::vector<int32_t> before;
    ATOLL_RETURN_IF_ERROR(EncodePart(begin, at, encoder, &before));
    const auto differ = std::mismatch(before.begin(), before.end(),
                                      out.begin() + static_cast<ptrdiff_t>(first), out.end());
    const auto same = static_cast<size_t>(differ.first - before.begin());
    return same < before.size() && after ? same + 1 : same;
  }

  const ChatFrame& frame_;
  const Tokenizer& tokenizer_;
  const Conversation& chat_;
  std::vector<jinja::Value> messages_;
  jinja::Variables variables_;
  Rendered whole_;
  std::vector<SpecialTokenPlace> frame_tokens_;  // of the template, not of contents
};

ChatEncoder::ChatEncoder(const ChatFrame& frame) : frame_(frame) {
  if (frame.options().tokenizer != nullptr) encoder_.emplace(*frame.options().tokenizer);
}

absl::Status ChatEncoder::Add(std::string_view text, std::vector<int32_t>* out) {
  if (!encoder_.has_value()) {
    for (const char c : text) out->push_back(static_cast<unsigned char>(c));
    return absl::OkStatus();
  }
  std::vector<size_t> spelt;
  for (const SpecialTokenPlace& place : frame_.options().tokenizer->FindSpecialTokens(text)) {
    spelt.push_back(place.begin);
  }
  return EncodeSpelt(text, spelt, 0, &*encoder_, out);
}

absl::Status ChatEncoder::EncodePlain(const Conversation& chat, std::vector<int32_t>* out) {
  ATOLL_RETURN_IF_ERROR(frame_.Check(chat));
  const ChatOptions& options = frame_.options();
  if (options.tokenizer != nullptr) {
    for (const int32_t token : options.tokenizer->before()) out->push_back(MaskToken(token));
  }
  for (const ChatMessage& message : chat.messages) {
    const size_t begin = out->size();
    if (message.content() != nullptr) ATOLL_RETURN_IF_ERROR(Add(*message.content(), out));
    const bool answer = message.role() == "assistant";
    if (answer && options.end_of_text.has_value()) out->push_back(*options.end_of_text);
    for (size_t i = begin; i < out->size() && !message.learnt; ++i)
      (*out)[i] = MaskToken((*out)[i]);
  }
  return absl::OkStatus();
}

absl::Status ChatEncoder::Encode(const Conversation& chat, std::vector<int32_t>* out) {
  if (chat.messages.empty()) return absl::OkStatus();
  if (frame_.is_plain() || chat.plain) return EncodePlain(chat, out);
  Framed framed(frame_, chat);
  ATOLL_RETURN_IF_ERROR(framed.Render());
  std::vector<Span> spans;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (!chat.messages[i].learnt) continue;
    ATOLL_ASSIGN_OR_RETURN(const Span span, framed.FindAnswer(i));
    if (!spans.empty() && span.begin < spans.back().end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "message ", i + 1, ": the chat template puts this answer into the one before it"));
    }
    spans.push_back(span);
  }
  return framed.Encode(spans, &*encoder_, out);
}

absl::Status ChatEncoder::EncodePair(const ChatPair& pair, int64_t tokens_max,
                                     std::vector<int32_t>* out, std::array<size_t, 2>* ends) {
  const size_t begin = out->size();
  for (const size_t side : {0, 1}) {
    const size_t first = out->size();
    ATOLL_RETURN_IF_ERROR(Encode(side == 0 ? pair.chosen : pair.rejected, out));
    const bool compares =
        out->size() > first && std::any_of(out->begin() + static_cast<ptrdiff_t>(first) + 1,
                                           out->end(), [](int32_t token) { return token >= 0; });
    if (!compares) {
      return absl::InvalidArgumentError(
          "an answer has no token behind another one, which could be compared");
    }
    (*out)[first] = MarkDocument((*out)[first]);
    (*ends)[side] = out->size();
  }
  const auto tokens = static_cast<int64_t>(out->size() - begin);
  if (tokens <= tokens_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the pair has ", tokens, " tokens, both prompts included, and a sequence holds ", tokens_max,
      ": raise data.sequence_length, or leave such pairs out by data.on_bad_document = \"skip\""));
}

}  // namespace atl
