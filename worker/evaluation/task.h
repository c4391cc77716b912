// A task: a file of questions that a language model is scored on.

#ifndef ATOLL_WORKER_EVALUATION_TASK_H_
#define ATOLL_WORKER_EVALUATION_TASK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "worker/data/inputs.h"

namespace atl {

// Fields of a line, by kind: {"prompt", "choices", "answer"}, {"prompt", "answer"}, {"text"}.
const char* Name(TaskKind kind);
std::optional<TaskKind> FindTaskKind(std::string_view name);

struct TaskItem {
  std::string prompt;                // of kPerplexity: empty
  std::vector<std::string> answers;  // kChoices: all of them; else the answer or the text alone
  int64_t right = 0;                 // of `answers`
  int64_t line = 0;                  // of the file, from 1
};

struct Task {
  TaskKind kind = TaskKind::kChoices;
  std::vector<TaskItem> items;
};

// Reads JSONL: every line is of one kind, which the first line's fields decide unless `kind` does;
// other fields are left alone. "answer" of choices is a number, from 0, or one of them.
// INVALID_ARGUMENT names file (`name`), line and field.
absl::StatusOr<Task> ParseTask(std::string_view text, const std::string& name,
                               std::optional<TaskKind> kind);

// Reads the task at a path of data (data_file.h), which may be packed.
absl::StatusOr<Task> ReadTask(const std::string& path, std::optional<TaskKind> kind,
                              const Cancelled& cancelled = {});

// Returns what a model is given after the prompt: the answer, behind a space where neither has one.
std::string JoinAnswer(const std::string& prompt, const std::string& answer);

}  // namespace atl

#endif  // ATOLL_WORKER_EVALUATION_TASK_H_
