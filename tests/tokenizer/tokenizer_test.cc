// Tokenizers against what their peers made of the same lines (oracle.txt: numbers; `oracle` makes
// them), there and back, and against files that are damaged.

#include "common/tokenizer/tokenizer.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/escaping.h"
#include "common/rng.h"
#include "common/tokenizer/regex.h"
#include "common/tokenizer/sentencepiece_model.pb.h"
#include "common/tokenizer/unicode.h"

namespace atl {
namespace {

constexpr size_t kLinesPerDigest = 100;

std::string TestFile(const std::string& name) { return "tests/tokenizer/" + name; }

std::vector<std::string> ReadLines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string Whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::unique_ptr<const Tokenizer> Opened(const std::string& name) {
  auto tokenizer = OpenTokenizer(TestFile("small/" + name));
  INFO(tokenizer.status().message());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text) {
  Encoder encoder(tokenizer);
  std::vector<int32_t> ids;
  REQUIRE(encoder.Encode(text, &ids).ok());
  return ids;
}

// FNV-1a of the ids of 100 lines at a time, as digests.py has it.
std::vector<std::string> ComputeDigests(const Tokenizer& tokenizer,
                                        const std::vector<std::string>& lines) {
  std::vector<std::string> digests;
  Encoder encoder(tokenizer);
  for (size_t first = 0; first < lines.size(); first += kLinesPerDigest) {
    uint64_t digest = 0xcbf29ce484222325;
    for (size_t i = first; i < std::min(first + kLinesPerDigest, lines.size()); ++i) {
      std::vector<int32_t> ids;
      REQUIRE(encoder.EncodeFramed(lines[i], &ids).ok());
      ids.push_back(-1);
      for (const int32_t id : ids) {
        for (int shift = 0; shift < 32; shift += 8) {
          digest = (digest ^ ((static_cast<uint32_t>(id) >> shift) & 255)) * 0x100000001b3;
        }
      }
    }
    char text[17];
    std::snprintf(text, sizeof text, "%016lx", static_cast<unsigned long>(digest));
    digests.emplace_back(text);
  }
  return digests;
}

std::map<std::string, std::vector<std::string>> Oracle() {
  std::map<std::string, std::vector<std::string>> oracle;
  for (const std::string& line : ReadLines(TestFile("oracle.txt"))) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (std::string word; words >> word;) oracle[name].push_back(word);
  }
  return oracle;
}

// Small tokenizer.json with one model; `parts`: further members, each with a comma before it.
std::string Json(const std::string& model, const std::string& parts = "") {
  return "{\"model\": " + model + parts + "}";
}
const std::string kWords =
    R"({"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"})";

std::string WhyNot(const std::string& json) {
  const auto tokenizer = ParseTokenizerJson(json, "t.json");
  REQUIRE_FALSE(tokenizer.ok());
  return std::string(tokenizer.status().message());
}

TEST_CASE("ids of 10,000 lines are those of the peers") {
  const auto oracle = Oracle();
  REQUIRE(oracle.size() == 6);
  for (const auto& [name, expected] : oracle) {
    CAPTURE(name);
    const bool in_all_versions = name == "word_piece" || name == "unigram";
    const std::vector<std::string> lines =
        ReadLines(TestFile(in_all_versions ? "settled.txt" : "lines.txt"));
    REQUIRE(lines.size() == 10000);
    REQUIRE(ComputeDigests(*Opened(name), lines) == expected);
  }
}

TEST_CASE("byte-level tokens become the same text again, also what is no UTF-8") {
  const auto tokenizer = Opened("llama3");
  for (const std::string& line : ReadLines(TestFile("lines.txt"))) {
    REQUIRE(*tokenizer->Decode(Ids(*tokenizer, line), false) == line);
  }
  const std::string broken = "a\xff\xe2\x82 \xf0\x9f\x98\xed\xa0\x80z";
  REQUIRE(*tokenizer->Decode(Ids(*tokenizer, broken), false) ==
          "a\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz");
}

TEST_CASE("SentencePiece's spelling becomes text again: spaces, bytes, one space less in front") {
  const auto tokenizer = Opened("sentencepiece_bpe");
  const std::string text = "the time, \xe6\xbc\xa2 \xf0\x9f\x98\x80 of";
  REQUIRE(*tokenizer->Decode(Ids(*tokenizer, text), true) == text);
  REQUIRE(tokenizer->before().size() == 1);
  REQUIRE(tokenizer->TokenId("<s>") == tokenizer->before()[0]);
}

TEST_CASE("special tokens are found in text, and left out of text") {
  const auto tokenizer = Opened("gpt2");
  const std::vector<int32_t> ids = Ids(*tokenizer, "a<|endoftext|>b");
  REQUIRE(ids.size() == 3);
  REQUIRE(ids[1] == *tokenizer->TokenId("<|endoftext|>"));
  REQUIRE(*tokenizer->Decode(ids, true) == "ab");
  REQUIRE(*tokenizer->Decode(ids, false) == "a<|endoftext|>b");
}

TEST_CASE("tokens_around_a_text_are_those_of_transformers_class") {
  const std::string text = Json(kWords, R"(, "added_tokens": [{"id": 3, "content": "<s>",
      "special": true}, {"id": 4, "content": "</s>", "special": true}], "post_processor":
      {"type": "TemplateProcessing", "special_tokens": {"<s>": {"id": "<s>", "ids": [3]}},
       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                  {"Sequence": {"id": "A", "type_id": 0}}]})");
  TokenizerConfig config;
  config.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const auto open = [&] {
    auto tokenizer = ParseTokenizerJson(text, "t.json", std::nullopt, config);
    INFO(tokenizer.status().message());
    REQUIRE(tokenizer.ok());
    return *std::move(tokenizer);
  };
  const auto plain = open();
  CHECK(plain->before().size() == 1);
  CHECK(plain->warning().empty());
  config.tokenizer_class = "LlamaTokenizerFast";
  CHECK(open()->warning().empty());
  CHECK(open()->digest() == plain->digest());
  config.add_bos = false;
  config.add_eos = true;
  CHECK(open()->before().empty());
  REQUIRE(open()->after().size() == 1);
  CHECK(open()->after()[0] == 4);
  CHECK(open()->digest() != plain->digest());
  CHECK(open()->warning().find("the former are followed") != std::string::npos);
  config.tokenizer_class = "PreTrainedTokenizerFast";
  CHECK(open()->before().size() == 1);
  CHECK(open()->after().empty());
  CHECK(open()->warning().find("the latter is followed") != std::string::npos);
}

TEST_CASE("special_tokens_that_a_text_spells_are_found_where_they_begin") {
  const auto tokenizer = Opened("gpt2");
  const auto places = tokenizer->FindSpecialTokens("a <|endoftext|>\xc3\xa9<|endoftext|> <|end");
  REQUIRE(places.size() == 2);
  CHECK(places[0].begin == 2);
  CHECK(places[0].bytes == 13);
  CHECK(places[1].begin == 17);
}

TEST_CASE("added tokens: the longest wins, words stay whole, white space is taken along") {
  const auto tokenizer = ParseTokenizerJson(
      Json(kWords, R"(, "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": [
        {"id": 3, "content": "<x>"}, {"id": 4, "content": "<x>y", "normalized": false},
        {"id": 5, "content": "w", "single_word": true, "normalized": false},
        {"id": 6, "content": "!", "lstrip": true, "rstrip": true, "normalized": false}])"),
      "t.json");
  REQUIRE(tokenizer.ok());
  REQUIRE(Ids(**tokenizer, "a <x>y b<x>") == std::vector<int32_t>{0, 4, 1, 3});
  REQUIRE(Ids(**tokenizer, "w aw w") == std::vector<int32_t>{5, 2, 5});
  REQUIRE(Ids(**tokenizer, "a  !  b") == std::vector<int32_t>{0, 6, 1});
}

TEST_CASE("patterns mean by white space and words what Unicode does, and classes join") {
  const auto spaces = tokenizer::Regex::Compile("\\s");
  REQUIRE(spaces->Find("\xc2\x85", 0)->found);            // next line
  REQUIRE_FALSE(spaces->Find("\xe1\xa0\x8e", 0)->found);  // Mongolian vowel separator
  const auto joined = tokenizer::Regex::Compile("[^(\\s|[.,])]+");
  const auto match = joined->Find("  .ab,", 0);
  REQUIRE(match->found);
  REQUIRE(match->begin == 3);
  REQUIRE(match->end == 5);
  REQUIRE_FALSE(tokenizer::Regex::Compile("[a-z&&[^b]]").ok());
  REQUIRE_FALSE(tokenizer::Regex::Compile("(").ok());
}

TEST_CASE("a hostile file is refused with one message that names the field") {
  using Catch::Matchers::Contains;
  REQUIRE_THAT(WhyNot("{"), Contains("t.json: is not JSON"));
  REQUIRE_THAT(WhyNot("[]"), Contains("not a JSON object"));
  REQUIRE_THAT(WhyNot("{}"), Contains("model: must be an object"));
  REQUIRE_THAT(WhyNot(Json(R"({"type": "Magic", "vocab": {"a": 0}})")), Contains("model.type"));
  REQUIRE_THAT(WhyNot(Json(R"({"type": "WordLevel", "vocab": {"a": 99999999999}})")),
               Contains("99999999999"));
  REQUIRE_THAT(WhyNot(Json(R"({"type": "WordLevel", "vocab": {"a": -1}})")), Contains("-1"));
  // Room for eight million tokens, of which there is one.
  REQUIRE_THAT(WhyNot(Json(R"({"type": "WordLevel", "vocab": {"a": 8388608}})")),
               Contains("8388608"));
  REQUIRE_THAT(WhyNot(Json(R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]})")),
               Contains("model.merges[0]"));
  REQUIRE_THAT(WhyNot(Json(R"({"type": "Unigram", "vocab": [["a", "x"]]})")),
               Contains("model.vocab[0]"));
  REQUIRE_THAT(WhyNot(Json(kWords, R"(, "normalizer": {"type": "Precompiled",
      "precompiled_charsmap": "////fwAA"})")),
               Contains("normalizer.precompiled_charsmap"));
  REQUIRE_THAT(WhyNot(Json(kWords, R"(, "post_processor": {"type": "BertProcessing",
      "sep": ["x", 7], "cls": ["y", 0]})")),
               Contains("post_processor.sep"));
  std::string nested = R"({"type": "Lowercase"})";
  for (int i = 0; i < 20; ++i) nested = R"({"type": "Sequence", "normalizers": [)" + nested + "]}";
  REQUIRE_THAT(WhyNot(Json(kWords, ", \"normalizer\": " + nested)), Contains("nested too deeply"));
  REQUIRE(absl::IsNotFound(OpenTokenizer("/nowhere").status()));
  REQUIRE_THAT(std::string(OpenTokenizer("/dev/null").status().message()), Contains("/dev/null"));
}

TEST_CASE("files_of_other_tokenizers_are_refused_by_what_they_are") {
  using Catch::Matchers::Contains;
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "atoll_tokenizer_XXXXXX").string();
  REQUIRE(mkdtemp(name.data()) != nullptr);
  const fs::path folder = name;
  const auto refusal = [&](const char* file, const std::string& bytes, bool by_folder) {
    fs::remove_all(folder);
    fs::create_directory(folder);
    std::ofstream(folder / file, std::ios::binary) << bytes;
    const auto found = OpenTokenizer(by_folder ? name : (folder / file).string());
    return std::string(found.status().message());
  };
  const std::string ranks = "IQ== 0\nIg== 1\n";
  for (const bool by_folder : {false, true}) {
    CHECK_THAT(refusal("tokenizer.model", ranks, by_folder), Contains("is a tiktoken file"));
  }
  for (const char* file : {"qwen.tiktoken", "vocab.txt", "tekken.json", "spiece.model"}) {
    CHECK_THAT(refusal(file, "x", true),
               Contains(std::string(", but ") + file) && Contains("save_pretrained"));
  }
  CHECK_THAT(refusal("vocab.txt", "[PAD]\n[UNK]\n", false), Contains("is a text"));
  CHECK_THAT(refusal("README.md", "x", true), Contains("has neither a tokenizer.json"));
  const std::string marked = "\xef\xbb\xbf" + Json(R"({"type": "WordLevel", "vocab": {"a": 0}})");
  CHECK(refusal("tokenizer.json", marked, true).empty());
  fs::remove_all(folder);
}

TEST_CASE("a file with any bytes changed gives a tokenizer or an error") {
  Rng rng(3);
  for (const char* name : {"qwen", "sentencepiece_bpe", "unigram"}) {
    const std::string whole = Whole(TestFile(std::string("small/") + name + "/tokenizer.json"));
    int refused = 0;
    for (int round = 0; round < 60; ++round) {
      std::string damaged = whole;
      // Where the structure is, as well as anywhere.
      for (int i = 0; i < 3; ++i) {
        const uint64_t near = i == 0 ? 2500 : damaged.size();
        damaged[rng.Below(std::min<uint64_t>(near, damaged.size()))] =
            "\"{}[],:0-9x\xff"[rng.Below(12)];
      }
      const auto tokenizer = ParseTokenizerJson(damaged, "damaged");
      refused += tokenizer.ok() ? 0 : 1;
      if (!tokenizer.ok()) continue;
      Encoder encoder(**tokenizer);
      std::vector<int32_t> ids;
      if (encoder.EncodeFramed("Hello, \xe4\xb8\x96\xe7\x95\x8c 123", &ids).ok()) {
        for (const int32_t id : ids) REQUIRE((id >= 0 && id < (*tokenizer)->vocabulary()));
      }
    }
    REQUIRE(refused > 0);
  }
}

// A precompiled map of one key: a double array of 256 units, Darts-clone's layout, and the texts.
std::string OneKeyMap(unsigned char key, const std::string& replacement) {
  std::vector<uint32_t> units(256, 0);
  units[0] = 1u << 10;                        // offset 1
  units[1 ^ key] = key | 1u << 8 | 1u << 10;  // label, a leaf, offset 1
  units[(1 ^ key) ^ 1] = 1u << 31;            // value 0
  std::string bytes(4, '\0');
  const uint32_t trie_bytes = 1024;
  std::memcpy(bytes.data(), &trie_bytes, 4);
  bytes.append(reinterpret_cast<const char*>(units.data()), trie_bytes);
  return bytes + replacement + '\0';
}

// SentencePiece's BPE of "a", "b", a line end and a space with each.
std::string PairsModel(const std::string& charsmap, bool remove_extra_whitespaces) {
  sentencepiece::Model model;
  for (const char* piece : {"<unk>", "a", "b", "\n", "\xe2\x96\x81",
                            "\xe2\x96\x81"
                            "a",
                            "\xe2\x96\x81"
                            "b"}) {
    auto* added = model.add_pieces();
    added->set_piece(piece);
    added->set_type(added == &model.pieces(0) ? sentencepiece::Model::Piece::UNKNOWN
                                              : sentencepiece::Model::Piece::NORMAL);
  }
  model.mutable_trainer_spec()->set_model_type(sentencepiece::Model::Trainer::BPE);
  model.mutable_trainer_spec()->set_unk_id(0);
  model.mutable_trainer_spec()->set_bos_id(-1);
  auto* normalizer = model.mutable_normalizer_spec();
  normalizer->set_precompiled_charsmap(charsmap);
  normalizer->set_add_dummy_prefix(true);
  normalizer->set_remove_extra_whitespaces(remove_extra_whitespaces);
  normalizer->set_escape_whitespaces(true);
  return model.SerializeAsString();
}

TEST_CASE("a_sentencepiece_text_that_continues_another_has_the_tokens_of_both_as_one") {
  const std::vector<std::pair<std::string, std::string>> cuts = {
      {"a b\n", "a b"}, {"a b\n", "  b"}, {"a ", ""}, {"", "a"}, {"a b", " b"}};
  for (const bool line_ends_are_spaces : {false, true}) {
    for (const bool removes : {false, true}) {
      if (line_ends_are_spaces && !removes) continue;  // a cut behind a line end adds a token
      CAPTURE(line_ends_are_spaces, removes);
      const auto tokenizer = ParseSentencePiece(
          PairsModel(line_ends_are_spaces ? OneKeyMap('\n', " ") : "", removes), "m.model");
      INFO(tokenizer.status().message());
      REQUIRE(tokenizer.ok());
      for (const auto& [first, second] : cuts) {
        CAPTURE(first, second);
        Encoder encoder(**tokenizer);
        std::vector<int32_t> parts;
        REQUIRE(encoder.Encode(first, &parts).ok());
        REQUIRE(encoder.Encode(second, &parts, /*continues=*/!first.empty()).ok());
        CHECK(parts == Ids(**tokenizer, first + second));
      }
    }
  }
}

TEST_CASE("a precompiled map replaces clusters and characters, and walks stay inside it") {
  const std::string bytes = OneKeyMap('a', "xy");
  const std::string json = Json(kWords,
                                ", \"normalizer\": {\"type\": \"Precompiled\", "
                                "\"precompiled_charsmap\": \"" +
                                    absl::Base64Escape(bytes) +
                                    "\"}, \"added_tokens\": "
                                    "[{\"id\": 3, \"content\": \"A\"}]");
  const auto tokenizer = ParseTokenizerJson(json, "t.json");
  INFO(tokenizer.status().message());
  REQUIRE(tokenizer.ok());
  REQUIRE(Ids(**tokenizer, "b") == std::vector<int32_t>{1});
  REQUIRE(Ids(**tokenizer, "a") == std::vector<int32_t>{2});  // "xy" is no token
}

TEST_CASE("Unicode: normal forms, lower case, characters") {
  using tokenizer::Form;
  REQUIRE(tokenizer::Normalized("e\xcc\x81", Form::kNfc) == "\xc3\xa9");
  REQUIRE(tokenizer::Normalized("\xc3\xa9", Form::kNfd) == "e\xcc\x81");
  REQUIRE(tokenizer::Normalized("\xef\xac\x81", Form::kNfkc) == "fi");
  REQUIRE(tokenizer::Lowercased("\xc4\xb0\xce\xa3") == "i\xcc\x87\xcf\x83");
  REQUIRE(tokenizer::GraphemeBytes("e\xcc\x81x", 0) == 3);
}

}  // namespace
}  // namespace atl
