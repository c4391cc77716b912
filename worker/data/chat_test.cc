// Frames of conversations. Every character is a token, so that tokens spell what they mean.

#include "worker/data/chat.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "common/masked_tokens.h"

namespace atl {
namespace {

constexpr const char* kSpacesAreMarks =
    R"({"type": "Replace", "pattern": {"String": " "}, "content": "_"})";
// As LLaMA's: a space in front of every text, also behind special tokens.
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

// The text of a conversation's tokens, with a bar where what counts begins and ends.
std::string Spelt(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages) {
  std::vector<int32_t> tokens;
  REQUIRE(ChatEncoder(&tokenizer, std::nullopt).Encode(messages, &tokens).ok());
  std::string text;
  bool counts = false;
  for (const int32_t token : tokens) {
    if ((token >= 0) != counts) text += "|";
    counts = token >= 0;
    const int32_t id = counts ? token : MaskToken(token);
    text += *tokenizer.Decode({&id, 1}, /*skip_special=*/false);
  }
  return text;
}

const std::vector<ChatMessage> kHello = {
    {"system", "be"}, {"user", "hi"}, {"assistant", "yo"}, {"user", "a b"}, {"assistant", "d"}};

TEST_CASE("gemma_calls_the_assistant_model_and_has_no_system") {
  const auto tokenizer = Characters({"<start_of_turn>", "<end_of_turn>"}, kReplaces);
  CHECK(Name(FindChatTemplate(tokenizer.get())) == std::string("gemma"));
  CHECK(Spelt(*tokenizer, kHello) ==
        "<start_of_turn>user\nbe\n\nhi<end_of_turn>\n<start_of_turn>model\n|yo<end_of_turn>|\n"
        "<start_of_turn>user\na_b<end_of_turn>\n<start_of_turn>model\n|d<end_of_turn>|\n");
}

TEST_CASE("phi3_answers_begin_as_behind_a_prompt_whose_line_end_its_tokens_take") {
  const auto tokenizer =
      Characters({"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}, kPrepends, true);
  CHECK(Name(FindChatTemplate(tokenizer.get())) == std::string("phi3"));
  CHECK(Spelt(*tokenizer, kHello) ==
        "<|system|>_be<|end|><|user|>_hi<|end|><|assistant|>|_yo<|end|>|"
        "<|user|>_a_b<|end|><|assistant|>|_d<|end|>");
}

TEST_CASE("mistral_frames_prompts_by_control_tokens") {
  const auto tokenizer = Characters({"[INST]", "[/INST]", "</s>"}, kFirst);
  CHECK(Name(FindChatTemplate(tokenizer.get())) == std::string("mistral"));
  CHECK(Spelt(*tokenizer, kHello) == "[INST]_be\n\nhi[/INST]|_yo</s>|[INST]_a_b[/INST]|_d</s>");
  CHECK(Spelt(*tokenizer, {{"system", "be"}, {"assistant", "yo"}}) == "[INST]_be[/INST]|_yo</s>");
}

TEST_CASE("an_answer_behind_a_line_of_its_prompt_continues_that_text") {
  const auto tokenizer = Characters({"<|im_start|>", "<|im_end|>"}, kPrepends);
  CHECK(Spelt(*tokenizer, {{"user", "hi"}, {"assistant", "yo"}}) ==
        "<|im_start|>_user\nhi<|im_end|>_\n<|im_start|>_assistant\n|yo<|im_end|>|_\n");
  // Two line ends are one token, but the prompt ends between them.
  CHECK(Spelt(*tokenizer, {{"assistant", "\nyo"}}) ==
        "<|im_start|>_assistant\n|\nyo<|im_end|>|_\n");
}

TEST_CASE("a_template_whose_tokens_are_not_found_in_text_is_not_used") {
  const auto named = [](const std::string& added) {
    const auto tokenizer = ParseTokenizerJson(
        R"({"model": {"type": "BPE", "vocab": {"[INST]": 0, "[/INST]": 1, "</s>": 2, "?": 3},
            "merges": [], "unk_token": "?"}, "added_tokens": [)" +
            added + "]}",
        "t.json");
    INFO(tokenizer.status().message());
    REQUIRE(tokenizer.ok());
    return std::string(Name(FindChatTemplate(tokenizer->get())));
  };
  const std::string end = R"({"id": 2, "content": "</s>", "special": true})";
  CHECK(named(end) == "plain");
  CHECK(named(end + R"(, {"id": 0, "content": "[INST]", "special": true},
                         {"id": 1, "content": "[/INST]", "special": true})") == "mistral");
}

}  // namespace
}  // namespace atl
