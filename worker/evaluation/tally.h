// A model's score in a task, by the definitions of lm-evaluation-harness (its metrics acc,
// acc_norm, perplexity, word_perplexity, byte_perplexity, bits_per_byte, and mean_stderr).

#ifndef ATOLL_WORKER_EVALUATION_TALLY_H_
#define ATOLL_WORKER_EVALUATION_TALLY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/protocol/control.h"
#include "worker/evaluation/task.h"

namespace atl {

struct LogLikelihood {
  double nats = 0;      // the logarithm of the probability of all that is scored
  int64_t tokens = 0;   // scored
  bool greedy = false;  // each is the likeliest after those before it
};

// Numbers of an item that its score needs besides the model's: its texts may be dropped.
struct ItemMeasures {
  struct Lengths {
    int64_t characters = 0, words = 0, bytes = 0;
  };
  int64_t right = 0;             // of `answers`
  std::vector<Lengths> answers;  // as TaskItem has them
};
ItemMeasures Measure(const TaskItem& item);

// Adds up scores of items. Pure.
class TaskTally {
 public:
  explicit TaskTally(TaskKind kind) { score_.kind = kind; }

  // `found`: of each answer of the item.
  void Add(const ItemMeasures& item, std::span<const LogLikelihood> found);
  TaskScore Finish() const;

 private:
  TaskScore score_;
  int64_t right_ = 0, right_normalised_ = 0;
  double nats_ = 0;
  int64_t words_ = 0, bytes_ = 0;
};

}  // namespace atl

#endif  // ATOLL_WORKER_EVALUATION_TALLY_H_
