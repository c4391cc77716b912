// Decoders of what users write and download: TOML, config.json, tokenizers, plans and profiles,
// conversations.

#include "cli/job_file.h"
#include "common/check.h"
#include "common/jinja/jinja.h"
#include "common/model/hugging_face.h"
#include "common/model/layout.h"
#include "common/object_store/xml.h"
#include "common/tokenizer/sentencepiece_model.pb.h"
#include "common/tokenizer/tokenizer.h"
#include "common/trust/token.h"
#include "coordinator/plan_io/cluster_file.h"
#include "coordinator/plan_io/profile_file.h"
#include "tests/fuzz/decoder.h"
#include "worker/data/chat/conversation.h"

namespace atl::fuzz {
namespace {

absl::string_view Text(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

// ------------------------------------------------------------------------------------- TOML

bool AcceptsJob(std::string_view bytes) { return cli::ParseJob(Text(bytes), "/j/job.toml").ok(); }

std::vector<std::string> JobSeeds() {
  return {R"(name = "tiny"
[model]
family = "llama"
hidden = 64
layers = 2
heads = 4
[data]
path = "corpus.txt"
[outer]
momentum = 0.5
overlap = "carry"
[schedule]
train_tokens = 1_000_000
)"};
}

const Registration kJob({"job_toml", JobSeeds, AcceptsJob});

bool AcceptsCluster(std::string_view bytes) {
  const auto spec = ParseClusterToml(Text(bytes), "cluster.toml");
  return spec.ok() && ToCluster(*spec).ok();
}

std::vector<std::string> ClusterSeeds() {
  return {R"([[devices]]
id = "a0"
type = "a100-80"
node = "n0"
site = "paris"
[[devices]]
id = "b0"
type = "h20"
node = "n1"
site = "oslo"
memory_bytes = 50_000_000_000
[[trunks]]
name = "sea"
bandwidth_bytes_per_s = 1e9
[[links]]
from = "paris"
to = "oslo"
edges = [{ latency_ns = 20_000_000, bandwidth_bytes_per_s = 1.25e9, trunk = "sea" }]
[[links]]
from = "oslo"
to = "paris"
edges = [{ latency_ns = 20_000_000, bandwidth_bytes_per_s = 1.25e9 }]
)"};
}

const Registration kCluster({"cluster_toml", ClusterSeeds, AcceptsCluster});

// ------------------------------------------------------------------------------------- JSON

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

bool AcceptsProfile(std::string_view bytes) {
  const auto profile = ParseProfileJson(Text(bytes), "p.json");
  if (!profile.ok()) return false;
  plan::Model model;
  model.layers.resize(2);
  plan::CostOptions options;
  return ToProfiled(*profile, &model, &options).ok();
}

std::vector<std::string> ProfileSeeds() {
  return {R"({"cluster": {
    "devices": [{"id": "a/0", "type": "cpu", "node": "a", "site": "s", "memory_bytes": "1000000000"},
                {"id": "b/0", "type": "cpu", "node": "b", "site": "s", "memory_bytes": "950000000"}],
    "links": [{"from": "a/0", "to": "b/0",
               "edges": [{"latency_ns": "1000", "bandwidth_bytes_per_s": 1e8}]}]},
  "times": [{"type": "cpu", "tensor_parallel": 1, "micro_batch_sequences": 1, "layer": 0,
             "forward_ns": "10", "weight_gradient_ns": "20"},
            {"type": "cpu", "tensor_parallel": 1, "micro_batch_sequences": 1, "layer": 1,
             "forward_ns": "1000", "input_gradient_ns": "1000", "weight_gradient_ns": "1000"}]})"};
}

const Registration kProfile({"profile_json", ProfileSeeds, AcceptsProfile});

bool AcceptsChat(std::string_view bytes) { return ParseChat(bytes, "chat.jsonl", 1).ok(); }

std::vector<std::string> ChatSeeds() {
  return {
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
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

// --------------------------------------------------------------------- small words and answers

bool AcceptsToken(std::string_view bytes) { return ParseJoinAddress(Text(bytes)).ok(); }

std::vector<std::string> TokenSeeds() {
  return {ToText({std::string(32, 'f'), std::string(20, 's')}) + "@example.org:7400"};
}

const Registration kToken({"join_token", TokenSeeds, AcceptsToken});

bool AcceptsXml(std::string_view bytes) {
  size_t size = 0;
  for (const std::string_view contents : XmlElements(bytes, "Contents")) {
    size += XmlText(contents, "Key").size();
  }
  return size > 0;
}

std::vector<std::string> XmlSeeds() {
  return {"<L><Contents><Key>a&amp;b</Key></Contents><Contents><Key>c</Key></Contents></L>"};
}

const Registration kXml({"s3_xml", XmlSeeds, AcceptsXml});

}  // namespace
}  // namespace atl::fuzz
