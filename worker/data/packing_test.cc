// Data whose documents are packed: several in a sequence, with marks where they begin.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/masked_tokens.h"
#include "common/rng.h"
#include "worker/data/dataset.h"
#include "worker/data/inspection.h"
#include "worker/data/shards.h"
#include "worker/data/testing/data_folder.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
using Row = std::vector<int32_t>;

constexpr int64_t kVocabulary = 256;

DataSpec Packed(DataFormat format, const std::string& path, int64_t sequence_length) {
  DataSpec spec;
  spec.format = format;
  spec.path = path;
  spec.sequence_length = sequence_length;
  spec.validation_fraction = 0;
  spec.documents = Documents::kMask;
  return spec;
}

Dataset OpenPacked(const DataSpec& spec) {
  auto data = Dataset::Open(spec, kVocabulary);
  INFO(data.status().message());
  REQUIRE(data.ok());
  return *std::move(data);
}

std::vector<Row> ReadRows(const Dataset& data, int64_t first, int64_t count) {
  std::vector<Row> rows(static_cast<size_t>(count), Row(static_cast<size_t>(data.row())));
  for (int64_t p = 0; p < count; ++p) {
    REQUIRE(data.ReadTrain(first + p, rows[static_cast<size_t>(p)]).ok());
  }
  return rows;
}

// A row's documents, as text; the padding begins with a 0, which no text has.
std::vector<std::string> ListTexts(const Row& row) {
  std::vector<std::string> texts;
  for (const int32_t token : row) {
    if (BeginsDocument(token)) texts.emplace_back();
    REQUIRE(!texts.empty());
    texts.back() += static_cast<char>(UnmaskToken(token));
  }
  return texts;
}

std::string JsonLines(const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) lines += absl::StrCat("{\"text\": \"", text, "\"}\n");
  return lines;
}

struct Lengths {
  const char* name;
  int64_t (*draw)(Rng&);
};

TEST_CASE("documents_of_any_lengths_are_packed_with_one_percent_of_padding") {
  constexpr int64_t kTokens = 1025;
  const Lengths lengths = GENERATE(
      Lengths{"short", [](Rng& rng) { return static_cast<int64_t>(1 + rng.Below(200)); }},
      Lengths{"log-normal",
              [](Rng& rng) { return static_cast<int64_t>(std::exp(5.5 + 1.4 * rng.Normal())); }},
      Lengths{"no two fit", [](Rng&) { return int64_t{600}; }});
  CAPTURE(lengths.name);
  Rng rng(1);
  std::vector<Document> documents;
  std::vector<DocumentPacker::Sequence> sequences;
  DocumentPacker packer(kTokens);
  int64_t at = 0, targets = 0;
  for (int i = 0; i < 100'000; ++i) {
    documents.push_back({at, std::max<int64_t>(1, lengths.draw(rng))});
    packer.Add(documents.back(), &sequences);
    at += documents.back().tokens;
    targets += documents.back().tokens - 1;
  }
  packer.End(&sequences);
  std::vector<bool> predicted(static_cast<size_t>(at));
  int64_t padding = 0, pieces = 0, found = 0;
  for (const DocumentPacker::Sequence& sequence : sequences) {
    int64_t left = kTokens;
    for (const Document& piece : sequence) {
      left -= piece.tokens;
      ++pieces;
      for (int64_t t = piece.begin + 1; t < piece.begin + piece.tokens; ++t, ++found) {
        if (predicted[static_cast<size_t>(t)]) FAIL("token " << t << " is a target twice");
        predicted[static_cast<size_t>(t)] = true;
      }
    }
    REQUIRE(left >= 0);
    padding += left;
  }
  CHECK(found == targets);
  for (const Document& document : documents) {
    if (predicted[static_cast<size_t>(document.begin)]) FAIL("a first token is a target");
  }
  const auto whole = static_cast<double>(std::ssize(sequences) * kTokens);
  CHECK(static_cast<double>(padding) / whole <= 0.01);
  // Documents that fit are cut only where nothing else fills a sequence.
  if (lengths.name != std::string("no two fit")) {
    const auto longer = std::count_if(documents.begin(), documents.end(),
                                      [](const Document& d) { return d.tokens > kTokens; });
    int64_t needed = 0;  // parts if none that fits is cut
    for (const Document& d : documents) {
      needed += d.tokens < 2 ? 0 : (d.tokens - 2) / (kTokens - 1) + 1;
    }
    CAPTURE(longer, pieces, needed);
    CHECK(static_cast<double>(pieces - needed) < 1e-3 * static_cast<double>(needed));
  }
}

TEST_CASE("lines_of_jsonl_are_packed_whole_and_each_begins_with_a_mark") {
  testing::DataFolder folder;
  const std::vector<std::string> texts = {"abcdef", "gh", "", "ijklmnopqrstuvwxyz", "ABCD", "E"};
  const DataSpec spec = Packed(DataFormat::kJsonl, folder.Write("d.jsonl", JsonLines(texts)), 9);
  const Dataset data = OpenPacked(spec);
  std::map<std::string, int> seen;
  int64_t masked = 0;
  const std::vector<Row> rows = ReadRows(data, 0, data.train_sequences());
  for (const Row& row : rows) {
    REQUIRE(BeginsDocument(row[0]));
    for (const std::string& text : ListTexts(row)) ++seen[text.substr(0, text.find('\0'))];
    masked += CountMasked(row, 10);
  }
  // A line feed ends each. The long one is cut where the first part's last token begins the next.
  const std::map<std::string, int> expected = {
      {"abcdef\n", 1}, {"gh\n", 1}, {"ijklmnopqr", 1}, {"rstuvwxyz\n", 1}, {"ABCD\n", 1},
      {"E\n", 1},      {"", 1}};
  CHECK(seen == expected);
  const std::vector<PositionRange> all = {{0, data.train_sequences()}};
  CHECK(*data.CountMasked(all) == masked);
  // Every token but the first of each line is a target.
  CHECK(data.train_sequences() * 9 - masked == 6 + 2 + 18 + 4 + 1);
}

TEST_CASE("a_position_is_the_same_packed_row_after_a_restart_and_on_another_machine") {
  testing::DataFolder folder;
  std::vector<std::string> texts;
  Rng rng(2);
  for (int i = 0; i < 500; ++i) {
    texts.emplace_back(1 + rng.Below(60), static_cast<char>('a' + i % 26));
  }
  DataSpec spec = Packed(DataFormat::kJsonl, folder.Write("d.jsonl", JsonLines(texts)), 64);
  spec.validation_fraction = 0.1;
  const Dataset data = OpenPacked(spec);
  const int64_t sequences = data.train_sequences();
  CHECK(data.validation_sequences() == (sequences + data.validation_sequences()) / 10);
  const std::vector<Row> rows = ReadRows(data, 0, 2 * sequences);
  CHECK(ReadRows(OpenPacked(spec), 5, 2 * sequences - 5) ==
        std::vector(rows.begin() + 5, rows.end()));
  setenv("ATOLL_DATA_CACHE", folder.at("other").c_str(), 1);
  const Dataset other = OpenPacked(spec);
  CHECK(other.digest() == data.digest());
  CHECK(ReadRows(other, 0, 2 * sequences) == rows);
  // The epochs have the same rows, in orders of their own.
  std::vector<Row> first(rows.begin(), rows.begin() + sequences);
  std::vector<Row> second(rows.begin() + sequences, rows.end());
  CHECK(first != second);
  std::ranges::sort(first);
  std::ranges::sort(second);
  CHECK(first == second);
  spec.documents = Documents::kText;
  CHECK(OpenPacked(spec).digest() != data.digest());
}

TEST_CASE("packed_conversations_keep_their_masks") {
  testing::DataFolder folder;
  const DataSpec spec = Packed(DataFormat::kChat,
                               folder.Write("c.jsonl",
                                            "{\"prompt\": \"ab\", \"answer\": \"c\"}\n"
                                            "{\"prompt\": \"d\", \"answer\": \"ef\"}\n"),
                               12);
  const auto data = Dataset::Open(spec, kVocabulary);
  INFO(data.status().message());
  REQUIRE(data.ok());
  REQUIRE(data->train_sequences() == 1);
  Row row(13);
  REQUIRE(data->ReadTrain(0, row).ok());
  int32_t documents = 0;
  std::string answers;
  for (const int32_t token : row) {
    documents += BeginsDocument(token) ? 1 : 0;
    if (token >= 0) answers += static_cast<char>(token);
  }
  CHECK(documents == 3);  // and the padding
  CHECK((answers == "c\nef\n" || answers == "ef\nc\n"));
}

TEST_CASE("the_end_of_text_of_shards_ends_a_packed_document_and_belongs_to_it") {
  testing::DataFolder folder;
  const auto write = [&](const std::string& name, const Row& tokens, ShardIndex index) {
    index.vocabulary = kVocabulary;
    auto writer = ShardWriter::Create(folder.at(name), index, 3);
    REQUIRE(writer.ok());
    REQUIRE((*writer)->Append(tokens).ok());
    REQUIRE((*writer)->Finish().ok());
    return folder.at(name);
  };
  const Row tokens = {'a', 'b', 7, 7, 'c', 'd', 'e', 7, 'f', 'g'};
  const Dataset data =
      OpenPacked(Packed(DataFormat::kShards, write("s", tokens, {.end_of_text = 7}), 8));
  REQUIRE(data.train_sequences() == 1);
  const Row expected = {MarkDocument('c'), 'd', 'e', 7, MarkDocument('a'), 'b', 7,
                        MarkDocument('f'), 'g'};
  CHECK(ReadRows(data, 0, 1)[0] == expected);
  for (const ShardIndex& index : {ShardIndex{}, ShardIndex{.masked = true, .end_of_text = 7}}) {
    const DataSpec spec =
        Packed(DataFormat::kShards, write(absl::StrCat("r", index.masked), {1, 2, 7}, index), 8);
    const absl::Status status = Dataset::Open(spec, kVocabulary).status();
    CHECK_THAT(std::string(status.message()), Contains(spec.path + ": data.documents = \"mask\""));
    CHECK(InspectData(spec, kVocabulary).status() == status);
  }
}

TEST_CASE("validate_counts_packed_sequences_as_a_worker_does") {
  testing::DataFolder folder;
  std::vector<std::string> texts;
  for (size_t i = 0; i < 300; ++i) texts.emplace_back(1 + i * 37 % 90, 'x');
  DataSpec spec = Packed(DataFormat::kJsonl, folder.Write("d.jsonl", JsonLines(texts)), 128);
  spec.validation_fraction = 0.2;
  const Dataset data = OpenPacked(spec);
  const auto found = InspectData(spec, kVocabulary);
  REQUIRE(found.ok());
  CHECK_THAT(found->text,
             Contains(absl::StrCat("300 documents in ", data.train_sequences(), " sequences and ",
                                   data.validation_sequences(), " held out")));
  spec.sequence_length = 1 << 16;
  CHECK_THAT(std::string(InspectData(spec, kVocabulary).status().message()),
             Contains("fill 1 sequence of data.sequence_length = 65536") &&
                 Contains("leaves none to validate with"));
  CHECK(absl::IsInvalidArgument(Dataset::Open(spec, kVocabulary).status()));
}

}  // namespace
}  // namespace atl
