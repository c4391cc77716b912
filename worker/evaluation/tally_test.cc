#include "worker/evaluation/tally.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace atl {
namespace {

LogLikelihood Nats(double nats, bool greedy = false) { return {nats, 1, greedy}; }

TEST_CASE("accuracy_goes_by_the_sum_and_by_the_character") {
  TaskTally tally(TaskKind::kChoices);
  const ItemMeasures item = Measure({"p", {"ab", "abcdéfgh"}, 1, 1});
  tally.Add(item, std::vector{Nats(-3), Nats(-8)});  // -1.5 and -1 a character
  tally.Add(item, std::vector{Nats(-3), Nats(-2)});
  tally.Add(item, std::vector{Nats(-1), Nats(-20)});
  tally.Add(item, std::vector{Nats(-1), Nats(-1)});  // of equal ones the first
  const TaskScore score = tally.Finish();
  CHECK(score.items == 4);
  CHECK(score.accuracy == Approx(0.25));
  CHECK(score.accuracy_standard_error == Approx(0.25));  // sqrt(3/16 / 3)
  CHECK(score.normalised_accuracy == Approx(0.75));
  CHECK(score.perplexity == 0);
}

TEST_CASE("an_exact_answer_is_a_greedy_one") {
  TaskTally tally(TaskKind::kExact);
  tally.Add(Measure({"p", {"a"}, 0, 1}), std::vector{Nats(-1, true)});
  tally.Add(Measure({"p", {"a"}, 0, 2}), std::vector{Nats(-3, false)});
  const TaskScore score = tally.Finish();
  CHECK(score.accuracy == Approx(0.5));
  CHECK(score.perplexity == Approx(std::exp(2.0)));
}

TEST_CASE("perplexities_are_of_tokens_words_and_bytes_of_all_texts") {
  TaskTally tally(TaskKind::kPerplexity);
  tally.Add(Measure({"", {"one two\n three"}, 0, 1}), std::vector{LogLikelihood{-12, 4, false}});
  tally.Add(Measure({"", {"é"}, 0, 2}), std::vector{LogLikelihood{-4, 2, false}});
  const TaskScore score = tally.Finish();
  CHECK(score.perplexity == Approx(std::exp(16.0 / 6)));
  CHECK(score.word_perplexity == Approx(std::exp(16.0 / 4)));
  CHECK(score.byte_perplexity == Approx(std::exp(16.0 / 16)));
  CHECK(score.bits_per_byte == Approx(1 / std::log(2.0)));
  CHECK(score.accuracy == 0);
}

}  // namespace
}  // namespace atl
