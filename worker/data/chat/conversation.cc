#include "worker/data/chat/conversation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/data/formats/json_line.h"

namespace atl {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kMarks = {"weight", "train", "training", "loss", "loss_mask"};
// Marks that mean the opposite in another tool, or parts of a message.
constexpr auto kUnclearMarks = {"mask", "masked", "train_detail", "training_detail", "loss_weight"};
// Names what a line has beside its messages and no template shows.
constexpr auto kBeside = {"system", "system_prompt", "history", "context", "images",
                          "image",  "videos",        "video",   "audios",  "audio"};
constexpr char kForms[] =
    "expected {\"messages\": [{\"role\": \"user\", \"content\": ...}, {\"role\": \"assistant\", "
    "\"content\": ...}]} or {\"prompt\": ..., \"answer\": ...}";

const std::string* Text(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get_ptr<const std::string*>()
                                                     : nullptr;
}

absl::Status Bad(const std::string& problem) { return absl::InvalidArgumentError(problem); }

// Describes a line without messages by what it is known for.
std::string DescribeForm(const Json& object) {
  const auto has = [&](const char* field) { return object.contains(field); };
  for (const char* name : {"conversations", "conversation"}) {
    if (!has(name)) continue;
    const Json& list = object[name];
    if (list.is_array() && !list.empty() && list[0].is_object() && list[0].contains("role")) {
      return absl::StrCat("has \"", name, "\" in place of \"messages\"");
    }
    return "looks like ShareGPT, with \"from\" and \"value\" (human is user, gpt is assistant)";
  }
  if (has("instruction") && has("output")) {
    return "looks like Alpaca: instruction and input are the prompt, output is the answer";
  }
  if (has("prompt") && has("completion")) return "has a \"completion\" in place of an \"answer\"";
  if (has("chosen") && has("rejected"))
    return "looks like pairs of preferences, which objective.kind = \"dpo\" takes";
  if (has("prompt")) return "has a \"prompt\", but no text \"answer\"";
  if (has("role") && has("content")) return "looks like one message of a conversation";
  if (has("text")) return "has a \"text\": data.format = \"jsonl\" reads such lines";
  if (has("messages")) return "has \"messages\" that are no list";
  std::string fields;
  for (const auto& [name, value] : object.items()) {
    if (fields.size() < 200) absl::StrAppend(&fields, fields.empty() ? "" : ", ", name);
  }
  return absl::StrCat("has neither a list \"messages\" nor texts \"prompt\" and \"answer\", but ",
                      fields.empty() ? "no field" : fields);
}

// A list of parts that are texts to one text.
absl::Status JoinParts(Json* content) {
  std::string text;
  for (const Json& part : *content) {
    const std::string* own = part.is_string() ? part.get_ptr<const std::string*>() : nullptr;
    if (own == nullptr && part.is_object()) {
      const std::string* const type = Text(part, "type");
      if (type != nullptr && *type != "text" && *type != "input_text" && *type != "output_text") {
        return Bad(absl::StrCat("has a part of the type \"", *type,
                                "\"; conversations of texts alone are trained on"));
      }
      own = Text(part, "text");
    }
    if (own == nullptr) return Bad("has a part that is no text");
    absl::StrAppend(&text, text.empty() ? "" : "\n", *own);
  }
  *content = std::move(text);
  return absl::OkStatus();
}

// JSON that stands in a text; discarded: it is none, or nested too deeply.
Json ParseText(const std::string& text) {
  if (JsonDepth(text) > kJsonDepthMax) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// Arguments that are JSON in a text become what they say.
absl::Status ReadToolCalls(Json* calls) {
  if (!calls->is_array()) return Bad("has \"tool_calls\" that are no list");
  for (Json& call : *calls) {
    if (!call.is_object()) return Bad("has a tool call that is no object");
    Json& function = call.contains("function") ? call["function"] : call;
    if (!function.is_object() || !function.contains("arguments")) continue;
    Json& arguments = function["arguments"];
    if (!arguments.is_string()) continue;
    const std::string text = arguments.get<std::string>();
    Json parsed = text.empty() ? Json::object() : ParseText(text);
    if (!parsed.is_object()) return Bad("has a tool call whose arguments are no JSON object");
    arguments = std::move(parsed);
  }
  return absl::OkStatus();
}

// Returns whether the loss counts an answer, by the names that tools give such a mark. Templates
// do not see it.
absl::StatusOr<bool> TakeWeight(std::initializer_list<const char*> names, Json* fields) {
  bool counts = true;
  for (const char* name : names) {
    const auto found = fields->find(name);
    if (found == fields->end()) continue;
    const bool is_mark = found->is_null() || found->is_boolean() ||
                         (found->is_number() && (*found == Json(0) || *found == Json(1)));
    if (!is_mark) return Bad(absl::StrCat("has a \"", name, "\" other than 0, 1, true and false"));
    counts = counts && *found != Json(0) && *found != Json(false);
    fields->erase(name);
  }
  return counts;
}

absl::StatusOr<ChatMessage> ParseMessage(const Json& entry) {
  if (!entry.is_object()) return Bad("is no object");
  if (Text(entry, "role") == nullptr) {
    return Bad(entry.contains("from") ? "has a \"from\" in place of a \"role\", as ShareGPT has"
                                      : "has no text \"role\"");
  }
  for (const char* name : kUnclearMarks) {
    if (!entry.contains(name) || entry[name].is_null()) continue;
    return Bad(absl::StrCat("has a \"", name,
                            "\", which tools read differently: say by \"weight\": 0 or 1 whether "
                            "the answer is learnt"));
  }
  ChatMessage message{entry};
  ATOLL_ASSIGN_OR_RETURN(const bool counts, TakeWeight(kMarks, &message.fields));
  message.learnt = message.role() == "assistant" && counts;
  Json& fields = message.fields;
  bool has_call = false;
  if (fields.contains("tool_calls") && !fields["tool_calls"].is_null()) {
    ATOLL_RETURN_IF_ERROR(ReadToolCalls(&fields["tool_calls"]));
    has_call = !fields["tool_calls"].empty();
  }
  has_call = has_call || (fields.contains("function_call") && fields["function_call"].is_object());
  const bool absent = !fields.contains("content") || fields["content"].is_null();
  if (absent && !has_call) return Bad("has no \"content\", and no \"tool_calls\"");
  if (!absent && fields["content"].is_array()) {
    ATOLL_RETURN_IF_ERROR(JoinParts(&fields["content"]));
  }
  if (!absent && !fields["content"].is_string()) {
    return Bad("has a \"content\" that is neither text nor a list of texts");
  }
  return message;
}

absl::Status ParseMessages(const Json& list, bool counts, Conversation* chat) {
  if (list.size() > kMaxMessages) {
    return Bad(absl::StrCat("has ", list.size(), " messages, and at most ", kMaxMessages,
                            " are trained on as one conversation"));
  }
  for (const Json& entry : list) {
    auto message = ParseMessage(entry);
    if (!message.ok()) {
      return Bad(
          absl::StrCat("message ", chat->messages.size() + 1, " ", message.status().message()));
    }
    message->learnt = message->learnt && counts;
    chat->messages.push_back(*std::move(message));
  }
  const bool answered = std::any_of(list.begin(), list.end(), [](const Json& entry) {
    return entry["role"] == Json("assistant");
  });
  if (!answered) {
    std::string roles;
    for (const ChatMessage& message : chat->messages) {
      const std::string role = absl::StrCat("\"", message.role().substr(0, 40), "\"");
      if (roles.size() > 200 || absl::StrContains(roles, role)) continue;
      absl::StrAppend(&roles, roles.empty() ? ", but " : ", ", role);
    }
    return Bad(absl::StrCat("has no message of the role \"assistant\"", roles,
                            ": there is nothing to learn"));
  }
  if (std::none_of(chat->messages.begin(), chat->messages.end(),
                   [](const ChatMessage& message) { return message.learnt; })) {
    return Bad("has no answer of a weight above 0: there is nothing to learn");
  }
  return absl::OkStatus();
}

absl::Status ReadVariables(const Json& object, Json* variables) {
  const auto more = object.find("chat_template_kwargs");
  if (more != object.end() && more->is_object()) *variables = *more;
  for (const char* name : {"tools", "functions", "documents"}) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null() || found->empty() || *found == Json("")) continue;
    const Json list = found->is_string() ? ParseText(found->get<std::string>()) : *found;
    if (!list.is_array()) return Bad(absl::StrCat("has \"", name, "\" that are no list"));
    if (!list.empty()) (*variables)[name] = list;
  }
  return absl::OkStatus();
}

// That nothing stands beside the messages which belongs into them.
absl::Status CheckBeside(const Json& object, const Conversation& chat) {
  for (const char* name : kBeside) {
    const auto found = object.find(name);
    if (found == object.end() || !(found->is_string() || found->is_structured())) continue;
    if (found->empty() || *found == Json("")) continue;
    const bool repeated =
        std::any_of(chat.messages.begin(), chat.messages.end(), [&](const ChatMessage& message) {
          return message.content() != nullptr && *found == Json(*message.content());
        });
    if (repeated) continue;
    return Bad(absl::StrCat("has \"", name, "\" beside its messages, which would not be trained ",
                            "with: make it a part of them, or leave it out"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Conversation> Parse(Json object) {
  const std::string *prompt = Text(object, "prompt"), *answer = Text(object, "answer");
  if (prompt != nullptr && answer != nullptr) {
    if (object.contains("messages") && !object["messages"].is_null()) {
      return Bad("has \"messages\" beside \"prompt\" and \"answer\": leave one form out");
    }
    object["messages"] = Json::array({Json{{"role", "user"}, {"content", *prompt}},
                                      Json{{"role", "assistant"}, {"content", *answer}}});
  }
  const auto list = object.find("messages");
  if (list == object.end() || !list->is_array()) {
    return Bad(absl::StrCat(DescribeForm(object), "; ", kForms));
  }
  Conversation chat;
  const Json messages = std::move(*list);
  ATOLL_ASSIGN_OR_RETURN(const bool counts, TakeWeight({"weight"}, &object));
  ATOLL_RETURN_IF_ERROR(ParseMessages(messages, counts, &chat));
  ATOLL_RETURN_IF_ERROR(ReadVariables(object, &chat.variables));
  ATOLL_RETURN_IF_ERROR(CheckBeside(object, chat));
  return chat;
}

}  // namespace

const std::string* ChatMessage::content() const { return Text(fields, "content"); }

std::vector<std::string> ChatFields() {
  std::vector<std::string> fields = {
      "messages", "prompt",    "answer",    "chosen", "rejected",
      "tools",    "functions", "documents", "weight", "chat_template_kwargs"};
  fields.insert(fields.end(), kBeside.begin(), kBeside.end());
  return fields;
}

namespace {

// Reads a line's object; none: it is empty.
absl::StatusOr<std::optional<Json>> ReadChatLine(std::string_view json, const std::string& file,
                                                 int64_t line) {
  const std::string where = absl::StrCat("data file ", file, ":", line);
  const size_t first = json.find_first_not_of(" \t\r");
  if (first != json.npos && (json[first] == '[' || json[first] == ']')) {
    return Bad(absl::StrCat(where, ": is of a JSON array; a conversation is an object on a line ",
                            "of its own: jq -c '.[]' ", file, " > chats.jsonl"));
  }
  if (JsonDepth(json) > kJsonDepthMax) {
    return Bad(
        absl::StrCat(where, ": has more than ", kJsonDepthMax, " levels of lists and objects"));
  }
  // Templates show fields in the order in which they stand.
  ATOLL_ASSIGN_OR_RETURN(auto object, ParseJsonLine<Json>(json, file, line));
  if (!object.has_value()) return std::nullopt;
  for (const char* name : {"messages", "prompt", "chosen", "rejected", "tools", "functions",
                           "documents", "chat_template_kwargs"}) {
    const auto used = object->find(name);
    const std::string found = used == object->end() ? "" : FindOddNumber(*used);
    if (!found.empty()) return Bad(absl::StrCat(where, ": has in \"", name, "\" ", found));
  }
  return object;
}

// The conversation of the prompt's messages and an answer's, which count.
absl::StatusOr<Conversation> ParseSide(const Json& object, const Json& prompt, const Json& answer) {
  Json messages = prompt;
  messages.insert(messages.end(), answer.begin(), answer.end());
  Conversation chat;
  ATOLL_RETURN_IF_ERROR(ParseMessages(messages, /*counts=*/true, &chat));
  for (size_t i = 0; i < prompt.size(); ++i) chat.messages[i].learnt = false;
  if (std::none_of(chat.messages.begin(), chat.messages.end(),
                   [](const ChatMessage& message) { return message.learnt; })) {
    return Bad("has a \"chosen\" or \"rejected\" without a message of the role \"assistant\"");
  }
  ATOLL_RETURN_IF_ERROR(ReadVariables(object, &chat.variables));
  ATOLL_RETURN_IF_ERROR(CheckBeside(object, chat));
  return chat;
}

absl::StatusOr<ChatPair> ParseSides(const Json& object) {
  constexpr char kPairForms[] =
      "expected {\"prompt\": ..., \"chosen\": ..., \"rejected\": ...}, all three texts, or lists "
      "of messages, of which \"prompt\" may be left out (and must be where the others repeat it)";
  const auto get = [&](const char* name) {
    const auto found = object.find(name);
    return found == object.end() ? Json() : *found;
  };
  Json prompt = get("prompt"), chosen = get("chosen"), rejected = get("rejected");
  if (!chosen.is_null() && chosen == rejected)
    return Bad("has one answer as \"chosen\" and as \"rejected\": none is to be preferred");
  const bool texts = prompt.is_string() && chosen.is_string() && rejected.is_string();
  if (texts) {
    const auto make = [](const char* role, const Json& text) {
      return Json::array({Json{{"role", role}, {"content", text}}});
    };
    prompt = make("user", prompt);
    chosen = make("assistant", chosen);
    rejected = make("assistant", rejected);
  }
  if (!chosen.is_array() || !rejected.is_array() || !(prompt.is_array() || prompt.is_null())) {
    return Bad(absl::StrCat("is no pair of preferences; ", kPairForms));
  }
  if (prompt.is_null()) {  // what both begin with
    const auto shared =
        std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end());
    prompt = Json(Json::value_t::array);
    prompt.insert(prompt.end(), chosen.begin(), shared.first);
    chosen.erase(chosen.begin(), shared.first);
    rejected.erase(rejected.begin(), shared.second);
  }
  ChatPair pair;
  ATOLL_ASSIGN_OR_RETURN(pair.chosen, ParseSide(object, prompt, chosen));
  ATOLL_ASSIGN_OR_RETURN(pair.rejected, ParseSide(object, prompt, rejected));
  pair.chosen.plain = pair.rejected.plain = texts;
  return pair;
}

}  // namespace

absl::StatusOr<Conversation> ParseChat(std::string_view json, const std::string& file,
                                       int64_t line) {
  ATOLL_ASSIGN_OR_RETURN(std::optional<Json> object, ReadChatLine(json, file, line));
  if (!object.has_value()) return Conversation();
  auto chat = Parse(*std::move(object));
  if (!chat.ok()) return Annotate(chat.status(), absl::StrCat("data file ", file, ":", line));
  return chat;
}

absl::StatusOr<ChatPair> ParsePair(std::string_view json, const std::string& file, int64_t line) {
  ATOLL_ASSIGN_OR_RETURN(const std::optional<Json> object, ReadChatLine(json, file, line));
  if (!object.has_value()) return ChatPair();
  auto pair = ParseSides(*object);
  if (!pair.ok()) return Annotate(pair.status(), absl::StrCat("data file ", file, ":", line));
  return pair;
}

}  // namespace atl
