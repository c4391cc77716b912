#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "common/bytes_text.h"
#include "common/ids.h"
#include "common/number_text.h"
#include "common/rng.h"
#include "common/status.h"
#include "common/time.h"
#include "common/utf8.h"

namespace atl {
namespace {

TEST_CASE("a generator repeats its numbers, and streams of one seed differ") {
  Rng a(7), b(7), other_stream(7, 1);
  int equal = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = a.Next();
    REQUIRE(value == b.Next());
    equal += value == other_stream.Next();
  }
  REQUIRE(equal == 0);
}

TEST_CASE("the first numbers of seed 1 never change: weights and shuffles depend on them") {
  REQUIRE(Rng(1).Next() == 8723206269617894468u);
}

TEST_CASE("text is cut between characters, and what is no character is marked") {
  CHECK(WellFormed("caf\xc3\xa9", 100) == "caf\xc3\xa9");
  CHECK(WellFormed("caf\xc3\xa9", 4) == "caf");
  CHECK(WellFormed("\xe2\x82\xac \xf0\x9f\x90\xa2", 8) == "\xe2\x82\xac \xf0\x9f\x90\xa2");
  CHECK(WellFormed("\xe2\x82\xac \xf0\x9f\x90\xa2", 7) == "\xe2\x82\xac ");
  // Latin-1, a character's half, one that is longer than it need be, a surrogate, beyond the last.
  for (const char* ill : {"\xe9", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    CHECK(WellFormed(ill, 100) == std::string(std::string(ill).size(), '?'));
  }
}

TEST_CASE("Below is uniform") {
  Rng rng(3);
  std::map<uint64_t, int> seen;
  for (int i = 0; i < 70000; ++i) ++seen[rng.Below(7)];
  REQUIRE(seen.size() == 7);
  for (const auto& [value, count] : seen) REQUIRE(std::abs(count - 10000) < 500);
}

TEST_CASE("Normal has mean 0 and variance 1") {
  Rng rng(5);
  double sum = 0, squares = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double x = rng.Normal();
    sum += x;
    squares += x * x;
  }
  REQUIRE(std::abs(sum / n) < 0.02);
  REQUIRE(std::abs(squares / n - 1) < 0.03);
}

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError(absl::StrCat(n, " is odd"));
  return n / 2;
}

absl::StatusOr<int> Quarter(int n) {
  ATOLL_ASSIGN_OR_RETURN(const int half, Half(n));
  return Half(half);
}

TEST_CASE("errors are handed on with where they happened") {
  REQUIRE(*Quarter(12) == 3);
  REQUIRE(Quarter(3).status().message() == "3 is odd");
  REQUIRE(Annotate(Quarter(6).status(), "job.toml").message() == "job.toml: 3 is odd");
  REQUIRE(Annotate(absl::OkStatus(), "job.toml").ok());
}

TEST_CASE("push ids differ in every part") {
  const PushId id{"job-1", 2, 3, 4, 5, 6};
  PushId other = id;
  REQUIRE(other == id);
  other.incarnation = 5;
  REQUIRE(other != id);
  REQUIRE(ToContributionId(other) != ToContributionId(id));
}

TEST_CASE("durations convert to seconds and back") {
  using namespace std::chrono_literals;
  REQUIRE(Seconds(1500ms) == 1.5);
  REQUIRE(FromSeconds(0.25) == Duration(250ms));
}

TEST_CASE("sizes_have_the_unit_that_leaves_few_digits") {
  CHECK(BytesText(1023) == "1023 B");
  CHECK(BytesText(1536) == "1.5 KiB");
  CHECK(BytesText(int64_t{5} << 30) == "5.00 GiB");
  CHECK(BytesText(int64_t{15} << 39) == "7.50 TiB");
}

TEST_CASE("numbers_are_never_printed_as_powers_of_ten") {
  CHECK(NumberText(123456) == "123456");
  CHECK(NumberText(12.5) == "12.5");
  CHECK(NumberText(0.0000123456, 3) == "0.0000123");
  CHECK(NumberText(-2) == "-2");
  CHECK(NumberText(999.96) == "1000");
  CHECK(NumberText(0) == "0");
}

TEST_CASE("times_have_the_unit_that_leaves_few_digits") {
  CHECK(SecondsText(32e-6) == "32 us");
  CHECK(SecondsText(0.00421) == "4.21 ms");
  CHECK(SecondsText(1.3) == "1.3 s");
  CHECK(SecondsText(250) == "4 min 10 s");
  CHECK(SecondsText(3 * 3600 + 300) == "3 h 5 min");
  CHECK(SecondsText(86400 * 12 + 4 * 3600) == "12 d 4 h");
  CHECK(SecondsText(0) == "0 s");
  CHECK(SecondsText(1e300).size() < 320);
}

}  // namespace
}  // namespace atl
