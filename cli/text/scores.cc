#include "cli/text/scores.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plural.h"

namespace atl::cli {

namespace {

// All numbers in their order, of which the task's kind has some.
std::vector<ScoreNumber> List(bool choices, bool text, const std::array<double, 8>& numbers) {
  const std::array<std::pair<const char*, bool>, 8> columns = {{
      {"accuracy", !text},
      {"accuracy_standard_error", !text},
      {"normalised_accuracy", choices},
      {"normalised_accuracy_standard_error", choices},
      {"perplexity", !choices},
      {"word_perplexity", text},
      {"byte_perplexity", text},
      {"bits_per_byte", text},
  }};
  std::vector<ScoreNumber> list;
  for (size_t i = 0; i < columns.size(); ++i) {
    const auto& [name, has] = columns[i];
    list.push_back({name, has ? std::optional(numbers[i]) : std::nullopt});
  }
  return list;
}

}  // namespace

std::vector<ScoreNumber> ListScoreNumbers(const v1::TaskScore& s) {
  return List(s.kind() == v1::TASK_KIND_CHOICES, s.kind() == v1::TASK_KIND_PERPLEXITY,
              {s.accuracy(), s.accuracy_standard_error(), s.normalised_accuracy(),
               s.normalised_accuracy_standard_error(), s.perplexity(), s.word_perplexity(),
               s.byte_perplexity(), s.bits_per_byte()});
}

std::vector<ScoreNumber> ListScoreNumbers(const TaskScore& s) {
  return List(s.kind == TaskKind::kChoices, s.kind == TaskKind::kPerplexity,
              {s.accuracy, s.accuracy_standard_error, s.normalised_accuracy,
               s.normalised_accuracy_standard_error, s.perplexity, s.word_perplexity,
               s.byte_perplexity, s.bits_per_byte});
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
