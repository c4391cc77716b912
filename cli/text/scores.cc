#include "cli/text/scores.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plural.h"

namespace atl::cli {

std::vector<ScoreNumber> ListScoreNumbers(const v1::TaskScore& score) {
  const auto number = [](bool has, double value) {
    return has ? std::optional(value) : std::nullopt;
  };
  const bool choices = score.kind() == v1::TASK_KIND_CHOICES;
  const bool accuracy = score.kind() != v1::TASK_KIND_PERPLEXITY;
  return {{"accuracy", number(accuracy, score.accuracy())},
          {"accuracy_standard_error", number(accuracy, score.accuracy_standard_error())},
          {"normalised_accuracy", number(choices, score.normalised_accuracy())},
          {"normalised_accuracy_standard_error",
           number(choices, score.normalised_accuracy_standard_error())},
          {"perplexity", number(!choices, score.perplexity())}};
}

std::string ScoreText(const v1::TaskScore& score) {
  std::string text = absl::StrCat(score.name(), ": ");
  if (score.kind() != v1::TASK_KIND_PERPLEXITY) {
    absl::StrAppend(
        &text, absl::StrFormat("accuracy %.2f%% (standard error %.2f), ", 100 * score.accuracy(),
                               100 * score.accuracy_standard_error()));
  }
  if (score.kind() == v1::TASK_KIND_CHOICES) {
    absl::StrAppend(&text,
                    absl::StrFormat("normalised %.2f%% (%.2f), ", 100 * score.normalised_accuracy(),
                                    100 * score.normalised_accuracy_standard_error()));
  } else {
    absl::StrAppend(&text, absl::StrFormat("perplexity %.4f, ", score.perplexity()));
  }
  absl::StrAppend(&text, "at version ", score.version(), ", ", CountText(score.items(), "item"));
  return text;
}

}  // namespace atl::cli
