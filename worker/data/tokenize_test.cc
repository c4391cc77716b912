#include "worker/data/tokenize.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "worker/data/inputs.h"
#include "worker/data/testing/data_folder.h"
#include "worker/data/token_stream.h"

namespace atl {
namespace {

using namespace std::string_literals;
using Catch::Matchers::Contains;
using Folder = testing::DataFolder;
using testing::AllTokens, testing::Gzipped, testing::LongText, testing::Spec, testing::Zstd;
namespace fs = std::filesystem;

std::string ReadAll(const std::string& path) {
  const auto reader = TextReader::Open(path);
  if (!reader.ok()) return std::string(reader.status().message());
  std::string text;
  while (!(*reader)->ended()) {
    const absl::Status status = (*reader)->Read(1000, &text);
    if (!status.ok()) return std::string(status.message());
  }
  return text;
}

// ---- inputs ----

TEST_CASE("gzip and zstd are read as the text inside, and several members one after the other") {
  Folder folder;
  const std::string text = LongText(50000);
  CHECK(ReadAll(folder.Write("plain", text)) == text);
  CHECK(ReadAll(folder.Write("a.gz", Gzipped(text) + Gzipped("more"))) == text + "more");
  CHECK(ReadAll(folder.Write("a.zst", Zstd(text) + Zstd("more"))) == text + "more");
  CHECK(*IsCompressed(folder.at("a.gz")));
  CHECK_FALSE(*IsCompressed(folder.at("plain")));
  CHECK(ReadAll(folder.Write("empty", "")).empty());
}

TEST_CASE("compressed data that breaks off or is damaged is refused with the file's name") {
  Folder folder;
  const std::string text = LongText(5000);
  std::string packed = Gzipped(text);
  CHECK_THAT(ReadAll(folder.Write("cut.gz", packed.substr(0, packed.size() / 2))),
             Contains("cut.gz") && Contains("breaks off"));
  packed[packed.size() / 2] = static_cast<char>(packed[packed.size() / 2] ^ 0x55);
  CHECK_THAT(ReadAll(folder.Write("bad.gz", packed)), Contains("bad.gz"));
  packed = Zstd(text);
  CHECK_THAT(ReadAll(folder.Write("cut.zst", packed.substr(0, packed.size() / 2))),
             Contains("cut.zst") && Contains("breaks off"));
}

TEST_CASE("a glob names files in order; one that matches none is refused") {
  Folder folder;
  folder.Write("b.txt", "b");
  folder.Write("a.txt", "a");
  fs::create_directory(folder.at("c.txt"));
  CHECK(*ExpandGlob(folder.at("*.txt")) ==
        std::vector<std::string>{folder.at("a.txt"), folder.at("b.txt")});
  CHECK(absl::IsNotFound(ExpandGlob(folder.at("*.json")).status()));
}

TEST_CASE("folders that a glob matches are named, and refused where they are all") {
  Folder folder;
  folder.Write("a.txt", "a");
  fs::create_directory(folder.at("sub"));
  folder.Write("sub/b.txt", "b");
  LeftOut left_out;
  CHECK(*ExpandGlob(folder.at("*"), {}, &left_out) == std::vector<std::string>{folder.at("a.txt")});
  CHECK(left_out.Text() == "leaves out 1: " + folder.at("sub/") + " (a folder)");
  LeftOut below;
  CHECK(ExpandGlob(folder.at("**"), {}, &below)->size() == 2);
  CHECK(ExpandGlob(folder.at("**/*"), {}, &below)->size() == 2);
  CHECK(below.Text().empty());
  const absl::Status alone = ExpandGlob(folder.at("s*")).status();
  CHECK(absl::IsFailedPrecondition(alone));
  CHECK_THAT(std::string(alone.message()), Contains(folder.at("sub/**")));
}

// ---- tokenize ----

TEST_CASE("lines_of_no_use_are_left_out_and_counted_where_the_job_says_so") {
  Folder folder;
  TokenizeOptions options;
  options.files = {folder.Write("a.jsonl",
                                "{\"text\": \"a\"}\n{\"text\": nul}\n{\"x\": 1}\n"
                                "{\"text\": \"b\"}\n")};
  options.jsonl = true;
  options.end_of_text = '\n';
  CHECK_THAT(std::string(Tokenize(options, folder.at("all")).status().message()),
             Contains("a.jsonl:2:10: "));
  options.skip_bad_documents = true;
  const auto index = Tokenize(options, folder.at("good"));
  REQUIRE(index.ok());
  CHECK(index->documents == 2);
  CHECK(AllTokens(folder.at("good")) == std::vector<int32_t>{'a', '\n', 'b', '\n'});
  const auto read = ReadShardIndex(folder.at("good"));
  REQUIRE(read.ok());
  CHECK(read->skipped.count == 2);
  CHECK_THAT(read->skipped.first, Contains("a.jsonl:2:10: "));
}

TEST_CASE("data_whose_every_line_is_left_out_are_refused_with_the_first_cause") {
  Folder folder;
  TokenizeOptions options;
  options.files = {folder.Write("a.jsonl", "{\"x\": 1}\n")};
  options.jsonl = options.skip_bad_documents = true;
  CHECK_THAT(std::string(Tokenize(options, folder.at("none")).status().message()),
             Contains("no text") && Contains("a.jsonl:1: has no field"));
}

TEST_CASE("shards hold the documents in order, whatever the number of threads") {
  Folder folder;
  const auto tokenizer = OpenTokenizer(folder.Tokenizer());
  REQUIRE(tokenizer.ok());
  TokenizeOptions options;
  options.files = {folder.Write("1", LongText(400000)), folder.Write("2", "a b"),
                   folder.Write("3.gz", Gzipped(LongText(1000)))};
  options.tokenizer = tokenizer->get();
  options.end_of_text = *EndOfText(**tokenizer, folder.Tokenizer());
  REQUIRE(options.end_of_text == 3);
  options.shard_tokens_max = 100000;
  std::vector<std::vector<int32_t>> results;
  for (const int threads : {1, 4}) {
    options.threads = threads;
    const std::string to = folder.at("out" + std::to_string(threads));
    const auto index = Tokenize(options, to);
    INFO(index.status().message());
    REQUIRE(index.ok());
    CHECK(index->documents == 3);
    CHECK(index->token_bits == 16);
    CHECK(index->shards.size() == 5);
    CHECK(index->tokens == 400000 + 1 + 2 + 1 + 1000 + 1);
    CHECK(ReadShardIndex(to)->shards.back().digest == index->shards.back().digest);
    results.push_back(AllTokens(to));
  }
  CHECK(results[0] == results[1]);
  CHECK(std::vector<int32_t>(results[0].begin() + 400000, results[0].begin() + 400004) ==
        std::vector<int32_t>{3, 0, 1, 3});
  CHECK(Tokenize(options, folder.at("out1")).status().code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("of JSONL the field is taken, and a bad line is named by file and number") {
  Folder folder;
  const auto tokenizer = OpenTokenizer(folder.Tokenizer());
  TokenizeOptions options;
  options.files = {folder.Write("x.jsonl", "{\"t\": \"a a\"}\n\n{\"t\": \"\\u0062\", \"u\": 1}")};
  options.jsonl = true;
  options.field = "t";
  options.tokenizer = tokenizer->get();
  options.end_of_text = 3;
  REQUIRE(Tokenize(options, folder.at("out")).ok());
  CHECK(AllTokens(folder.at("out")) == std::vector<int32_t>{0, 0, 3, 1, 3});
  const auto why = [&](const std::string& text) {
    options.files = {folder.Write("bad.jsonl", text)};
    fs::remove_all(folder.at("bad"));
    return std::string(Tokenize(options, folder.at("bad")).status().message());
  };
  CHECK_THAT(why("{\"t\": \"a\"}\nnope\n"), Contains("bad.jsonl:2:1: is not JSON"));
  CHECK_THAT(why("{\"x\": 1}"), Contains("bad.jsonl:1: has no field \"t\""));
  CHECK_THAT(why("{\"t\": 1}"), Contains("is a number, not text"));
  CHECK_THAT(why("[1]"), Contains("is a list, not a JSON object"));
  CHECK_THAT(why(""), Contains("no text"));
  CHECK_FALSE(fs::exists(folder.at("bad/index.json")));
}

TEST_CASE("an index that lies is refused") {
  Folder folder;
  TokenizeOptions options;
  options.files = {folder.Write("t", "text")};
  REQUIRE(Tokenize(options, folder.at("out")).ok());
  std::ifstream file(folder.at("out/index.json"));
  std::ostringstream whole;
  whole << file.rdbuf();
  const auto why = [&](const std::string& from, const std::string& to) {
    std::string text = whole.str();
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    folder.Write("out/index.json", text.replace(at, from.size(), to));
    DataSpec spec;
    spec.format = DataFormat::kShards;
    return std::string(TokenStream::Open(spec, folder.at("out"), 256).status().message());
  };
  CHECK(why("\"version\"", "\"version\"").empty());
  CHECK_THAT(why("\"version\": 1", "\"version\": 2"), Contains("version 2"));
  CHECK_THAT(why("tokens-00000.bin", "../t"), Contains("not a file's name"));
  CHECK_THAT(why("\"tokens\": 4,\n  \"v", "\"tokens\": 5,\n  \"v"), Contains("says 5 tokens"));
  CHECK_THAT(why("\"vocabulary\": 256", "\"vocabulary\": 257"), Contains("need at least 257"));
  CHECK_THAT(why("\"token_bits\": 16", "\"token_bits\": 32"), Contains("tokens-00000.bin"));
  CHECK_THAT(why("{", "["), Contains("index.json"));
}

// BPE of a few characters and pairs, with other parts of tokenizer.json.
std::string PairTokenizer(const std::string& parts, const std::string& space) {
  const auto word = [&](const std::string& text) { return "\"" + text + "\""; };
  std::string vocabulary, merges;
  int id = 0;
  for (const std::string& token : {"a"s, "b"s, "\\n"s, "\u010a"s, "?"s, space, space + "a",
                                   space + "b", space + space, "\u010a" + space}) {
    vocabulary += (id == 0 ? "" : ", ") + word(token) + ": " + std::to_string(id);
    ++id;
  }
  for (const auto& [left, right] :
       {std::pair{space, "a"s}, {space, "b"s}, {space, space}, {"\u010a"s, space}}) {
    merges += (merges.empty() ? "[" : ", [") + word(left) + ", " + word(right) + "]";
  }
  return R"({"model": {"type": "BPE", "unk_token": "?", "vocab": {)" + vocabulary +
         R"(}, "merges": [)" + merges + "]}, " + parts + "}";
}

TEST_CASE("a_long_document_has_the_tokens_that_it_has_as_a_whole") {
  Folder folder;
  const std::string space = "\u2581", byte_space = "\u0120";
  const std::vector<std::string> tokenizers = {
      PairTokenizer(R"("normalizer": {"type": "Sequence", "normalizers": [
          {"type": "Prepend", "prepend": "\u2581"},
          {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})",
                    space),
      PairTokenizer(R"("pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first",
                                         "split": false})",
                    space),
      PairTokenizer(R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true})",
                    byte_space)};
  std::string lines, indented, words;
  while (lines.size() < 600'000) {
    lines += "a b\nb a b ab\n";
    indented += "a b\n  b a b\n";
    words += "ab a  b ";
  }
  for (const std::string& json : tokenizers) {
    const auto tokenizer = OpenTokenizer(folder.Write("tokenizer.json", json));
    INFO(json << tokenizer.status().message());
    REQUIRE(tokenizer.ok());
    for (const std::string& text : {lines, indented, words}) {
      CAPTURE(text.substr(0, 20));
      std::vector<int32_t> whole;
      REQUIRE(Encoder(**tokenizer).Encode(text, &whole).ok());
      REQUIRE(std::count(whole.begin(), whole.end(), 4) == 0);  // unknown
      TokenizeOptions options;
      options.files = {folder.Write("t.txt", text)};
      options.tokenizer = tokenizer->get();
      options.threads = 2;
      fs::remove_all(folder.at("out"));
      REQUIRE(Tokenize(options, folder.at("out")).ok());
      CHECK(AllTokens(folder.at("out")) == whole);
    }
  }
}

}  // namespace
}  // namespace atl
