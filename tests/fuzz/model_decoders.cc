// Decoders of what a model's folder holds, and of conversations: config.json, tokenizers, chat
// templates.

#include "common/check.h"
#include "common/jinja/jinja.h"
#include "common/model/hugging_face.h"
#include "common/tokenizer/sentencepiece_model.pb.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/decoder.h"
#include "worker/data/chat/conversation.h"

namespace atl::fuzz {
namespace {

absl::string_view Text(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

bool AcceptsConfig(std::string_view bytes) {
  const auto config = ParseModelConfig(Text(bytes), "config.json");
  if (!config.ok()) return false;
  // The printed text is read again, and is the same.
  const std::string printed = FormatModelConfig(*config);
  const auto again = ParseModelConfig(printed, "again");
  ATOLL_CHECK(again.ok(), printed, " ", again.status().message());
  return true;
}

std::vector<std::string> ConfigSeeds() {
  return {R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12,
              "n_head": 12, "n_positions": 1024, "activation_function": "gelu_new"})",
          R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
              "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
              "rope_theta": 500000.0, "rope_scaling": null, "hidden_act": "silu",
              "tie_word_embeddings": false})"};
}

const Registration kConfig({"config_json", ConfigSeeds, AcceptsConfig});

bool AcceptsChat(std::string_view bytes) { return ParseChat(bytes, "chat.jsonl", 1).ok(); }

std::vector<std::string> ChatSeeds() {
  return {
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls":
          [{"function": {"name": "f", "arguments": "{}"}}]}]})",
      R"({"prompt": "a", "answer": "b", "tools": "[{\"name\": \"f\"}]", "score": NaN})"};
}

const Registration kChat({"chat_json", ChatSeeds, AcceptsChat});

// Whatever a template is, it ends.
bool AcceptsTemplate(std::string_view bytes) {
  const auto chat = jinja::Template::Parse(bytes);
  if (!chat.ok()) return false;
  const auto messages = jinja::FromJson(nlohmann::ordered_json::parse(
      R"([{"role": "system", "content": "be"}, {"role": "user", "content": "hi \u00e9"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f",
           "arguments": {"a": [1, 2.5, null]}}}]}, {"role": "tool", "content": "1"},
          {"role": "assistant", "content": "<think>x</think>yo"}])"));
  return (*chat)
      ->Render({{"messages", *messages}, {"bos_token", "<s>"}, {"add_generation_prompt", true}},
               {.now = absl::CivilSecond(2026, 3, 4), .steps_max = 100'000, .bytes_max = 1 << 22})
      .ok();
}

std::vector<std::string> TemplateSeeds() {
  return {
      "{{ messages[-1].role }}",
      "{% for m in messages %}{{ '<|' + m.role + '|>\n' + (m.content or '') | trim }}{% endfor %}",
      "{%- set ns = namespace(n=0) -%}\n{%- for m in messages[::-1] if m.content is string -%}\n"
      "  {%- set ns.n = ns.n + loop.index0 * m.content|length -%}\n{%- endfor -%}{{ ns.n }}",
      "{% macro f(x, d=1) %}{% if x is mapping %}{% for k, v in x|items %}{{ k }}={{ f(v) }}"
      "{% if not loop.last %},{% endif %}{% endfor %}{% else %}{{ x|tojson(indent=2) }}{% endif %}"
      "{% endmacro %}{{ f(messages[2].tool_calls[0].function) }}{{ messages[-1].content[1:-1] }}",
      "{# c #}{{ messages|selectattr('role', 'in', ['user', 'tool'])|map(attribute='content')|join "
      "}}"
      "{{ 'a-b'.split('-')[0].upper().replace('A', 'x') ~ strftime_now('%d %b') }}"};
}

const Registration kTemplate({"chat_template", TemplateSeeds, AcceptsTemplate});

// ------------------------------------------------------------------------------- tokenizers

bool Encodes(const absl::StatusOr<std::unique_ptr<const Tokenizer>>& tokenizer) {
  if (!tokenizer.ok()) return false;
  Encoder encoder(**tokenizer);
  std::vector<int32_t> ids;
  if (encoder.EncodeFramed("a b\xff <x>Hello,  world \xe2\x96\x81 12", &ids).ok()) {
    for (const int32_t id : ids) ATOLL_CHECK(id >= 0 && id < (*tokenizer)->vocabulary(), id);
    (void)(*tokenizer)->Decode(ids, true);
  }
  return true;
}

bool AcceptsTokenizer(std::string_view bytes) {
  return Encodes(ParseTokenizerJson(bytes, "tokenizer.json"));
}

std::vector<std::string> TokenizerSeeds() {
  return {R"({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
              "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": [
              {"id": 3, "content": "<x>"}, {"id": 4, "content": "<x>y", "normalized": false}]})",
          R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
              "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
              "decoder": {"type": "ByteLevel"}})",
          R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["?", 0.0], ["a", -1.5],
              ["b", -2.0], ["ab", -1.0]]}, "normalizer": {"type": "NFKC"}})",
          R"({"model": {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100, "vocab": {"?": 0, "a": 1, "##b": 2}},
              "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w+|\\s"},
              "behavior": "Isolated", "invert": false}})"};
}

const Registration kTokenizer({"tokenizer_json", TokenizerSeeds, AcceptsTokenizer});

bool AcceptsSentencePiece(std::string_view bytes) {
  return Encodes(ParseSentencePiece(std::string(bytes), "t.model"));
}

std::vector<std::string> SentencePieceSeeds() {
  std::vector<std::string> seeds;
  for (const auto type :
       {sentencepiece::Model::Trainer::UNIGRAM, sentencepiece::Model::Trainer::BPE}) {
    sentencepiece::Model model;
    const auto add = [&](const std::string& text, float score,
                         sentencepiece::Model::Piece::Type piece_type) {
      auto* piece = model.add_pieces();
      piece->set_piece(text), piece->set_score(score), piece->set_type(piece_type);
    };
    add("<unk>", 0, sentencepiece::Model::Piece::UNKNOWN);
    add("<s>", 0, sentencepiece::Model::Piece::CONTROL);
    add("</s>", 0, sentencepiece::Model::Piece::CONTROL);
    for (const char* text : {"a", "b", "ab", "\xe2\x96\x81"}) {
      add(text, -1.0f - static_cast<float>(model.pieces_size()),
          sentencepiece::Model::Piece::NORMAL);
    }
    model.mutable_trainer_spec()->set_model_type(type);
    model.mutable_trainer_spec()->set_unk_id(0);  // written out, so that it is changed
    seeds.push_back(model.SerializeAsString());
  }
  return seeds;
}

const Registration kSentencePiece({"sentencepiece", SentencePieceSeeds, AcceptsSentencePiece});

}  // namespace
}  // namespace atl::fuzz
