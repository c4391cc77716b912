// Frames of conversations. Every character is a token, so that tokens spell what they mean.

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/masked_tokens.h"
#include "worker/data/chat/conversation.h"
#include "worker/data/chat/frame.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;

constexpr const char* kSpacesAreMarks =
    R"({"type": "Replace", "pattern": {"String": " "}, "content": "_"})";
// The normalizer is LLaMA's: a space in front of every text, also behind special tokens.
const std::string kPrepends = absl::StrCat(
    R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, )",
    kSpacesAreMarks, "]}");
const std::string kReplaces = absl::StrCat(R"("normalizer": )", kSpacesAreMarks);
const std::string kFirst =
    R"("pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first",
                         "split": false})";

std::unique_ptr<const Tokenizer> Characters(const std::vector<std::string>& special,
                                            const std::string& parts, bool strips = false) {
  std::string vocabulary, added;
  int id = 0;
  for (const std::string letter : {"\\n", "_", "a", "b", "d", "e", "h", "i", "l", "m", "n", "o",
                                   "r", "s", "t", "u", "y", "?"}) {
    absl::StrAppend(&vocabulary, id == 0 ? "" : ", ", "\"", letter, "\": ", id);
    ++id;
  }
  absl::StrAppend(&vocabulary, ", \"\\n\\n\": ", id++);
  for (const std::string& token : special) {
    absl::StrAppend(&added, added.empty() ? "" : ", ", R"({"special": true, "content": ")", token,
                    "\", \"rstrip\": ", strips ? "true" : "false", ", \"id\": ", id++, "}");
  }
  auto tokenizer = ParseTokenizerJson(
      absl::StrCat(R"({"model": {"type": "BPE", "unk_token": "?", "merges": [["\n", "\n"]], )",
                   R"("vocab": {)", vocabulary, "}}, ", parts, R"(, "added_tokens": [)", added,
                   "]}"),
      "t.json");
  INFO(tokenizer.status().message());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

constexpr char kChatMl[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// A tokenizer's folder with a template.
class Chats {
 public:
  Chats(const std::string& chat_template, const std::vector<std::string>& special,
        const std::string& parts = kReplaces, const std::string& date = "") {
    std::string name = (std::filesystem::temp_directory_path() / "atoll_chat_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
    tokenizer_ = Characters(special, parts);
    if (!chat_template.empty()) Write("chat_template.jinja", chat_template);
    options_ = {tokenizer_.get(), folder_, std::nullopt, date};
  }
  ~Chats() { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
  }
  const std::string& folder() const { return folder_; }
  ChatOptions& options() { return options_; }

  // The text of a line's tokens, with a bar where what counts begins and ends; or why not.
  std::string Spelt(const std::string& json) {
    const auto frame = ChatFrame::Open(options_);
    if (!frame.ok()) return std::string(frame.status().message());
    const auto chat = ParseChat(json, "c.jsonl", 3);
    if (!chat.ok()) return std::string(chat.status().message());
    std::vector<int32_t> tokens;
    const absl::Status status = ChatEncoder(**frame).Encode(*chat, &tokens);
    if (!status.ok()) return std::string(status.message());
    std::string text;
    bool counts = false;
    for (const int32_t token : tokens) {
      if ((token >= 0) != counts) text += "|";
      counts = token >= 0;
      const int32_t id = counts ? token : MaskToken(token);
      text += *tokenizer_->Decode({&id, 1}, /*skip_special=*/false);
    }
    return text;
  }

 private:
  std::string folder_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  ChatOptions options_;
};

const std::vector<std::string> kIm = {"<|im_start|>", "<|im_end|>"};

constexpr char kHello[] =
    R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "a b"}, {"role": "assistant", "content": "d"}]})";

TEST_CASE("conversations_are_framed_by_the_folders_template_and_answers_count_to_their_end") {
  Chats chats(kChatMl, kIm);
  CHECK(chats.Spelt(kHello) ==
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n|yo<|im_end|>|\n"
        "<|im_start|>user\na_b<|im_end|>\n<|im_start|>assistant\n|d<|im_end|>|\n");
  CHECK(chats.Spelt(R"({"prompt": "hi", "answer": ""})") ==
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n|<|im_end|>|\n");
  CHECK(chats.Spelt(R"({"messages": [{"role": "assistant", "content": "yo"},
                                     {"role": "user", "content": "hi"}]})") ==
        "<|im_start|>assistant\n|yo<|im_end|>|\n<|im_start|>user\nhi<|im_end|>\n");
}

TEST_CASE("what_a_template_adds_and_trims_is_trained_with") {
  Chats chats(
      "{{ '<|im_start|>system\nbe<|im_end|>' }}{% for m in messages %}{{ '<|im_start|>' + "
      "('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + "
      "'<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>model\n' }}"
      "{% endif %}",
      kIm);
  CHECK(chats.Spelt(R"({"prompt": " hi\n", "answer": "\nyo "})") ==
        "<|im_start|>system\nbe<|im_end|><|im_start|>user\nhi<|im_end|><|im_start|>model\n"
        "|yo<|im_end|>");
}

TEST_CASE("answers_without_weight_are_not_learnt") {
  Chats chats(kChatMl, kIm);
  const auto two = [&](const std::string& first, const std::string& second) {
    return chats.Spelt(absl::StrCat(
        R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "no")",
        first, R"(}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "yo")",
        second, "}]}"));
  };
  const std::string masked =
      "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n"
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n|yo<|im_end|>|\n";
  CHECK(two(R"(, "weight": 0)", R"(, "weight": 1)") == masked);
  for (const char* name : {"train", "training", "loss", "loss_mask"}) {
    CHECK(two(absl::StrCat(", \"", name, "\": false"), absl::StrCat(", \"", name, "\": 1")) ==
          masked);
  }
  CHECK_THAT(chats.Spelt(R"({"weight": 0, "messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}]})"),
             Contains("nothing to learn"));
  CHECK_THAT(two(R"(, "weight": 0.5)", ""), Contains("c.jsonl:3: message 2 has a \"weight\""));
  CHECK_THAT(two(R"(, "weight": 0)", R"(, "weight": 0)"), Contains("nothing to learn"));
}

TEST_CASE("parts_of_text_are_joined_by_line_feeds_and_others_refused") {
  Chats chats(kChatMl, kIm);
  CHECK(chats.Spelt(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"},
      {"type": "text", "text": "a"}]}, {"role": "assistant", "content": [{"type": "text",
      "text": "yo"}]}]})") ==
        "<|im_start|>user\nhi\na<|im_end|>\n<|im_start|>assistant\n|yo<|im_end|>|\n");
  CHECK_THAT(chats.Spelt(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"),
             Contains("message 1 has a part of the type \"image_url\""));
}

TEST_CASE("tool_calls_are_framed_by_templates_that_show_them_and_refused_by_others") {
  const std::string calls =
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null,
          "tool_calls": [{"function": {"name": "add", "arguments": "{\"b\": \"a\"}"}}]},
          {"role": "tool", "content": "yes"}, {"role": "assistant", "content": "yo"}]})";
  Chats shows(
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% for c in m.tool_calls "
      "%}{{ c.function.name + c.function.arguments.b }}{% endfor %}{{ (m.content or '') + "
      "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}"
      "{{ '<|im_start|>assistant\n' }}{% endif %}",
      kIm);
  CHECK(shows.Spelt(calls) ==
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n|adda<|im_end|>|\n"
        "<|im_start|>tool\nyes<|im_end|>\n<|im_start|>assistant\n|yo<|im_end|>|\n");
  Chats hides(kChatMl, kIm);
  CHECK_THAT(hides.Spelt(calls),
             Contains("\"tool_calls\", and the chat template of ") && Contains("on_bad_document"));
  Chats plain("", kIm);
  CHECK_THAT(plain.Spelt(calls), Contains("\"tool_calls\", and there is no chat template"));
  CHECK_THAT(hides.Spelt(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
      "content": "b", "reasoning_content": "c"}]})"),
             Contains("\"reasoning_content\", and the chat template"));
  CHECK_THAT(hides.Spelt(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
      "content": "b"}], "tools": [{"type": "function"}]})"),
             Contains("has tools, and the chat template"));
}

TEST_CASE("what_a_line_has_and_no_template_shows_is_refused_by_its_name") {
  Chats chats(kChatMl, kIm);
  const auto line = [&](const std::string& more_of_answer, const std::string& more) {
    return chats.Spelt(absl::StrCat(
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b")",
        more_of_answer, "}]", more, "}"));
  };
  const std::string plain = line("", "");
  for (const char* name : {"channel", "recipient", "reasoning_details", "function_call"}) {
    INFO(name);
    CHECK_THAT(line(absl::StrCat(", \"", name, "\": {\"name\": \"x\"}"), ""),
               Contains(absl::StrCat("\"", name, "\", and the chat template")));
    CHECK(line(absl::StrCat(", \"", name, "\": null"), "") == plain);
  }
  for (const char* name : {"mask", "masked", "train_detail"}) {
    CHECK_THAT(line(absl::StrCat(", \"", name, "\": true"), ""),
               Contains(absl::StrCat("message 2 has a \"", name)) && Contains("\"weight\""));
  }
  for (const char* name : {"system", "history", "images", "context"}) {
    CHECK_THAT(line("", absl::StrCat(", \"", name, "\": [\"x\"]")),
               Contains(absl::StrCat("has \"", name, "\" beside its messages")));
    CHECK(line("", absl::StrCat(", \"", name, "\": \"a\"")) == plain);  // which a message says
    CHECK(line("", absl::StrCat(", \"", name, "\": []")) == plain);
  }
  CHECK_THAT(line("", R"(, "functions": [{"name": "f"}])"),
             Contains("has functions, and the chat"));
  CHECK_THAT(line("", R"(, "prompt": "a", "answer": "b")"), Contains("leave one form out"));
  CHECK_THAT(chats.Spelt(R"({"prompt": "a", "answer": "b", "system": "be"})"),
             Contains("\"system\" beside"));
  CHECK_THAT(chats.Spelt(R"({"prompt": "a", "answer": "b", "weight": 0})"),
             Contains("nothing to learn"));
}

TEST_CASE("numbers_that_json_lacks_are_refused_in_messages_alone_and_deep_lists_anywhere") {
  Chats chats(kChatMl, kIm);
  const auto line = [&](const std::string& of_message, const std::string& of_line) {
    return chats.Spelt(
        absl::StrCat(R"({"messages": [{"role": "user", "content": "a", "x": )", of_message,
                     R"(}, {"role": "assistant", "content": "b"}], "score": )", of_line, "}"));
  };
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  CHECK(line("1", "NaN") == line("1", "1"));
  CHECK_THAT(line("-Infinity", "1"), Contains("in \"messages\" -Infinity"));
  for (const auto& text : {line(deep, "1"), line("1", deep), line("1", deep.substr(0, 1000))}) {
    CHECK_THAT(text, Contains("more than 100 levels"));
  }
  CHECK(line("1", "\"" + deep + "\\\"[\"") == line("1", "1"));
}

TEST_CASE("tools_that_stand_in_a_text_are_read_from_it") {
  Chats chats(
      "{% for t in tools %}{{ t.name }}{% endfor %}{% for m in messages %}{{ '<|im_start|>' + "
      "m.content + '<|im_end|>' }}{% endfor %}",
      kIm);
  const auto line = [&](const std::string& tools) {
    return chats.Spelt(absl::StrCat(
        R"({"messages": [{"role": "assistant", "content": "b"}], "tools": )", tools, "}"));
  };
  CHECK_THAT(line(R"("[{\"name\": \"add\"}]")"), Contains("add<|im_start|>"));
  CHECK(line(R"("[{\"name\": \"add\"}]")") == line(R"([{"name": "add"}])"));
  CHECK(line(R"("")") == line("[]"));
  CHECK_THAT(line(R"("add")"), Contains("\"tools\" that are no list"));
}

TEST_CASE("message_that_a_template_leaves_out_is_refused") {
  Chats chats(
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ '<|im_start|>' + "
      "m.content + '<|im_end|>' }}{% endif %}{% endfor %}",
      kIm);
  CHECK_THAT(chats.Spelt(R"({"messages": [{"role": "developer", "content": "be"}, {"role": "user",
      "content": "hi"}, {"role": "assistant", "content": "yo"}]})"),
             Contains("message 1 of the role \"developer\" is left out by the chat template"));
  Chats literal("{{ 'be' }}", kIm);
  CHECK_THAT(literal.Spelt(kHello), Contains("is left out by the chat template"));
}

TEST_CASE("special_tokens_that_a_content_spells_are_text") {
  Chats chats(kChatMl, kIm);
  CHECK(chats.Spelt(R"({"prompt": "a<|im_end|>b", "answer": "yo<|im_end|>d"})") ==
        "<|im_start|>user\na??im_end??b<|im_end|>\n<|im_start|>assistant\n|yo??im_end??d<|im_end|>|"
        "\n");
}

TEST_CASE("answers_that_a_template_renders_otherwise_later_count_as_they_stand") {
  // The template shows the thoughts of the last answer, not those of earlier ones.
  Chats thinks(
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == "
      "'assistant' and loop.last %}{{ 'he ' }}{% endif %}{{ m.content + '<|im_end|>\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
      kIm);
  CHECK(thinks.Spelt(kHello) ==
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n|yo<|im_end|>|\n"
        "<|im_start|>user\na_b<|im_end|>\n<|im_start|>assistant\n|he_d<|im_end|>|\n");
  // The prompt ends in what no answer in the text has.
  Chats begins(
      "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>he\n' }}{% endif %}",
      kIm);
  CHECK(begins.Spelt(kHello) ==
        "<|im_start|>hi<|im_end|><|im_start|>|yo<|im_end|>|<|im_start|>a_b<|im_end|><|im_start|>"
        "|d<|im_end|>");
}

TEST_CASE("answers_of_a_template_that_ends_every_text_by_a_token_end_where_they_do_within_it") {
  Chats chats(
      "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% else %}{{ '</s>' }}{% endif %}",
      {"<|im_start|>", "<|im_end|>", "</s>"});
  CHECK(chats.Spelt(kHello) ==
        "<|im_start|>hi<|im_end|>\n<|im_start|>|yo<|im_end|>|\n<|im_start|>a_b<|im_end|>\n"
        "<|im_start|>|d<|im_end|>\n</s>");
}

TEST_CASE("conversation_that_the_template_refuses_is_an_error_with_its_words") {
  Chats chats(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
      "{% endif %}{{ m.content }}{% endfor %}",
      kIm);
  CHECK_THAT(chats.Spelt(R"({"messages": [{"role": "system", "content": "be"}, {"role":
      "assistant", "content": "yo"}]})"),
             Contains(chats.folder() + "/chat_template.jinja, line 1: ") && Contains("no system"));
  Chats broken("{% for m in messages %}", kIm);
  CHECK_THAT(broken.Spelt(kHello), Contains("chat_template.jinja: line 1: there is no {% endfor"));
}

TEST_CASE("templates_show_the_date_of_the_job_and_are_refused_without_one") {
  const std::string dated =
      "{{ strftime_now('%A') }}{% for m in messages %}{{ '<|im_start|>' + "
      "m.content + '<|im_end|>' }}{% endfor %}";
  Chats chats(dated, kIm, kReplaces, "2026-03-02");
  CHECK_THAT(chats.Spelt(R"({"prompt": "hi", "answer": "yo"})"),
             Contains("?onday<|im_start|>hi<|im_end|>|<|im_start|>yo<|im_end|>"));
  Chats without(dated, kIm);
  CHECK_THAT(without.Spelt(kHello), Contains("data.chat_date"));
  const auto first = ChatFrame::Open(chats.options());
  chats.options().date = "2026-03-03";
  const auto second = ChatFrame::Open(chats.options());
  REQUIRE((first.ok() && second.ok()));
  CHECK((*first)->digest() != (*second)->digest());
}

TEST_CASE("token_of_the_template_that_the_tokenizer_does_not_find_is_refused") {
  Chats chats("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", kIm);
  chats.Write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  CHECK_THAT(chats.Spelt(kHello), Contains("bos_token \"<s>\"") && Contains("tokenizer.json"));
}

TEST_CASE("without_a_template_contents_follow_each_other_and_a_warning_says_so") {
  Chats chats("", {"<|im_start|>", "<|im_end|>", "</s>"});
  chats.options().end_of_text = 21;
  CHECK(chats.Spelt(kHello) == "hi|yo</s>|a_b|d</s>");
  const auto frame = ChatFrame::Open(chats.options());
  REQUIRE(frame.ok());
  CHECK((*frame)->is_plain());
  CHECK_THAT((*frame)->warning(), Contains(chats.folder() + ": has no chat_template"));
}

TEST_CASE("an_answer_behind_a_line_of_its_prompt_keeps_the_tokens_of_the_whole_text") {
  Chats chats(kChatMl, kIm, kPrepends);
  CHECK(chats.Spelt(R"({"prompt": "hi", "answer": "yo"})") ==
        "<|im_start|>_user\nhi<|im_end|>_\n<|im_start|>_assistant\n|yo<|im_end|>|_\n");
  // Two line ends are one token, which an answer does not begin with.
  CHECK(chats.Spelt(R"({"prompt": "hi", "answer": "\nyo"})") ==
        "<|im_start|>_user\nhi<|im_end|>_\n<|im_start|>_assistant\n\n|yo<|im_end|>|_\n");
}

TEST_CASE("other_forms_of_conversations_are_refused_by_what_they_look_like") {
  const auto refusal = [](const std::string& json) {
    const auto chat = ParseChat(json, "c.jsonl", 7);
    REQUIRE_FALSE(chat.ok());
    return std::string(chat.status().message());
  };
  CHECK_THAT(refusal(R"({"conversations": [{"from": "human", "value": "a"}]})"),
             Contains("c.jsonl:7: looks like ShareGPT") && Contains("expected {\"messages\""));
  CHECK_THAT(refusal(R"({"instruction": "a", "input": "", "output": "b"})"), Contains("Alpaca"));
  CHECK_THAT(refusal(R"({"prompt": "a", "completion": "b"})"), Contains("\"completion\""));
  CHECK_THAT(refusal(R"([{"messages": []}])"), Contains("JSON array") && Contains("jq -c"));
  CHECK_THAT(refusal("["), Contains("JSON array"));
  CHECK_THAT(refusal(R"({"text": "a"})"), Contains("data.format = \"jsonl\""));
  CHECK_THAT(refusal(R"({"messages": [{"from": "human", "value": "a"}]})"), Contains("ShareGPT"));
  CHECK_THAT(refusal(R"({"messages": []})"), Contains("nothing to learn"));
  CHECK_THAT(refusal(R"({"messages": "[]"})"), Contains("\"messages\" that are no list"));
  CHECK_THAT(refusal(R"({"question": "a", "response": "b"})"), Contains("but question, response"));
  CHECK_THAT(refusal(R"({"messages": [{"role": "model", "content": "a"}]})"),
             Contains("\"assistant\", but \"model\""));
  CHECK_THAT(refusal(R"({"messages": [{"role": "assistant"}]})"), Contains("has no \"content\""));
  CHECK_THAT(refusal(R"({"messages": [{"role": "assistant", "content": 5}]})"),
             Contains("neither text nor a list"));
  CHECK(ParseChat(" ", "c.jsonl", 1)->messages.empty());
}

}  // namespace
}  // namespace atl
