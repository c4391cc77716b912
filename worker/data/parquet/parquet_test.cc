#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "worker/data/parquet/rows.h"
#include "worker/data/parquet/testing/small_files.h"

namespace atl::parquet {
namespace {

using namespace std::string_literals;
using Catch::Matchers::Contains;

// ---- vocabulary of these tests ----

// All rows; an error's message.
std::string Read(const std::string& file, const std::vector<std::string>& columns = {},
                 const std::vector<std::string>& used = {}) {
  auto rows = Rows::Open(
      [&](int64_t offset, char* out, int64_t bytes) -> absl::Status {
        REQUIRE((offset >= 0 && bytes >= 0 && offset + bytes <= std::ssize(file)));
        std::memcpy(out, file.data() + offset, static_cast<size_t>(bytes));
        return absl::OkStatus();
      },
      std::ssize(file), columns, used);
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
  numbers.clear();
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
  CHECK_THAT(Read(file, {}, {"messages", "b"}), Contains("\"b\" holds 96-bit numbers"));
}

// Blocks of 128 in 4 parts, of which the first has the numbers behind the first one: their
// differences over -4 in 4 bits.
std::string Deltas(std::string_view first_and_folded, std::initializer_list<int> packed) {
  std::string bytes = "\x80\1\4"s + std::string(first_and_folded) + "\7\4\0\0\0"s;
  for (const int byte : packed) bytes += static_cast<char>(byte);
  return bytes + std::string(16 - packed.size(), '\0');
}

TEST_CASE("pages_of_deltas_are_read") {
  // 7, 5, 3, 1, 2 as Parquet's documentation has them; differences -2, -2, -2, 1.
  const std::string numbers = Deltas("\5\x0e"s, {0x22, 0x52});
  CHECK(Read(File({Field("n", 0, 2)}, 5, {{Page(5, numbers, 5), 5}})) ==
        "{\"n\":7}\n{\"n\":5}\n{\"n\":3}\n{\"n\":1}\n{\"n\":2}\n");
  CHECK_THAT(Read(File({Field("n", 0, 2)}, 4, {{Page(4, numbers, 5), 4}})), Contains("damaged"));
  // Lengths 1, 2, 2: "a", "b\"", "c\n".
  const std::string lengths = Deltas("\3\2"s, {0x45}) + "ab\"c\n";
  CHECK(Texts({Page(3, lengths, 6), 3}) == kAbc);
  CHECK_THAT(Texts({Page(3, lengths.substr(0, lengths.size() - 1), 6), 3}), Contains("damaged"));
  // "ab", "abc", "a": what each shares with the one before, 0, 2, 1, and the rest of it.
  const std::string prefixes = Deltas("\3\0"s, {0x36}) + Deltas("\3\4"s, {0x33}) + "abc";
  CHECK(Texts({Page(3, prefixes, 7), 3}) ==
        "{\"text\":\"ab\"}\n{\"text\":\"abc\"}\n{\"text\":\"a\"}\n");
  CHECK_THAT(Texts({Page(3, Deltas("\3\2"s, {0x36}) + Deltas("\3\4"s, {0x33}) + "abc", 7), 3}),
             Contains("damaged"));
}

TEST_CASE("what_is_not_supported_is_refused_by_name") {
  const std::string plain = PlainText({"a", "b", "c"});
  CHECK_THAT(Texts({Page(3, plain), 3, 4}), Contains("brotli"));
  CHECK_THAT(Texts({Page(3, plain), 3, 7}), Contains("LZ4_RAW"));
  CHECK_THAT(Texts({Page(3, plain, 4), 3}), Contains("BIT_PACKED"));
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
