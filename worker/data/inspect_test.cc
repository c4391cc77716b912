// Tests of what validate reports about data that are not what they seem.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/data/inputs.h"
#include "worker/data/inspection.h"
#include "worker/data/testing/image_encoders.h"

namespace atl {
namespace {

using namespace std::string_literals;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

// ---- vocabulary of these tests ----

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "atoll_inspect_data_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    setenv("ATOLL_DATA_CACHE", (path_ / "cache").c_str(), 1);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::string Write(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(at(name)).parent_path());
    std::ofstream(at(name), std::ios::binary) << bytes;
    return at(name);
  }

 private:
  fs::path path_;
};

struct Finding {
  bool valid = false;
  std::string refusal;
  std::vector<std::string> warnings;
  std::vector<std::string> unread;
};

Finding Inspect(DataFormat format, const std::string& path, int64_t vocabulary = 256) {
  DataSpec spec;
  spec.format = format;
  spec.path = path;
  spec.sequence_length = IsImages(format) ? 1 : 16;
  spec.validation_fraction = 0;
  spec.image_size = format == DataFormat::kImageFolder ? 4 : 0;
  const auto found = InspectData(spec, vocabulary);
  if (!found.ok()) return {false, std::string(found.status().message()), {}, {}};
  return {true, "", found->warnings, found->unread};
}

std::string Prose(size_t bytes = 20'000) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) absl::StrAppend(&text, "line ", i, " of a text\n");
  return text;
}

std::string Noise(size_t bytes = 20'000) {
  std::minstd_rand random(3);
  std::string noise;
  for (size_t i = 0; i < bytes; ++i) noise += static_cast<char>(random() >> 8);
  return noise;
}

std::string Wide(const std::string& text, bool mark) {
  std::string wide = mark ? "\xff\xfe" : "";
  for (const char c : text) (wide += c) += '\0';
  return wide;
}

template <typename T>
std::string Tokens(uint32_t vocabulary, size_t count = 20'000) {
  std::minstd_rand random(1);
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const auto token = static_cast<T>(random() % vocabulary);
    bytes.append(reinterpret_cast<const char*>(&token), sizeof token);
  }
  return bytes;
}

std::string LlmcHeader(int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = tokens;
  return {reinterpret_cast<const char*>(header.data()), 1024};
}

// ---- text ----

TEST_CASE("files_of_other_kinds_are_refused_as_text_by_what_they_are") {
  Folder folder;
  const std::pair<std::string, const char*> cases[] = {
      {"PAR1" + Noise(), "a Parquet file"},
      {"ARROW1\0\0"s + Noise(), "an Arrow file"},
      {"%PDF-1.7\n" + Noise(), "a PDF document"},
      {"\x93NUMPY\1\0"s + Noise(), "a NumPy file"},
      {"\x40\0\0\0\0\0\0\0{\"a\":"s + Noise(), "a safetensors file"},
      {"\xff\xd8\xff\xe0"s + Noise(), "a JPEG image"},
      {Wide(Prose(), true), "text in UTF-16LE"},
      {Wide(Prose(), false), "iconv -f UTF-16LE"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n", "git lfs pull"},
      {"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "AccessDenied"}};
  for (const auto& [bytes, word] : cases) {
    INFO(word);
    const Finding found = Inspect(DataFormat::kText, folder.Write("f", bytes));
    CHECK_FALSE(found.valid);
    CHECK_THAT(found.refusal, Contains(folder.at("f")) && Contains(word));
  }
  CHECK_THAT(Inspect(DataFormat::kText, folder.Write("c.txt.br", Noise())).refusal,
             Contains("brotli"));
}

TEST_CASE("a_text_has_no_warning_and_what_may_be_none_has_one") {
  Folder folder;
  CHECK(Inspect(DataFormat::kText, folder.Write("good", Prose())).warnings.empty());
  const auto warning = [&](const std::string& bytes) {
    const Finding found = Inspect(DataFormat::kText, folder.Write("f", bytes));
    REQUIRE(found.valid);
    REQUIRE(found.warnings.size() == 1);
    return found.warnings[0];
  };
  std::string latin = Prose();
  for (size_t at = 7; at < latin.size(); at += 50) latin[at] = '\xe9';
  CHECK_THAT(warning(latin), Contains("no UTF-8 text, the first at byte 7") && Contains("latin1"));
  CHECK_THAT(warning(Tokens<uint16_t>(50'000)), Contains("% of "));
  CHECK_THAT(warning("<!DOCTYPE html><html><body>" + Prose() + "</body></html>"),
             Contains("an HTML page"));
}

TEST_CASE("bytes_that_are_no_text_far_behind_the_head_are_found_by_samples") {
  Folder folder;
  const Finding found =
      Inspect(DataFormat::kText, folder.Write("f", Prose(3 << 20) + Noise(1 << 20)));
  REQUIRE(found.warnings.size() == 1);
  CHECK_THAT(found.warnings[0], Contains("no UTF-8 text"));
}

TEST_CASE("every_wrong_file_of_a_folder_is_named_with_its_kind") {
  Folder folder;
  const std::string line = "{\"text\": \"a line of some length\"}\n";
  std::set<std::string> wrong;
  for (int i = 0; i < 200; ++i) {
    const std::string name = absl::StrCat("m/", 1000 + i, ".jsonl");
    const std::string kinds[] = {"PAR1" + Noise(500), "<html>" + Noise(500), "# a README\n",
                                 "{\"content\": \"another field\"}\n"};
    if (i % 10 == 7) wrong.insert(folder.at(name));
    folder.Write(name, i % 10 == 7 ? kinds[i / 10 % 4] : line + line);
  }
  const std::string refusal = Inspect(DataFormat::kJsonl, folder.at("m/*")).refusal;
  REQUIRE_THAT(refusal, Contains("20 of 200 files"));
  CHECK_THAT(refusal, Contains("is an HTML page, not JSONL"));
  for (const std::string& path : wrong) {
    INFO(path);
    CHECK(absl::StrContains(refusal, path));
  }
}

TEST_CASE("every_wrong_file_of_a_mixed_folder_is_named_in_every_format") {
  Folder folder;
  const std::string header = LlmcHeader(20240520, 1, 20'000);
  const std::pair<std::string, std::string> kinds[] = {
      {"PAR1" + Noise(400), "a Parquet file"},
      {"%PDF-1.7\n" + Noise(400), "a PDF document"},
      {"\x93NUMPY\1\0"s + Noise(400), "a NumPy file"},
      {"\xff\xd8\xff\xe0"s + Noise(400), "a JPEG image"},
      {"\x89PNG\r\n\x1a\n"s + Noise(400), "a PNG image"},
      {"GGUF" + Noise(400), "a GGUF file"},
      {"PK\3\4..............archive/data.pkl"s + Noise(400), "a PyTorch checkpoint"},
      {"\x80\4\x95"s + Noise(400), "a Python pickle"},
      {std::string(257, 'a') + "ustar" + Noise(400), "a tar archive"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a Git LFS pointer"}};
  for (const auto format : {DataFormat::kText, DataFormat::kTokens16}) {
    std::vector<std::pair<std::string, std::string>> wrong;
    for (int i = 0; i < 200; ++i) {
      const auto& [bytes, kind] = kinds[i / 10 % 10];
      const std::string name = absl::StrCat(static_cast<int>(format), "/", 1000 + i);
      const std::string good =
          format == DataFormat::kText ? Prose(500) : Tokens<uint16_t>(50'000, 500);
      folder.Write(name, i % 10 == 7 ? bytes : good);
      if (i % 10 == 7) wrong.emplace_back(folder.at(name), kind);
    }
    const std::string pattern = folder.at(absl::StrCat(static_cast<int>(format), "/*"));
    const std::string refusal = Inspect(format, pattern, 50'304).refusal;
    CHECK_THAT(refusal, Contains("20 of 200 files"));
    for (const auto& [path, kind] : wrong) {
      INFO(path << " " << kind);
      CHECK(absl::StrContains(refusal, absl::StrCat(path, ": is ", kind)));
    }
  }
}

TEST_CASE("lines_of_json_that_are_read_as_text_have_a_warning") {
  Folder folder;
  std::string lines;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&lines, "{\"text\": \"line ", i, "\"}\n");
  const Finding found = Inspect(DataFormat::kText, folder.Write("f", lines));
  REQUIRE(found.warnings.size() == 1);
  CHECK_THAT(found.warnings[0], Contains("data.format = \"jsonl\""));
  CHECK(Inspect(DataFormat::kText, folder.Write("f", "{a text}\n" + Prose())).warnings.empty());
}

TEST_CASE("what_writers_leave_beside_the_data_is_left_out_or_named") {
  Folder folder;
  const std::string line = "{\"text\": \"a line of a folder that Spark wrote\"}\n";
  folder.Write("s/part-0.json", line + line);
  folder.Write("s/part-1.json", "");
  folder.Write("s/_SUCCESS", "");
  folder.Write("s/.part-0.json.crc", "crc\0abc"s);
  CHECK(Inspect(DataFormat::kJsonl, folder.at("s/*")).valid);
  folder.Write("s/README.md", "# data");
  CHECK_THAT(Inspect(DataFormat::kJsonl, folder.at("s/*")).refusal,
             Contains("README.md:1:1: is not JSON"));
}

TEST_CASE("bad_lines_are_a_warning_where_they_are_skipped") {
  Folder folder;
  DataSpec spec;
  spec.format = DataFormat::kJsonl;
  spec.path = folder.Write("a.jsonl", "{\"text\": \"a line that is long enough\"}\n{\"text\": }\n");
  spec.sequence_length = 4;
  spec.validation_fraction = 0;
  CHECK_FALSE(InspectData(spec, 256).ok());
  spec.on_bad_document = OnBadDocument::kSkip;
  const auto found = InspectData(spec, 256);
  REQUIRE(found.ok());
  REQUIRE(found->warnings.size() == 1);
  CHECK_THAT(found->warnings[0], Contains("1 document is left out") && Contains("a.jsonl:2:10"));
}

// ---- tokens ----

TEST_CASE("token_files_are_read_as_the_width_that_they_have_or_refused") {
  Folder folder;
  const std::string narrow = Tokens<uint16_t>(50'257), wide = Tokens<uint32_t>(128'256);
  const std::string gpt2 = folder.Write("gpt2.bin", LlmcHeader(20240520, 1, 20'000) + narrow);
  const std::string llama = folder.Write("llama3.bin", LlmcHeader(20240801, 7, 20'000) + wide);
  using enum DataFormat;
  CHECK(Inspect(kTokens16, gpt2, 50'304).valid);
  CHECK(Inspect(kTokens32, llama, 128'256).valid);
  CHECK(Inspect(kTokens16, folder.Write("nano16.bin", narrow), 50'304).valid);
  CHECK(Inspect(kTokens32, folder.Write("nano32.bin", wide), 128'256).valid);
  CHECK_THAT(Inspect(kTokens16, llama, 128'256).refusal, Contains("32 bits a token"));
  CHECK_THAT(Inspect(kTokens32, gpt2, 128'256).refusal, Contains("16 bits a token"));
  CHECK_THAT(Inspect(kTokens16, folder.at("nano32.bin"), 128'256).refusal,
             Contains("16 bits") && Contains("128256"));
  CHECK_THAT(Inspect(kTokens16, folder.at("nano32.bin"), 65'536).refusal,
             Contains("every second number") && Contains("tokens32"));
  CHECK_THAT(Inspect(kTokens32, folder.at("nano16.bin"), 128'256).refusal,
             Contains("outside the model's vocabulary"));
  CHECK_THAT(Inspect(kTokens16, folder.Write("t.bin", Prose()), 50'304).refusal,
             Contains("is text, not tokens"));
}

TEST_CASE("tokens_beyond_the_vocabulary_are_found_anywhere_in_a_large_file") {
  Folder folder;
  std::string tokens = Tokens<uint16_t>(1000, 2 << 20);
  const std::string late = Tokens<uint16_t>(50'000, 1 << 18);
  tokens.replace(3 << 20, late.size(), late);
  CHECK_THAT(Inspect(DataFormat::kTokens16, folder.Write("late.bin", tokens), 1000).refusal,
             Contains("outside the model's vocabulary"));
}

TEST_CASE("tokens_beside_a_megatron_index_of_another_width_are_refused") {
  Folder folder;
  const std::string tokens = Tokens<uint32_t>(50'000);
  const int32_t size = 20'000;
  const int64_t zero = 0, one = 1, two = 2;
  const auto raw = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const std::string index = "MMIDIDX\0\0"s + raw(one) + '\4' + raw(one) + raw(two) + raw(size) +
                            raw(zero) + raw(zero) + raw(one);
  folder.Write("m.idx", index);
  CHECK(Inspect(DataFormat::kMegatron, folder.Write("m.bin", tokens), 50'304).valid);
  CHECK_THAT(Inspect(DataFormat::kTokens16, folder.at("m.bin"), 50'304).refusal,
             Contains("m.idx says 32 bits"));
  CHECK(Inspect(DataFormat::kMegatron, folder.at("m*"), 50'304).valid);
  folder.Write("m.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n");
  CHECK_THAT(Inspect(DataFormat::kMegatron, folder.at("m"), 50'304).refusal,
             Contains("m.bin: is a Git LFS pointer"));
  folder.Write("i.idx", index);
  folder.Write("b.bin", tokens);
  CHECK_THAT(Inspect(DataFormat::kMegatron, folder.at("i"), 50'304).refusal,
             Contains("i.idx: is here, but "));
  CHECK_THAT(Inspect(DataFormat::kMegatron, folder.at("b"), 50'304).refusal,
             Contains("b.bin: is here, but "));
  folder.Write("m.idx", "TNTIDX\0\0"s + raw(one));
  CHECK_THAT(Inspect(DataFormat::kMegatron, folder.at("m.bin"), 50'304).refusal,
             Contains("fairseq"));
}

TEST_CASE("blocks_of_one_token_have_a_warning") {
  Folder folder;
  const std::string tokens = Tokens<uint16_t>(50'000), zeros(1 << 16, '\0');
  const auto warnings = [&](const std::string& bytes) {
    const Finding found = Inspect(DataFormat::kTokens16, folder.Write("t.bin", bytes), 50'304);
    CHECK(found.valid);
    return found.warnings;
  };
  CHECK(warnings(tokens + zeros.substr(0, 1000)).empty());
  REQUIRE(warnings(tokens + zeros).size() == 1);
  CHECK_THAT(warnings(tokens + zeros)[0], Contains("are all 0"));
}

TEST_CASE("what_is_here_and_of_another_form_is_not_taken_for_data_of_another_machine") {
  Folder folder;
  const std::string file = folder.Write("t.bin", Tokens<uint16_t>(1000));
  CHECK_FALSE(Inspect(DataFormat::kShards, file, 1000).valid);
  const Finding found = Inspect(DataFormat::kShards, folder.at("nowhere"), 1000);
  CHECK(found.valid);
  CHECK(found.unread.size() == 1);
}

// ---- images ----

TEST_CASE("files_among_images_that_are_none_are_named") {
  Folder folder;
  for (int i = 0; i < 100; ++i) {
    folder.Write(absl::StrCat("i/cat/", i, ".jpg"),
                 i % 40 == 7 ? "<html>not found</html>" : EncodeJpeg(6, 6, 3, false));
  }
  const std::string refusal = Inspect(DataFormat::kImageFolder, folder.at("i"), 1).refusal;
  for (const char* name : {"/7.jpg", "/47.jpg", "/87.jpg"}) {
    CHECK_THAT(refusal, Contains(std::string(name)) && Contains("an HTML page"));
  }
}

}  // namespace
}  // namespace atl
