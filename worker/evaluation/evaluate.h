// A model's score in a task, by the definitions of lm-evaluation-harness (its metrics acc,
// acc_norm, perplexity, word_perplexity, byte_perplexity, bits_per_byte, and mean_stderr).

#ifndef ATOLL_WORKER_EVALUATION_EVALUATE_H_
#define ATOLL_WORKER_EVALUATION_EVALUATE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "common/status.h"
#include "worker/evaluation/scorer.h"
#include "worker/evaluation/task.h"

namespace atl {

struct Share {
  double mean = 0;
  double standard_error = 0;  // of the mean; 0 of a single item
};

struct TaskScore {
  TaskKind kind = TaskKind::kChoices;
  int64_t items = 0;
  int64_t tokens = 0;  // scored
  std::optional<Share>
      accuracy;  // kChoices: by log-likelihood; kExact: all tokens are the likeliest
  std::optional<Share> normalised;   // kChoices: by log-likelihood over the choice's characters
  std::optional<double> perplexity;  // kExact: of an answer; kPerplexity: of a token
  std::optional<double> word_perplexity;  // kPerplexity; words are what white space separates
  std::optional<double> byte_perplexity;  // kPerplexity
  std::optional<double> bits_per_byte;    // kPerplexity
};

// Adds up scores of items. Pure.
class TaskTally {
 public:
  explicit TaskTally(TaskKind kind) { score_.kind = kind; }

  // `found`: of each answer of the item.
  void Add(const TaskItem& item, std::span<const LogLikelihood> found);
  TaskScore Finish() const;

 private:
  struct Hits {
    int64_t count = 0;
    Share Over(int64_t items) const;
  };

  TaskScore score_;
  Hits right_, right_normalised_;
  double nats_ = 0;
  int64_t words_ = 0, bytes_ = 0;
};

// Scores the first `limit` items (0: all). `progress(items)` is called after each and returns
// whether to go on; ABORTED: it did not. INVALID_ARGUMENT names the line of an item that cannot be
// scored.
absl::StatusOr<TaskScore> EvaluateTask(const Task& task, int64_t limit, PairEncoder& encoder,
                                       Scorer& scorer,
                                       const std::function<bool(int64_t)>& progress);

}  // namespace atl

#endif  // ATOLL_WORKER_EVALUATION_EVALUATE_H_
