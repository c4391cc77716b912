#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <string>

#include "proto/testing/every_kind.fields.h"

namespace atl {
namespace {

v1::EveryKind ToWire(const EveryKind& plain) {
  v1::EveryKind wire;
  MessageWriter encoder;
  Fields(encoder, plain, wire);
  return wire;
}

// With `fault`, the name of the field that is refused: what is before the first colon.
EveryKind FromWire(v1::EveryKind wire, std::string* fault = nullptr) {
  EveryKind plain;
  MessageReader decoder;
  Fields(decoder, plain, wire);
  if (fault == nullptr) REQUIRE(decoder.status() == absl::OkStatus());
  const absl::string_view message = decoder.status().message();
  if (fault != nullptr) *fault = std::string(message.substr(0, message.find(':')));
  return plain;
}

TEST_CASE("a_field_without_a_value_has_the_default_of_its_options") {
  const EveryKind plain;
  CHECK(plain.small == 0);
  CHECK(plain.bounded == 5);
  CHECK(plain.below_zero == -3);
  CHECK(plain.flag);
  CHECK(plain.text == "a \"word\"");
  CHECK(plain.shade == PlainShade::kFar);
  CHECK(plain.absent_number == 11);
  CHECK(plain.absent_shade == PlainShade::kLightBlue);
  CHECK(plain.wait == std::chrono::seconds(2));
  CHECK(plain.numbers == std::vector<ShardId>{1});
  CHECK(!plain.perhaps);
}

TEST_CASE("enumerators_have_the_number_of_the_message_less_1") {
  CHECK(static_cast<int>(PlainShade::kLightBlue) == v1::SHADE_LIGHT_BLUE - 1);
  CHECK(static_cast<int>(PlainShade::kRgb) == v1::SHADE_RGB - 1);
  CHECK(static_cast<int>(PlainShade::kFar) == v1::SHADE_FAR - 1);
}

TEST_CASE("every_field_survives_the_way_through_a_message") {
  EveryKind plain;
  plain.small = 3;
  plain.bounded = 4;
  plain.below_zero = -2;
  plain.any = ~uint64_t{0};
  plain.ratio = 0.5;
  plain.flag = false;
  plain.text = "text";
  plain.shade = PlainShade::kRgb;
  plain.absent_number = -12;
  plain.absent_text = "";
  plain.absent_shade = PlainShade::kFar;
  plain.island = 10;
  plain.wait = std::chrono::nanoseconds(7);
  plain.new_name = "new";
  plain.numbers = {8, 9};
  plain.names = {"a", "b"};
  plain.part.count = 13;
  plain.perhaps = PlainPart{.count = 14};
  plain.parts = {PlainPart{.count = 15}};
  plain.span = KindSpan{16, 17};
  plain.any_ratio = std::numeric_limits<double>::infinity();
  plain.id = "id7";
  plain.choice = PlainPart{.count = 18};
  CHECK(FromWire(ToWire(plain)) == plain);
  plain.perhaps.reset();
  plain.choice = KindSpan{19, 20};
  CHECK(FromWire(ToWire(plain)) == plain);

  const v1::EveryKind wire = ToWire(plain);
  CHECK(wire.shade() == v1::SHADE_RGB);
  CHECK(wire.wait_ns() == 7);
  CHECK(wire.old_name() == "new");
  CHECK(wire.unknown_to_cores().empty());
  CHECK(wire.chosen_span().end() == 20);
}

TEST_CASE("an_optional_field_that_is_absent_keeps_its_default") {
  v1::EveryKind wire =
      ToWire(EveryKind{.absent_number = 1, .absent_text = "one", .absent_shade = PlainShade::kRgb});
  wire.clear_absent_number();
  wire.clear_absent_text();
  wire.clear_absent_shade();
  CHECK(FromWire(wire) == EveryKind());
}

TEST_CASE("a_value_beyond_its_limit_is_refused_by_the_name_of_its_field") {
  using Change = std::function<void(v1::EveryKind&)>;
  const std::pair<std::string, Change> refused[] = {
      {"small", [](auto& m) { m.set_small(-1); }},
      {"bounded", [](auto& m) { m.set_bounded(1); }},
      {"bounded", [](auto& m) { m.set_bounded(8); }},
      {"numbers", [](auto& m) { m.add_numbers((1 << 30) + 1); }},
      {"below_zero", [](auto& m) { m.set_below_zero(-4); }},
      {"below_zero", [](auto& m) { m.set_below_zero((int64_t{1} << 53) + 1); }},
      {"absent_number", [](auto& m) { m.set_absent_number((int64_t{1} << 53) + 1); }},
      {"absent_number", [](auto& m) { m.set_absent_number(-(int64_t{1} << 53) - 1); }},
      {"ratio", [](auto& m) { m.set_ratio(std::numeric_limits<double>::quiet_NaN()); }},
      {"ratio", [](auto& m) { m.set_ratio(-std::numeric_limits<double>::infinity()); }},
      {"id", [](auto& m) { m.set_id("four"); }},
      {"numbers", [](auto& m) { m.add_numbers(-1); }},
      {"text", [](auto& m) { m.set_text(std::string(kMaxTextBytes + 1, 'x')); }},
      {"shade", [](auto& m) { m.set_shade(v1::SHADE_UNSPECIFIED); }},
      {"shade", [](auto& m) { m.set_shade(static_cast<v1::Shade>(3)); }},
      {"absent_shade", [](auto& m) { m.set_absent_shade(static_cast<v1::Shade>(3)); }},
      {"island", [](auto& m) { m.set_island(11); }},
      {"wait_ns", [](auto& m) { m.set_wait_ns(-1); }},
      {"wait_ns", [](auto& m) { m.set_wait_ns(kMaxIntervalNs + 1); }},
      {"numbers", [](auto& m) { m.mutable_numbers()->Resize(3, 0); }},
      {"names", [](auto& m) { m.add_names("longer"); }},
      {"names",
       [](auto& m) {
         for (int i = 0; i < 3; ++i) m.add_names("a");
       }},
      {"parts",
       [](auto& m) {
         for (int i = 0; i < 2; ++i) m.add_parts();
       }},
      {"count", [](auto& m) { m.mutable_part()->set_count(-1); }},
      {"count", [](auto& m) { m.mutable_chosen_part()->set_count(-1); }},
      {"message", [](auto& m) { m.set_small(6); }},
  };
  for (const auto& [field, change] : refused) {
    v1::EveryKind wire = ToWire(EveryKind());
    change(wire);
    INFO(field << " of " << wire.ShortDebugString().substr(0, 300));
    std::string fault;
    FromWire(wire, &fault);
    CHECK(fault == field);
  }
}

TEST_CASE("what_would_be_refused_is_not_made") {
  const auto fault = [](const auto& change) {
    EveryKind plain;
    change(plain);
    v1::EveryKind wire;
    MessageWriter encoder;
    Fields(encoder, plain, wire);
    const absl::string_view message = encoder.status().message();
    return std::string(message.substr(0, message.find(':')));
  };
  CHECK(fault([](EveryKind&) {}).empty());
  CHECK(fault([](EveryKind& k) { k.bounded = 8; }) == "bounded");
  CHECK(fault([](EveryKind& k) { k.small = 6; }) == "message");
  CHECK(fault([](EveryKind& k) { k.wait = -std::chrono::seconds(1); }) == "wait_ns");
  CHECK(fault([](EveryKind& k) { k.ratio = std::numeric_limits<double>::infinity(); }) == "ratio");
  CHECK(
      fault([](EveryKind& k) { k.any_ratio = std::numeric_limits<double>::quiet_NaN(); }).empty());
  CHECK(fault([](EveryKind& k) { k.id = "four"; }) == "id");
  CHECK(fault([](EveryKind& k) { k.shade = static_cast<PlainShade>(7); }) == "shade");
  CHECK(fault([](EveryKind& k) { k.numbers = {1, 2, 3}; }) == "numbers");
  CHECK(fault([](EveryKind& k) { k.numbers = {-1}; }) == "numbers");
  CHECK(fault([](EveryKind& k) { k.names = {"longer"}; }) == "names");
  CHECK(fault([](EveryKind& k) { k.parts.resize(2); }) == "parts");
  CHECK(fault([](EveryKind& k) { k.part.count = -1; }) == "count");
  CHECK(fault([](EveryKind& k) { k.text = std::string(kMaxTextBytes + 1, 'x'); }).empty());  // cut
}

TEST_CASE("structs_are_compared_as_their_options_say") {
  CHECK(PlainPart{.count = 1} < PlainPart{.count = 2});
  CHECK(EveryKind{.small = 1} != EveryKind{.small = 2});
}

}  // namespace
}  // namespace atl
