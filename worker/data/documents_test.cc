// Data whose documents are padded: a sequence for each.

#include "worker/data/documents.h"

#include <zlib.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "worker/data/dataset.h"
#include "worker/data/inspection.h"
#include "worker/data/shards.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

constexpr int32_t kPad = 256, kCls = 257, kSep = 258, kEnd = 259;
constexpr int64_t kVocabulary = 260, kLength = 8;
constexpr int32_t kNone = ~kPad;  // padding, as rows have it

using Row = std::vector<int32_t>;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "atoll_documents_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    setenv("ATOLL_DATA_CACHE", at("cache").c_str(), 1);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return at(name);
  }
  std::string WriteGzip(const std::string& name, const std::string& text) const {
    const gzFile file = gzopen(at(name).c_str(), "wb");
    REQUIRE(gzwrite(file, text.data(), static_cast<unsigned>(text.size())) ==
            static_cast<int>(text.size()));
    REQUIRE(gzclose(file) == Z_OK);
    return at(name);
  }
  // Two or three tokens in a file.
  std::string WriteShards(const std::string& name, const Row& tokens,
                          ShardIndex index = {.end_of_text = kSep}) {
    index.vocabulary = kVocabulary;
    auto writer = ShardWriter::Create(at(name), index, index.masked ? 2 : 3);
    REQUIRE(writer.ok());
    REQUIRE((*writer)->Append(tokens).ok());
    REQUIRE((*writer)->Finish().ok());
    return at(name);
  }

 private:
  fs::path path_;
};

DataSpec Padded(DataFormat format, const std::string& path, double validation_fraction = 0) {
  DataSpec spec;
  spec.format = format;
  spec.path = path;
  spec.sequence_length = kLength;
  spec.validation_fraction = validation_fraction;
  spec.pad_documents = true;
  return spec;
}

DataOptions Framed(DocumentFrame frame = {kCls, kSep, kPad}) {
  DataOptions options;
  options.frame = frame;
  return options;
}

Dataset Opened(const DataSpec& spec) {
  auto data = Dataset::Open(spec, kVocabulary, Framed());
  INFO(data.status().message());
  REQUIRE(data.ok());
  return *std::move(data);
}

// Reads the rows of every document, in the order of the data.
std::vector<Row> ReadTrainRows(const Dataset& data) {
  std::vector<Row> rows(static_cast<size_t>(data.train_sequences()));
  for (int64_t p = 0; p < data.train_sequences(); ++p) {
    Row& row = rows[static_cast<size_t>(data.Order(p))];
    row.resize(static_cast<size_t>(data.row()));
    REQUIRE(data.ReadTrain(p, row).ok());
  }
  return rows;
}
std::vector<Row> ReadTrainRows(const DataSpec& spec) { return ReadTrainRows(Opened(spec)); }

const std::vector<Row> kRows = {
    {kCls, 'a', 'b', kSep, kNone, kNone, kNone, kNone, kNone},    // short
    {kCls, 'a', 'b', 'c', 'd', 'e', 'f', kSep, kNone},            // as long as a sequence
    {kCls, 'a', 'b', 'c', 'd', 'e', 'f', kSep, kNone},            // longer
    {kCls, 'x', kSep, kNone, kNone, kNone, kNone, kNone, kNone},  // without an end
};

TEST_CASE("lines_of_text_are_documents_wherever_their_bytes_come_from") {
  Folder folder;
  const std::string text = "ab\r\n\nabcdef\nabcdefgh\n\r\nx";
  CHECK(ReadTrainRows(Padded(DataFormat::kText, folder.Write("t", text))) == kRows);
  CHECK(ReadTrainRows(Padded(DataFormat::kText, folder.Write("t", text + "\n"))) == kRows);
  CHECK(ReadTrainRows(Padded(DataFormat::kText, folder.WriteGzip("t.gz", text))) == kRows);
  folder.Write("part-1", "ab\nabcdef");  // a file's end ends a document
  folder.Write("part-2", "abcdefgh\nx\n");
  CHECK(ReadTrainRows(Padded(DataFormat::kText, folder.at("part-*"))) == kRows);
  folder.WriteGzip("packed-1", "ab\nabcdef");
  folder.WriteGzip("packed-2", "abcdefgh\nx\n");
  CHECK(ReadTrainRows(Padded(DataFormat::kText, folder.at("packed-*"))) == kRows);
}

TEST_CASE("a_line_of_jsonl_is_a_document_whatever_it_contains") {
  Folder folder;
  const std::string path = folder.Write("d.jsonl", R"({"text": "a\nb\r"})"
                                                   "\n\n"
                                                   R"({"text": ""})"
                                                   "\r\n"
                                                   R"({"text": "abcdefg"})");
  const std::vector<Row> rows = {{kCls, 'a', '\n', 'b', '\r', kSep, kNone, kNone, kNone},
                                 {kCls, 'a', 'b', 'c', 'd', 'e', 'f', kSep, kNone}};
  CHECK(ReadTrainRows(Padded(DataFormat::kJsonl, path)) == rows);
}

TEST_CASE("tokens_that_frame_texts_for_a_tokenizer_are_replaced_by_the_models") {
  Folder folder;
  DataSpec spec = Padded(DataFormat::kText, folder.Write("t.txt", "a b\nb a b a b"));
  spec.tokenizer_path = folder.Write("tokenizer.json", R"({
      "model": {"type": "WordLevel", "unk_token": "?",
                "vocab": {"a": 0, "b": 1, "?": 2, "[CLS]": 3, "[SEP]": 4}},
      "pre_tokenizer": {"type": "WhitespaceSplit"},
      "added_tokens": [{"id": 3, "content": "[CLS]", "special": true},
                       {"id": 4, "content": "[SEP]", "special": true}],
      "post_processor": {"type": "TemplateProcessing",
          "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                     {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
          "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [3], "tokens": ["[CLS]"]},
                             "[SEP]": {"id": "[SEP]", "ids": [4], "tokens": ["[SEP]"]}}}})");
  // A file is a document.
  CHECK(ReadTrainRows(spec) == std::vector<Row>{{kCls, 0, 1, 1, 0, 1, 0, kSep, kNone}});
  spec.format = DataFormat::kJsonl;
  spec.path = folder.Write("d.jsonl", R"({"text": "a"})"
                                      "\n"
                                      R"({"text": "a [SEP] b"})");
  CHECK(ReadTrainRows(spec) ==
        std::vector<Row>{{kCls, 0, kSep, kNone, kNone, kNone, kNone, kNone, kNone},
                         {kCls, 0, 4, 1, kSep, kNone, kNone, kNone, kNone}});
}

TEST_CASE("the_end_of_text_ends_a_document_of_shards_wherever_files_end") {
  Folder folder;
  const Row tokens = {kCls, 'a', 'b', kSep, kCls, kSep, kCls, 'a', 'b', 'c',  'd',  'e', 'f',
                      kSep, 'a', 'b', 'c',  'd',  'e',  'f',  'g', 'h', kSep, kCls, 'x'};
  CHECK(ReadTrainRows(Padded(DataFormat::kShards, folder.WriteShards("s", tokens))) == kRows);
  // One that the model does not know as [SEP].
  Row other;
  for (const int32_t token : tokens) {
    other.push_back(token);
    if (token == kSep) other.push_back(kEnd);
  }
  CHECK(ReadTrainRows(Padded(DataFormat::kShards,
                             folder.WriteShards("o", other, {.end_of_text = kEnd}))) == kRows);
}

TEST_CASE("shards_that_do_not_say_where_documents_end_are_refused") {
  Folder folder;
  for (const ShardIndex& index : {ShardIndex{}, ShardIndex{.masked = true, .end_of_text = kSep}}) {
    const DataSpec spec =
        Padded(DataFormat::kShards,
               folder.WriteShards(absl::StrCat("s", index.masked), {1, 2, kSep}, index));
    const absl::Status status = Dataset::Open(spec, kVocabulary, Framed()).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Contains(spec.path + ": data.pad_documents = true"));
    CHECK(InspectData(spec, kVocabulary).status() == status);
  }
}

TEST_CASE("positions_are_documents_shuffled_by_seed_and_held_out_from_the_end") {
  Folder folder;
  std::string text;
  for (int i = 0; i < 20; ++i)
    text += absl::StrCat(std::string(1, static_cast<char>('a' + i)), "\n");
  const DataSpec spec = Padded(DataFormat::kText, folder.Write("t", text), 0.2);
  const Dataset data = Opened(spec);
  REQUIRE(data.train_sequences() == 16);
  REQUIRE(data.validation_sequences() == 4);
  std::set<int32_t> trained, held_out, again;
  for (int64_t p = 0; p < 32; ++p) {
    Row row(kLength + 1);
    REQUIRE(data.ReadTrain(p, row).ok());
    (p < 16 ? trained : again).insert(row[1]);
  }
  CHECK((trained.size() == 16 && again == trained && *trained.rbegin() == 'p'));
  Row rows(4 * (kLength + 1));
  REQUIRE(data.ReadValidation(0, rows).ok());
  for (size_t r = 0; r < 4; ++r) held_out.insert(rows[r * (kLength + 1) + 1]);
  CHECK(held_out == std::set<int32_t>{'q', 'r', 's', 't'});

  DataSpec other = spec;
  other.shuffle_seed = 2;
  CHECK(Opened(other).digest() != data.digest());
  CHECK(Opened(other).Order(0) != data.Order(0));
  const auto compute_digest = [&](const DocumentFrame& frame) {
    return Dataset::Open(spec, kVocabulary, Framed(frame))->digest();
  };
  CHECK(compute_digest({kCls, kSep, kPad}) == data.digest());
  CHECK(compute_digest({kCls, kEnd, kPad}) != data.digest());
}

TEST_CASE("all_positions_of_a_document_but_15_percent_of_its_tokens_are_masked") {
  Folder folder;
  DataSpec spec = Padded(DataFormat::kText,
                         folder.Write("t", "a\n" + std::string(18, 'b') + "\n" +
                                               std::string(38, 'c') + "\n" + std::string(90, 'd')));
  spec.sequence_length = 40;
  spec.validation_path = spec.path;
  const Dataset data = Opened(spec);
  int64_t sum = 0;
  for (int64_t p = 0; p < 4; ++p) {
    const std::vector<PositionRange> one = {{p, p + 1}};
    const int64_t targets[] = {1, 3, 6, 6};
    CHECK(*data.CountMasked(one) == 40 - targets[data.Order(p)]);
    sum += *data.CountMaskedValidation(p, 1);
  }
  const std::vector<PositionRange> all = {{0, 3}, {3, 4}};
  CHECK(*data.CountMasked(all) == 160 - 16);
  CHECK(sum == 160 - 16);
}

TEST_CASE("the_index_has_8_bytes_a_document_and_is_made_once") {
  Folder folder;
  std::string text;
  int64_t documents = 0;
  while (text.size() < 2'500'000) {  // parts are of 1,048,576 tokens
    text +=
        std::string(static_cast<size_t>(documents % 97), 'x') + std::to_string(documents) + "\n";
    ++documents;
  }
  const DataSpec spec = Padded(DataFormat::kText, folder.Write("t", text));
  const std::vector<Row> rows = ReadTrainRows(spec);
  REQUIRE(std::ssize(rows) == documents);
  for (int64_t i = 0; i < documents; ++i) {
    const std::string line = std::string(static_cast<size_t>(i % 97), 'x') + std::to_string(i);
    Row row = {kCls};
    for (const char c : line.substr(0, kLength - 2)) row.push_back(c);
    row.push_back(kSep);
    row.resize(kLength + 1, kNone);
    if (rows[static_cast<size_t>(i)] != row) FAIL_CHECK("document " << i);
  }
  std::vector<fs::path> made(fs::directory_iterator(folder.at("cache")), {});
  REQUIRE(made.size() == 1);
  const fs::path entries = made[0] / "documents.bin";
  CHECK(static_cast<int64_t>(fs::file_size(entries)) == 8 * documents);
  const auto written = fs::last_write_time(entries);
  ReadTrainRows(spec);
  CHECK(fs::last_write_time(entries) == written);

  std::ofstream(entries, std::ios::binary | std::ios::in) << std::string(8, '\xff');
  const Dataset damaged = Opened(spec);
  Row row(kLength + 1);
  int64_t lost = 0;
  for (int64_t p = 0; p < documents; ++p) lost += damaged.ReadTrain(p, row).ok() ? 0 : 1;
  CHECK(lost == 1);
}

TEST_CASE("data_without_a_document_for_each_part_are_refused_as_validate_does") {
  Folder folder;
  const auto refused = [&](const std::string& text, double fraction) {
    const DataSpec spec = Padded(DataFormat::kText, folder.Write("t", text), fraction);
    CHECK(absl::IsInvalidArgument(InspectData(spec, kVocabulary).status()));
    return std::string(Dataset::Open(spec, kVocabulary, Framed()).status().message());
  };
  CHECK_THAT(refused("a\nb\nc\n", 0.05), Contains("validation part has 0 documents"));
  CHECK_THAT(refused("\n\r\n", 0), Contains("training part has 0 documents"));
  DataSpec spec = Padded(DataFormat::kText, folder.Write("t", "a\nb\n"));
  spec.sequence_length = 2;
  CHECK(absl::IsInvalidArgument(Dataset::Open(spec, kVocabulary, Framed()).status()));
}

TEST_CASE("validate_counts_documents_and_those_that_are_cut") {
  Folder folder;
  const std::string text = "ab\r\n\nabcdef\nabcdefgh\n\r\nx";
  CHECK_THAT(InspectData(Padded(DataFormat::kText, folder.Write("t", text), 0.25), 256)->text,
             Contains("3 documents and 1 held out, 1 of them cut at 6 tokens"));
  const Row tokens = {kCls, 'a', kSep, kCls, kSep, kCls, 'a', 'b', 'c', 'd', 'e', 'f', kSep, 'x'};
  const DataSpec shards = Padded(DataFormat::kShards, folder.WriteShards("s", tokens));
  CHECK_THAT(InspectData(shards, kVocabulary, {}, DocumentFrame{kCls, kSep, kPad})->text,
             Contains("3 documents, 0 of them cut at 6 tokens"));
  std::string many;
  while (many.size() <= 1 << 20) many += "abcdefghi\n";
  const auto found = InspectData(Padded(DataFormat::kText, folder.Write("t", many)), 256);
  CHECK_THAT(found->text, Contains(" of the first 104"));
  CHECK(found->unread.size() == 1);
}

}  // namespace
}  // namespace atl
