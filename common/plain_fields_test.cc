#include "common/plain_fields.h"

#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <set>

namespace atl {
namespace {

enum class Colour : uint8_t { kRed, kBlue };

class Hidden {
 public:
  bool operator==(const Hidden&) const = default;
  template <class V>
  void VisitFields(V& v) {
    v(number_);
  }
  int64_t number_ = -3;
};

struct Small {
  int32_t number = 0;
  std::optional<std::string> text;
  bool operator==(const Small&) const = default;
};

struct Empty {
  bool operator==(const Empty&) const = default;
};

struct Large {
  bool yes = false;
  Colour colour = Colour::kRed;
  double half = 0;
  uint64_t digest = 0;
  Instant at{};
  Duration lasts{0};
  std::string text;
  std::vector<bool> bits;
  std::deque<double> numbers;
  std::set<std::string> names;
  std::map<int64_t, Small> smalls;
  std::array<int64_t, 2> pair{};
  std::variant<Empty, Small, std::string> either;
  Hidden hidden;
  std::function<int()> function = nullptr;
};

Large MakeLarge() {
  Large large{true, Colour::kBlue, 0.5, ~uint64_t{0}, kNever, Duration(-7), "text", {true, false}};
  large.numbers = {1e300, -0.0};
  large.names = {"a", ""};
  large.smalls = {{-1, {7, "x"}}, {int64_t{1} << 62, {}}};
  large.pair = {1, -1};
  large.either = Small{3, ""};
  large.hidden.number_ = 1 << 20;
  return large;
}

TEST_CASE("every field of a struct is written and read") {
  const Large large = MakeLarge();
  std::string bytes, again;
  AppendPlain(&bytes, large);
  Large read;
  PlainReader reader(bytes);
  reader.Visit(read);
  REQUIRE(reader.ok());
  AppendPlain(&again, read);
  CHECK(again == bytes);
  CHECK(read.at == kNever);
  CHECK(read.digest == large.digest);
  CHECK(read.bits == large.bits);
  CHECK(read.names == large.names);
  CHECK(read.smalls == large.smalls);
  CHECK(read.either == large.either);
  CHECK(read.hidden == large.hidden);
}

TEST_CASE("a result is written with its status, and shared values once") {
  struct Pointers {
    std::shared_ptr<Small> one, same, none;
  };
  Pointers pointers{std::make_shared<Small>(Small{1, "s"})}, read;
  pointers.same = pointers.one;
  const absl::StatusOr<Small> bad = absl::NotFoundError("where"), good = Small{5, {}};
  absl::StatusOr<Small> read_bad = Small(), read_good = absl::UnknownError("");
  std::string bytes;
  AppendPlain(&bytes, pointers, bad, good);
  PlainReader reader(bytes);
  reader(read, read_bad, read_good);
  REQUIRE(reader.ok());
  CHECK(read.one == read.same);
  CHECK(read.none == nullptr);
  CHECK(*read.one == *pointers.one);
  CHECK(read_bad.status() == bad.status());
  REQUIRE(read_good.ok());
  CHECK(*read_good == *good);
}

TEST_CASE("bytes that end early, go on or have no such alternative are refused") {
  std::string bytes;
  AppendPlain(&bytes, MakeLarge());
  for (size_t size = 0; size < bytes.size(); ++size) {
    Large read;
    PlainReader reader(absl::string_view(bytes).substr(0, size));
    reader.Visit(read);
    CHECK_FALSE(reader.ok());
  }
  bytes.push_back('\0');
  Large read;
  PlainReader longer(bytes);
  longer.Visit(read);
  CHECK_FALSE(longer.ok());
  std::string other;
  AppendPlain(&other, int64_t{3});
  std::variant<Empty, Small, std::string> either;
  PlainReader reader(other);
  reader.Visit(either);
  CHECK_FALSE(reader.ok());
}

}  // namespace
}  // namespace atl
