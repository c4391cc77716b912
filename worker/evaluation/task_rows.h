// A task as rows of tokens that a language model is run on, and the score that follows of what it
// finds there.

#ifndef ATOLL_WORKER_EVALUATION_TASK_ROWS_H_
#define ATOLL_WORKER_EVALUATION_TASK_ROWS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/protocol/control.h"
#include "common/status.h"
#include "worker/evaluation/pair_encoder.h"
#include "worker/evaluation/tally.h"
#include "worker/evaluation/task.h"
#include "worker/model/runner.h"

namespace atl {

inline constexpr int64_t kTaskTokensMax = int64_t{1} << 27;  // of all tasks of a job

// Each answer is one row: the prompt, masked (common/masked_tokens.h), and behind it what is
// scored; of one that is too long for the window, its last tokens. A whole text is cut into
// windows of which each token is scored once, with as many before it as its window has. Const
// methods may be called from several threads.
class TaskRows {
 public:
  // Takes the first `limit` items (0: all). `window`: the most inputs of a row, which has one token
  // more. INVALID_ARGUMENT names the line of an item that cannot be scored, or with which the rows
  // have more than `tokens_max` tokens.
  static absl::StatusOr<TaskRows> Create(Task task, int64_t limit, int64_t window,
                                         PairEncoder& encoder, int64_t tokens_max = kTaskTokensMax);

  int64_t tokens() const { return std::ssize(tokens_); }  // of all rows
  int64_t size() const { return std::ssize(begins_) - 1; }
  std::span<const int32_t> row(int64_t i) const {
    return std::span(tokens_).subspan(static_cast<size_t>(begins_[i]),
                                      static_cast<size_t>(begins_[i + 1] - begins_[i]));
  }
  // Returns a number that stands for all rows and what lies before them, whose number is `before`.
  uint64_t Digest(uint64_t before) const;
  // Returns whether the score needs hits, and not the loss alone.
  bool needs_hits() const { return kind_ == TaskKind::kExact; }

  // `evaluate` returns the loss of a row's targets, and their hits where they are needed; it is
  // called once for each, in order. Its errors are returned. The score has no name and no version;
  // it is of no items where a loss is not finite.
  using Evaluate = std::function<absl::StatusOr<LossSum>(int64_t row)>;
  absl::StatusOr<TaskScore> Score(const Evaluate& evaluate) const;

 private:
  absl::Status AddItem(const TaskItem& item, int64_t window, int64_t tokens_max,
                       PairEncoder& encoder);
  absl::Status AddAnswer(const ScoredTokens& text, int64_t window);
  absl::Status AddText(const ScoredTokens& text, int64_t window);
  // Tokens [begin, last) of a text, of which those from `first` on are scored; first > begin.
  void AddRow(const std::vector<int32_t>& text, int64_t begin, int64_t first, int64_t last);

  TaskKind kind_ = TaskKind::kChoices;
  std::vector<ItemMeasures> items_;
  std::vector<int32_t> tokens_;     // of all rows
  std::vector<int64_t> begins_{0};  // of each row, and the end of the last
  std::vector<int64_t> answers_;    // of each answer in turn, how many rows it has
};

}  // namespace atl

#endif  // ATOLL_WORKER_EVALUATION_TASK_ROWS_H_
