#include "worker/data/formats/token_head.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

namespace atl {
namespace {

using Catch::Matchers::Contains;

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string Header(std::vector<int32_t> first) {
  first.resize(256);
  return Raw(first);
}

std::vector<uint32_t> Numbers(uint32_t vocabulary, int count = 2000) {
  std::minstd_rand random(1);
  std::vector<uint32_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(static_cast<uint32_t>(random()) % vocabulary);
  return numbers;
}

std::string Refusal(const std::string& file) {
  const auto head = ParseTokenHead(file.substr(0, 4096), std::ssize(file));
  return head.ok() ? "" : std::string(head.status().message());
}

std::string WidthRefusal(const std::string& file, int64_t token_bytes) {
  std::vector<int32_t> tokens;
  for (size_t at = 0; at + token_bytes <= file.size(); at += static_cast<size_t>(token_bytes)) {
    uint32_t token = 0;
    file.copy(reinterpret_cast<char*>(&token), static_cast<size_t>(token_bytes), at);
    tokens.push_back(static_cast<int32_t>(token));
  }
  return std::string(CheckTokenWidth(tokens, token_bytes).message());
}

TEST_CASE("headers_of_llm_c_say_how_wide_tokens_are") {
  const std::string narrow(2 * 300, '\x11'), wide(4 * 300, '\x11');
  const auto gpt2 = ParseTokenHead(Header({20240520, 1, 300}), 1024 + std::ssize(narrow));
  REQUIRE(gpt2.ok());
  CHECK((gpt2->begin_bytes == 1024 && gpt2->token_bytes == 2));
  const auto llama3 = ParseTokenHead(Header({20240801, 7, 300}), 1024 + std::ssize(wide));
  REQUIRE(llama3.ok());
  CHECK((llama3->begin_bytes == 1024 && llama3->token_bytes == 4));
  const auto other = ParseTokenHead(Header({20240801, 8, 300}), 1024 + std::ssize(wide));
  REQUIRE(other.ok());
  CHECK(other->token_bytes == 4);
  const auto none = ParseTokenHead(Raw(Numbers(50257)), 8000);
  REQUIRE(none.ok());
  CHECK((none->begin_bytes == 0 && none->token_bytes == 0));
}

TEST_CASE("headers_that_contradict_the_file_or_are_of_another_kind_are_refused") {
  const std::string body(600, '\x11');
  CHECK_THAT(Refusal(Header({20240520, 1, 600}) + body),
             Contains("says 600 tokens of 16 bits") && Contains("cut off"));
  CHECK_THAT(Refusal(Header({20240801, 7, -1}) + body), Contains("-1 tokens"));
  CHECK_THAT(Refusal(Header({20240520, 3, 7}) + body), Contains("version 3"));
  CHECK_THAT(Refusal(Header({20240326, 3, 1024}) + body), Contains("a model checkpoint of llm.c"));
  CHECK_THAT(Refusal(Header({20240522, 1, 7}) + body), Contains("HellaSwag"));
  CHECK_THAT(Refusal(Header({static_cast<int32_t>(__builtin_bswap32(20240520))}) + body),
             Contains("big-endian"));
  CHECK_THAT(Refusal(Header({20240520, 1, 300}).substr(0, 600)), Contains("cut off in its header"));
  CHECK_THAT(Refusal(Header({20250101, 9, 9}) + body), Contains("20250101"));
  CHECK_THAT(Refusal(Header({123456, 300, 5}) + body), Contains("123456"));  // 300 tokens follow
  CHECK_THAT(Refusal("\x93NUMPY\1" + body), Contains("a NumPy file, not tokens"));
  CHECK_THAT(Refusal(std::string(100, 'a') + " is text\n"), Contains("is text, not tokens"));
}

TEST_CASE("shards_with_an_index_of_their_samples_are_refused") {
  for (const uint32_t samples : {1, 3, 5000}) {
    std::vector<uint32_t> shard = {samples};
    for (uint32_t i = 0; i <= samples; ++i) shard.push_back(4 * (samples + 2) + 100 * i);
    CHECK_THAT(Refusal(Raw(shard) + std::string(100 * samples, '\x11')), Contains("litdata"));
    shard[2] = 1;
    CHECK(Refusal(Raw(shard) + std::string(100 * samples, '\x11')).empty());
  }
}

TEST_CASE("a_row_that_is_padded_with_zeros_is_no_header") {
  std::vector<uint16_t> rows(2048);
  for (size_t i = 0; i < 20; ++i) rows[i] = static_cast<uint16_t>(101 + i);
  CHECK(Refusal(Raw(rows)).empty());
}

TEST_CASE("wider_numbers_than_the_format_says_are_seen_by_their_upper_halves") {
  const std::string wide = Raw(Numbers(128256));
  CHECK_THAT(WidthRefusal(wide, 2), Contains("from 0 to 3") && Contains("\"tokens32\""));
  CHECK(WidthRefusal(wide, 4).empty());
  std::vector<uint64_t> wider;
  for (const uint32_t number : Numbers(50257)) wider.push_back(number);
  CHECK_THAT(WidthRefusal(Raw(wider), 4), Contains("64 bits"));
  CHECK_THAT(WidthRefusal(Raw(std::vector<float>(wider.begin(), wider.end())), 2),
             Contains("float32"));
  CHECK_THAT(WidthRefusal(Raw(std::vector<double>(wider.begin(), wider.end())), 2),
             Contains("float64"));
  CHECK(WidthRefusal(Raw(std::vector<uint16_t>(2000, 0x4000)), 2).empty());
  std::vector<uint16_t> narrow;
  for (const uint32_t number : Numbers(50257)) narrow.push_back(static_cast<uint16_t>(number));
  CHECK(WidthRefusal(Raw(narrow), 2).empty());
  CHECK(WidthRefusal(std::string(4000, '\0'), 2).empty());
  CHECK(WidthRefusal(std::string(4000, '\7'), 2).empty());
}

}  // namespace
}  // namespace atl
