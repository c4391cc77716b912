#include "worker/evaluation/task_rows.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "common/masked_tokens.h"

namespace atl {
namespace {

TaskRows Rows(TaskKind kind, std::vector<TaskItem> items, int64_t window, int64_t limit = 0) {
  PairEncoder bytes(nullptr, std::nullopt, 256);
  auto rows = TaskRows::Create({kind, std::move(items)}, limit, window, bytes);
  REQUIRE(rows.ok());
  return *std::move(rows);
}

std::vector<int32_t> Row(const TaskRows& rows, int64_t i) {
  return {rows.row(i).begin(), rows.row(i).end()};
}

int64_t Scored(std::span<const int32_t> row) {
  return std::ssize(row) - 1 - CountMasked(row, std::ssize(row));
}

TEST_CASE("a_row_masks_the_prompt_and_keeps_what_the_window_holds") {
  const TaskRows rows = Rows(TaskKind::kChoices, {{"ab", {"c", "defg"}, 0, 1}}, 4);
  REQUIRE(rows.size() == 2);
  CHECK(Row(rows, 0) == std::vector<int32_t>{~'a', ~'b', ' ', 'c'});
  CHECK(Row(rows, 1) == std::vector<int32_t>{~' ', 'd', 'e', 'f', 'g'});
  CHECK_FALSE(rows.needs_hits());
}

TEST_CASE("every_token_of_a_long_text_is_scored_once") {
  const TaskRows rows = Rows(TaskKind::kPerplexity, {{"", {"abcdefghijk"}, 0, 1}}, 4);
  int64_t scored = 0;
  for (int64_t i = 0; i < rows.size(); ++i) {
    CHECK(rows.row(i).size() <= 5);
    scored += Scored(rows.row(i));
  }
  CHECK(rows.size() == 3);
  CHECK(scored == 10);  // the first has nothing before it
}

TEST_CASE("a_limit_keeps_the_first_items") {
  const TaskRows rows = Rows(TaskKind::kExact, {{"a", {"b"}, 0, 1}, {"a", {"c"}, 0, 2}}, 8, 1);
  CHECK(rows.size() == 1);
  CHECK(rows.needs_hits());
}

TEST_CASE("an_item_with_which_there_are_too_many_tokens_is_refused_by_its_line") {
  PairEncoder bytes(nullptr, std::nullopt, 256);
  const auto create = [&](int64_t tokens_max) {
    return TaskRows::Create({TaskKind::kChoices, {{"ab", {"c", "d"}, 0, 1}, {"a", {"b"}, 0, 2}}},
                            /*limit=*/0, /*window=*/8, bytes, tokens_max);
  };
  REQUIRE(create(11).ok());
  CHECK(create(11)->tokens() == 11);  // "ab c", "ab d", "a b"
  CHECK(absl::IsInvalidArgument(create(10).status()));
  CHECK(create(10).status().message().find("line 2") == 0);
  CHECK(create(7).status().message().find("line 1") == 0);
}

TEST_CASE("a_score_is_of_no_items_where_a_loss_is_not_finite") {
  const TaskRows rows = Rows(TaskKind::kChoices, {{"a", {"b", "c"}, 0, 1}}, 8);
  for (const double loss : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const auto score = rows.Score([&](int64_t row) -> absl::StatusOr<LossSum> {
      return LossSum{row == 1 ? loss : 2, 1, 0};
    });
    REQUIRE(score.ok());
    CHECK(score->items == 0);
  }
}

TEST_CASE("scores_follow_from_the_rows_losses_and_hits") {
  const TaskRows rows = Rows(TaskKind::kExact, {{"a", {"bc"}, 0, 1}, {"a", {"de"}, 0, 2}}, 8);
  std::vector<int64_t> evaluated;
  const auto score = rows.Score([&](int64_t row) -> absl::StatusOr<LossSum> {
    evaluated.push_back(row);
    const int64_t tokens = Scored(rows.row(row));  // with the space before the answer
    return LossSum{2, tokens, row == 0 ? 3.0 : 2.0};
  });
  REQUIRE(score.ok());
  CHECK(evaluated == std::vector<int64_t>{0, 1});
  CHECK(score->items == 2);
  CHECK(score->tokens == 6);
  CHECK(score->accuracy == 0.5);
  CHECK(score->perplexity == Approx(std::exp(2.0)));
  const absl::Status failed =
      rows.Score([](int64_t) { return absl::AbortedError("interrupted"); }).status();
  CHECK(failed.code() == absl::StatusCode::kAborted);
}

TEST_CASE("an_item_without_anything_to_score_is_refused_by_line") {
  PairEncoder bytes(nullptr, std::nullopt, 256);
  const Task task{TaskKind::kExact, {{"", {"a"}, 0, 7}}};
  const absl::Status status = TaskRows::Create(task, 0, 8, bytes).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(status.message().find("line 7") != std::string::npos);
}

}  // namespace
}  // namespace atl
