#include "common/model/targets.h"

#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "common/masked_tokens.h"

namespace atl {
namespace {

constexpr int64_t kLength = 40;
constexpr int32_t kMask = 999;

ModelConfig Bert() {
  ModelConfig config;
  config.family = ModelFamily::kBert;
  config.vocab = 1000;
  config.d_model = config.heads = config.kv_heads = 4;
  config.mask_token = kMask;
  return config;
}

struct FilledRow {
  std::vector<int32_t> inputs = std::vector<int32_t>(kLength);
  std::vector<int32_t> targets = std::vector<int32_t>(kLength);
  bool operator==(const FilledRow&) const = default;
};

std::vector<int32_t> Row(int32_t first) {
  std::vector<int32_t> row;
  for (int32_t i = 0; i <= kLength; ++i) row.push_back(first + i);
  return row;
}

FilledRow Fill(const std::vector<int32_t>& row, int64_t step) {
  FilledRow filled;
  FillRow(Bert(), row, step, filled.inputs, filled.targets);
  return filled;
}

TEST_CASE("fifteen_percent_of_the_positions_are_targets_and_most_of_these_are_masked") {
  std::map<std::string, int> inputs;
  int64_t targets = 0;
  for (int32_t first = 0; first < 900; ++first) {
    const FilledRow filled = Fill(Row(first), 1);
    for (int32_t i = 0; i < kLength; ++i) {
      if (filled.targets[i] == kIgnoredTarget) {
        REQUIRE(filled.inputs[i] == first + i);
        continue;
      }
      ++targets;
      REQUIRE(filled.targets[i] == first + i);
      ++inputs[filled.inputs[i] == kMask ? "mask" : filled.inputs[i] == first + i ? "same" : "any"];
    }
  }
  REQUIRE(targets == 900 * 6);
  REQUIRE(targets == CountTargets(Bert(), 900, kLength, 0));
  const auto all = static_cast<double>(targets);
  CHECK(inputs["mask"] / all == Approx(0.8).margin(0.02));
  CHECK(inputs["any"] / all == Approx(0.1).margin(0.02));
  CHECK(inputs["same"] / all == Approx(0.1).margin(0.02));
}

TEST_CASE("a_row_is_masked_anew_in_every_step_and_alike_in_the_same_one") {
  CHECK(Fill(Row(7), 1) == Fill(Row(7), 1));
  CHECK_FALSE(Fill(Row(7), 1) == Fill(Row(7), 2));
  CHECK_FALSE(Fill(Row(7), 1).targets == Fill(Row(8), 1).targets);
}

TEST_CASE("types_of_masked_tokens_stay_and_are_no_part_of_targets") {
  std::vector<int32_t> row = Row(7);
  for (int32_t& token : row) token |= 1 << kTokenTypeShift;
  const FilledRow filled = Fill(row, 1);
  for (int32_t i = 0; i < kLength; ++i) {
    CHECK(filled.inputs[i] >> kTokenTypeShift == 1);
    CHECK((filled.targets[i] == kIgnoredTarget || filled.targets[i] == 7 + i));
  }
}

TEST_CASE("special_tokens_are_targets_only_where_a_row_has_too_few_others") {
  ModelConfig config = Bert();
  config.special_tokens = {.pad = {0}, .cls = {101}, .sep = {102}};
  std::vector<int32_t> row = Row(500);
  for (int32_t i = 0; i <= kLength; ++i) {
    if (i % 5 != 0) row[i] = (i % 5 < 3 ? 101 : 0) | 1 << kTokenTypeShift;
  }
  std::vector<int32_t> inputs(kLength), targets(kLength);
  for (int64_t step = 0; step < 50; ++step) {
    FillRow(config, row, step, inputs, targets);
    int64_t count = 0;
    for (int32_t i = 0; i < kLength; ++i) {
      if (targets[i] == kIgnoredTarget) continue;
      ++count;
      REQUIRE(i % 5 == 0);
    }
    REQUIRE(count == CountTargets(config, 1, kLength, 0));
  }
  for (int32_t& token : row) token = 102;
  FillRow(config, row, 1, inputs, targets);
  CHECK(std::count(targets.begin(), targets.end(), 102) == CountTargets(config, 1, kLength, 0));
}

TEST_CASE("padding_at_a_rows_end_is_no_target_while_other_tokens_are_left") {
  ModelConfig config = Bert();
  config.special_tokens = {.pad = {0}, .cls = {101}, .sep = {102}};
  REQUIRE(HasPadding(config));
  for (const int32_t length : {int32_t{1}, int32_t{6}, int32_t{7}, int32_t{25}, int32_t{kLength}}) {
    CAPTURE(length);
    std::vector<int32_t> row = Row(500);
    row[0] = 101;
    row[length - 1] = 102;
    std::fill(row.begin() + length, row.end(), 1 << kTokenTypeShift);  // [PAD] of segment 1
    REQUIRE(UnpaddedInputs(config, row) == length);
    const auto wanted = static_cast<int32_t>(CountTargets(config, 1, kLength, 0));
    std::vector<int32_t> inputs(kLength), targets(kLength);
    for (int64_t step = 0; step < 50; ++step) {
      FillRow(config, row, step, inputs, targets);
      const auto of_padding =
          kLength - length - std::count(targets.begin() + length, targets.end(), kIgnoredTarget);
      REQUIRE(of_padding == std::max(0, wanted - length));
    }
  }
}

TEST_CASE("a_padded_document_is_masked_as_it_is_alone_and_its_padding_never") {
  ModelConfig config = Bert();
  config.special_tokens = {.pad = {0}, .cls = {101}, .sep = {102}};
  int64_t masked = 0, rows = 0, targets_of_all = 0;
  for (const int32_t length : {int32_t{3}, int32_t{7}, int32_t{25}, int32_t{kLength}}) {
    CAPTURE(length);
    std::vector<int32_t> row = Row(500);
    row[0] = 101;
    row[length - 1] = 102;
    std::fill(row.begin() + length, row.end(), MaskToken(0));
    for (int64_t step = 0; step < 20; ++step) {
      std::vector<int32_t> inputs(kLength), targets(kLength);
      FillRow(config, row, step, inputs, targets);
      std::vector<int32_t> alone_inputs(length), alone_targets(length);
      FillRow(config, std::span(row).first(length + 1), step, alone_inputs, alone_targets);
      REQUIRE(std::equal(alone_inputs.begin(), alone_inputs.end(), inputs.begin()));
      REQUIRE(std::equal(alone_targets.begin(), alone_targets.end(), targets.begin()));
      REQUIRE(std::count(inputs.begin() + length, inputs.end(), 0) == kLength - length);
      const int64_t count = kLength - std::count(targets.begin(), targets.end(), kIgnoredTarget);
      REQUIRE(count == std::max(1, length * 15 / 100));
      REQUIRE(std::count(targets.begin() + length, targets.end(), kIgnoredTarget) ==
              kLength - length);
      targets_of_all += count;
      masked += kLength - CountPredicted(length);
      ++rows;
    }
  }
  CHECK(CountTargets(config, rows, kLength, masked) == targets_of_all);
}

TEST_CASE("rows_without_tokens_are_one_token_long_and_decoders_have_no_padding") {
  ModelConfig config = Bert();
  const std::vector<int32_t> row(kLength + 1, 0);
  CHECK_FALSE(HasPadding(config));  // no [PAD]
  CHECK(UnpaddedInputs(config, row) == kLength);
  config.special_tokens.pad = {0};
  CHECK(UnpaddedInputs(config, row) == 1);
  config.family = ModelFamily::kLlama;
  CHECK_FALSE(HasPadding(config));
  CHECK(UnpaddedInputs(config, row) == kLength);
}

TEST_CASE("a_row_of_documents_says_where_each_begins_and_its_first_token_is_no_target") {
  ModelConfig config = Bert();
  config.family = ModelFamily::kLlama;
  const std::vector<int32_t> row = {1, 2, MarkDocument(3), 4, MarkDocument(~5), MaskToken(6), 7};
  std::vector<int32_t> inputs(6), targets(6), borders(6);
  FillRow(config, row, 1, inputs, targets);
  CHECK(inputs == std::vector<int32_t>{1, 2, 3, 4, 5, 6});
  CHECK(targets == std::vector<int32_t>{2, kIgnoredTarget, 4, kIgnoredTarget, kIgnoredTarget, 7});
  REQUIRE(BorderNumbers(config, true, 6) == 6);
  CHECK(BorderNumbers(config, false, 6) == 0);
  FillBorders(config, row, borders);
  CHECK(borders == std::vector<int32_t>{0, 0, 2, 2, 4, 4});
  // The row is filled up behind the last target.
  FillBorders(config, std::vector<int32_t>{~1, 2, 3, MarkDocument(0), ~0, ~0, ~0}, borders);
  CHECK(borders == std::vector<int32_t>{0, 0, 0, 3, 4, 5});
  CHECK_FALSE(AreWhole(config, borders, 6));
  CHECK(AreWhole(config, std::vector<int32_t>(6), 6));
  config = Bert();
  config.special_tokens.pad = {0};
  REQUIRE(BorderNumbers(config, false, 6) == 1);
  std::vector<int32_t> length(1);
  FillBorders(config, std::vector<int32_t>{1, 2, 0, 0, 0}, length);
  CHECK(length[0] == 2);
  CHECK_FALSE(AreWhole(config, length, 4));
  CHECK(AreWhole(config, length, 2));
}

TEST_CASE("a_short_row_has_one_target") {
  std::vector<int32_t> inputs(3), targets(3);
  FillRow(Bert(), std::vector<int32_t>{1, 2, 3, 4}, 5, inputs, targets);
  CHECK(std::count(targets.begin(), targets.end(), kIgnoredTarget) == 2);
  CHECK(CountTargets(Bert(), 2, 3, 0) == 2);
}

}  // namespace
}  // namespace atl
