// Scores of tasks as text.

#ifndef ATOLL_CLI_TEXT_SCORES_H_
#define ATOLL_CLI_TEXT_SCORES_H_

#include <optional>
#include <string>
#include <vector>

#include "common/protocol/control.h"
#include "proto/coordinator.pb.h"

namespace atl::cli {

struct ScoreNumber {
  std::string name;             // of its column
  std::optional<double> value;  // absent: the task's kind has none
};

// Lists accuracy, normalised accuracy, each with its standard error behind it, perplexities and
// bits per byte.
std::vector<ScoreNumber> ListScoreNumbers(const v1::TaskScore& score);
std::vector<ScoreNumber> ListScoreNumbers(const TaskScore& score);

// Writes "arc: accuracy 53.12% (standard error 1.20), normalised 55.00% (1.18), at version 12, 500
// items".
std::string ScoreText(const v1::TaskScore& score);

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_SCORES_H_
