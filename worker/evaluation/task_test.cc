#include "worker/evaluation/task.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

absl::StatusOr<Task> Parse(std::string_view text, std::optional<TaskKind> kind = {}) {
  return ParseTask(text, "t.jsonl", kind);
}

TEST_CASE("the_first_line_tells_the_kind_of_a_task") {
  const auto choices = Parse(
      "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 1, \"id\": 7}\n\n"
      "{\"prompt\": \"q\", \"choices\": [\"a\", \"b\", \"c\"], \"answer\": \"c\"}");
  REQUIRE(choices.ok());
  CHECK(choices->kind == TaskKind::kChoices);
  REQUIRE(choices->items.size() == 2);
  CHECK(choices->items[0].right == 1);
  CHECK(choices->items[1].right == 2);
  CHECK(choices->items[1].line == 3);
  CHECK(Parse("{\"prompt\": \"p\", \"answer\": \"a\"}")->kind == TaskKind::kExact);
  CHECK(Parse("{\"text\": \"p\"}")->kind == TaskKind::kPerplexity);
  // This line fits two kinds.
  const char* const both = "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": \"b\"}";
  CHECK(Parse(both, TaskKind::kExact)->items[0].answers == std::vector<std::string>{"b"});
}

TEST_CASE("lines_that_are_no_items_of_the_task_are_refused_by_line") {
  const std::string good = "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n";
  for (const std::string bad :
       {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": -1}",
        "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 18446744073709551615}",
        "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 0.5}",
        "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": \"d\"}",
        "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"]}",
        "{\"prompt\": \"p\", \"choices\": [\"a\"], \"answer\": 0}",
        "{\"prompt\": \"p\", \"choices\": [\"a\", \"\"], \"answer\": 0}",
        "{\"prompt\": \"p\", \"choices\": \"ab\", \"answer\": 0}",
        "{\"prompt\": 1, \"choices\": [\"a\", \"b\"], \"answer\": 0}",
        "{\"choices\": [\"a\", \"b\"], \"answer\": 0}", "{\"text\": \"a\"}", "[]", "{"}) {
    INFO(bad);
    const absl::Status status = Parse(good + bad).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(status.message().find("t.jsonl:2:") != std::string::npos);
  }
  CHECK_FALSE(Parse("").ok());
  CHECK_FALSE(Parse("\n  \n").ok());
}

TEST_CASE("a_space_joins_prompt_and_answer_where_neither_has_one") {
  CHECK(JoinAnswer("a", "b") == " b");
  CHECK(JoinAnswer("a ", "b") == "b");
  CHECK(JoinAnswer("a", "\nb") == "\nb");
  CHECK(JoinAnswer("", "b") == "b");
}

}  // namespace
}  // namespace atl
