#include <snappy-c.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "worker/data/parquet/rows.h"

namespace atl::parquet {
namespace {

using namespace std::string_literals;
using Catch::Matchers::Contains;

// ---- vocabulary of these tests ----

// Writes Thrift's compact protocol.
class Thrift {
 public:
  Thrift& Int(int id, int64_t value, int type = 5) {
    Begin(id, type);
    return Varint(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
  }
  Thrift& Text(int id, const std::string& text) {
    Begin(id, 8);
    Varint(text.size());
    bytes_ += text;
    return *this;
  }
  Thrift& Struct(int id, const Thrift& inner) {
    Begin(id, 12);
    bytes_ += inner.bytes();
    return *this;
  }
  Thrift& Structs(int id, const std::vector<Thrift>& list) {
    Begin(id, 9);
    bytes_ += static_cast<char>(0xf0 | 12);
    Varint(list.size());
    for (const Thrift& one : list) bytes_ += one.bytes();
    return *this;
  }
  std::string bytes() const { return bytes_ + '\0'; }

 private:
  void Begin(int id, int type) {
    bytes_ += static_cast<char>((id - last_) << 4 | type);
    last_ = id;
  }
  Thrift& Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }
  std::string bytes_;
  int last_ = 0;
};

std::string Little(uint32_t value) { return {reinterpret_cast<const char*>(&value), 4}; }

std::string PlainText(const std::vector<std::string>& texts) {
  std::string bytes;
  for (const std::string& text : texts) bytes += Little(static_cast<uint32_t>(text.size())) + text;
  return bytes;
}

// Levels or indices of `width` bits: each number as a run of one.
std::string Runs(const std::vector<int>& numbers) {
  std::string bytes;
  for (const int number : numbers) (bytes += '\2') += static_cast<char>(number);
  return bytes;
}
std::string Levels(const std::vector<int>& numbers) {
  const std::string runs = Runs(numbers);
  return Little(static_cast<uint32_t>(runs.size())) + runs;
}

// A page of the first version as it lies in a file.
std::string Page(int values, const std::string& body, int encoding = 0, int codec = 0) {
  std::string packed = body;
  if (codec == 1) {
    packed.resize(snappy_max_compressed_length(body.size()));
    size_t bytes = packed.size();
    REQUIRE(snappy_compress(body.data(), body.size(), packed.data(), &bytes) == SNAPPY_OK);
    packed.resize(bytes);
  }
  return Thrift()
             .Int(1, 0)
             .Int(2, std::ssize(body))
             .Int(3, std::ssize(packed))
             .Struct(5, Thrift().Int(1, values).Int(2, encoding).Int(3, 3).Int(4, 3))
             .bytes() +
         packed;
}
std::string DictionaryPage(const std::vector<std::string>& texts) {
  const std::string body = PlainText(texts);
  return Thrift()
             .Int(1, 2)
             .Int(2, std::ssize(body))
             .Int(3, std::ssize(body))
             .Struct(7, Thrift().Int(1, std::ssize(texts)).Int(2, 0))
             .bytes() +
         body;
}

struct Column {
  std::string pages;
  int values = 0;
  int codec = 0;
};

Thrift Field(const std::string& name, int repetition, int type = 6) {
  return Thrift().Int(1, type).Int(3, repetition).Text(4, name);
}
Thrift Group(const std::string& name, int repetition, int children) {
  return Thrift().Int(3, repetition).Text(4, name).Int(5, children);
}

std::string File(std::vector<Thrift> schema, int rows, const std::vector<Column>& columns,
                 int top_columns = 1) {
  std::string file = "PAR1";
  std::vector<Thrift> chunks;
  for (const Column& column : columns) {
    const auto begin = static_cast<int64_t>(file.size());
    chunks.push_back(Thrift().Struct(3, Thrift()
                                            .Int(4, column.codec)
                                            .Int(5, column.values, 6)
                                            .Int(7, std::ssize(column.pages), 6)
                                            .Int(9, begin, 6)));
    file += column.pages;
  }
  schema.insert(schema.begin(), Group("schema", 0, top_columns));
  const std::string footer =
      Thrift()
          .Int(1, 1)
          .Structs(2, schema)
          .Int(3, rows, 6)
          .Structs(4, {Thrift().Structs(1, chunks).Int(2, 1, 6).Int(3, rows, 6)})
          .bytes();
  return file + footer + Little(static_cast<uint32_t>(footer.size())) + "PAR1";
}

// All rows; an error's message.
std::string Read(const std::string& file, const std::vector<std::string>& columns = {}) {
  auto rows = Rows::Open(
      [&](int64_t offset, char* out, int64_t bytes) -> absl::Status {
        REQUIRE((offset >= 0 && bytes >= 0 && offset + bytes <= std::ssize(file)));
        std::memcpy(out, file.data() + offset, static_cast<size_t>(bytes));
        return absl::OkStatus();
      },
      std::ssize(file), columns);
  if (!rows.ok()) return std::string(rows.status().message());
  std::string text;
  while (!(*rows)->ended()) {
    const absl::Status status = (*rows)->AppendRow(&text);
    if (!status.ok()) return std::string(status.message());
  }
  return text;
}

std::string Texts(const Column& column, int repetition = 0) {
  return Read(File({Field("text", repetition)}, 3, {column}));
}
constexpr const char* kAbc = "{\"text\":\"a\"}\n{\"text\":\"b\\\"\"}\n{\"text\":\"c\\u000a\"}\n";

// ---- tests ----

TEST_CASE("plain_pages_and_dictionaries_are_read_packed_or_not") {
  const std::vector<std::string> abc = {"a", "b\"", "c\n"};
  CHECK(Texts({Page(3, PlainText(abc)), 3}) == kAbc);
  CHECK(Texts({Page(3, PlainText(abc), 0, 1), 3, 1}) == kAbc);
  CHECK(Texts({Page(1, PlainText({"a"})) + Page(2, PlainText({"b\"", "c\n"})), 3}) == kAbc);
  CHECK(Texts({DictionaryPage({"c\n", "a", "b\""}) + Page(3, "\2"s + Runs({1, 2, 0}), 8), 3}) ==
        kAbc);
}

TEST_CASE("nulls_are_read_where_the_definition_levels_say_so") {
  CHECK(Texts({Page(3, Levels({1, 0, 1}) + PlainText({"a", "c"})), 3}, 1) ==
        "{\"text\":\"a\"}\n{\"text\":null}\n{\"text\":\"c\"}\n");
}

TEST_CASE("numbers_in_packed_groups_are_read") {
  std::vector<uint32_t> numbers;
  // 8 numbers of 3 bits, 0 to 7, as Parquet's documentation packs them.
  REQUIRE(DecodeRuns("\3\x88\xc6\xfa"s, 3, 8, &numbers).ok());
  CHECK(numbers == std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7});
  numbers.clear();
  REQUIRE(DecodeRuns("\x0a\5"s, 3, 5, &numbers).ok());
  CHECK(numbers == std::vector<uint32_t>(5, 5));
  CHECK_FALSE(DecodeRuns("\x0a\5"s, 3, 6, &numbers).ok());
}

TEST_CASE("lists_of_structs_are_read_as_conversations_need_them") {
  // optional group messages (LIST) { repeated group list { optional group element {
  //   required role; optional content } } }, of the rows [{u, hi}, {a, null}], null and [].
  const std::vector<Thrift> schema = {Thrift().Int(3, 1).Text(4, "messages").Int(5, 1).Int(6, 3),
                                      Group("list", 2, 1), Group("element", 1, 2), Field("role", 0),
                                      Field("content", 1)};
  const std::string repetitions = Levels({0, 1, 0, 0});
  const Column role = {Page(4, repetitions + Levels({3, 3, 0, 1}) + PlainText({"u", "a"})), 4};
  const Column content = {Page(4, repetitions + Levels({4, 3, 0, 1}) + PlainText({"hi"})), 4};
  CHECK(Read(File(schema, 3, {role, content})) ==
        "{\"messages\":[{\"role\":\"u\",\"content\":\"hi\"},{\"role\":\"a\",\"content\":null}]}\n"
        "{\"messages\":null}\n{\"messages\":[]}\n");
}

TEST_CASE("only_wanted_columns_are_read_and_one_that_is_not_there_is_named") {
  const std::vector<Thrift> schema = {Field("a", 0), Field("b", 0, 3)};  // b: 96-bit numbers
  const std::string file =
      File(schema, 1, {{Page(1, PlainText({"x"})), 1}, {Page(1, std::string(12, 'n')), 1}}, 2);
  CHECK(Read(file, {"a"}) == "{\"a\":\"x\"}\n");
  CHECK(Read(file) == "{\"a\":\"x\"}\n");
  CHECK_THAT(Read(file, {"text"}), Contains("no column \"text\"") && Contains("its columns: a, b"));
  CHECK_THAT(Read(file, {"b"}), Contains("\"b\" holds 96-bit numbers"));
}

TEST_CASE("what_is_not_supported_is_refused_by_name") {
  const std::string plain = PlainText({"a", "b", "c"});
  CHECK_THAT(Texts({Page(3, plain), 3, 4}), Contains("brotli"));
  CHECK_THAT(Texts({Page(3, plain), 3, 7}), Contains("LZ4_RAW"));
  CHECK_THAT(Texts({Page(3, plain, 6), 3}), Contains("DELTA_LENGTH_BYTE_ARRAY"));
}

TEST_CASE("damaged_files_are_refused_at_every_cut_and_flip") {
  const std::string file = File(
      {Field("text", 1)}, 3,
      {{DictionaryPage({"a", "b"}) + Page(3, Levels({1, 0, 1}) + "\1"s + Runs({1, 0}), 8), 3}});
  REQUIRE(Read(file) == "{\"text\":\"b\"}\n{\"text\":null}\n{\"text\":\"a\"}\n");
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    CHECK_FALSE(absl::StartsWith(Read(file.substr(0, bytes)), "{"));
  }
  for (size_t at = 0; at < file.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = file;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      (void)Read(flipped);  // ends, with rows or an error
    }
  }
}

}  // namespace
}  // namespace atl::parquet
