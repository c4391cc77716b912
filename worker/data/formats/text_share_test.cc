#include "worker/data/formats/text_share.h"

#include <catch2/catch.hpp>
#include <random>

namespace atl {
namespace {

TextShare Share(const std::string& block, int64_t at = 0) {
  TextShare share;
  share.Add(block, at);
  return share;
}

TEST_CASE("text_in_utf8_has_no_bad_bytes_wherever_a_block_is_cut") {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80 a\tb\r\n";
  for (size_t begin = 1; begin < 30; ++begin) {
    for (size_t bytes = 1; bytes < 30; ++bytes) {
      CHECK(Share(text.substr(begin, bytes), static_cast<int64_t>(begin)).bad() == 0);
    }
  }
}

TEST_CASE("latin_1_and_numbers_are_suspicious_with_place_and_share") {
  std::string latin;
  for (int i = 0; i < 100; ++i) latin += "caf\xe9 cr\xe8me et th\xe9\n";
  CHECK(Share(latin).bad() == 300);
  CHECK(Share(latin).IsSuspicious());
  CHECK(Share(latin).Text() == "16.7% of 1800 bytes are no UTF-8 text, the first at byte 3");
  std::string random;
  std::minstd_rand bits(3);
  for (int i = 0; i < 4096; ++i) random += static_cast<char>(bits());
  CHECK(Share(random).bad() > 1000);
}

TEST_CASE("single_bad_bytes_of_a_long_text_are_not_suspicious") {
  CHECK_FALSE(Share(std::string(20'000, 'a') + '\xff').IsSuspicious());
  CHECK(Share(std::string(5'000, 'a') + '\xff').IsSuspicious());
  CHECK_FALSE(Share("").IsSuspicious());
}

}  // namespace
}  // namespace atl
