#include "worker/evaluation/task_rows.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/masked_tokens.h"

namespace atl {

absl::StatusOr<TaskRows> TaskRows::Create(Task task, int64_t limit, int64_t window,
                                          PairEncoder& encoder, int64_t tokens_max) {
  TaskRows rows;
  rows.kind_ = task.kind;
  std::vector<TaskItem>& items = task.items;
  if (limit > 0 && limit < std::ssize(items)) items.resize(static_cast<size_t>(limit));
  for (TaskItem& read : items) {
    const TaskItem item = std::move(read);  // its texts are of no use afterwards
    ATOLL_RETURN_IF_ERROR(Annotate(rows.AddItem(item, window, tokens_max, encoder),
                                   absl::StrCat("line ", item.line)));
    rows.items_.push_back(Measure(item));
  }
  return rows;
}

absl::Status TaskRows::AddItem(const TaskItem& item, int64_t window, int64_t tokens_max,
                               PairEncoder& encoder) {
  for (const std::string& answer : item.answers) {
    ATOLL_ASSIGN_OR_RETURN(const ScoredTokens text,
                           encoder.Encode(item.prompt, JoinAnswer(item.prompt, answer)));
    const int64_t before = size();
    ATOLL_RETURN_IF_ERROR(kind_ == TaskKind::kPerplexity ? AddText(text, window)
                                                         : AddAnswer(text, window));
    if (tokens() > tokens_max) {
      return absl::InvalidArgumentError(
          absl::StrCat("with it the job's tasks have more than ", kTaskTokensMax,
                       " tokens, a prompt once for each of its answers: limit their items"));
    }
    answers_.push_back(size() - before);
  }
  return absl::OkStatus();
}

absl::Status TaskRows::AddAnswer(const ScoredTokens& text, int64_t window) {
  const int64_t size = std::ssize(text.tokens);
  // The last token is no input.
  const int64_t begin = std::max<int64_t>(0, size - 1 - window);
  const int64_t first = std::max(text.context, begin + 1);
  if (first >= size) {
    return absl::InvalidArgumentError(
        "nothing is left to score: the tokenizer makes one token of all of it");
  }
  AddRow(text.tokens, begin, first, size);
  return absl::OkStatus();
}

absl::Status TaskRows::AddText(const ScoredTokens& text, int64_t window) {
  const int64_t size = std::ssize(text.tokens), scored = std::max<int64_t>(1, text.context);
  for (int64_t first = scored; first < size;) {
    // The last window goes back as far as it can.
    const int64_t last =
        std::min(size, first == scored ? std::max(first + 1, window + 1) : first + window);
    AddRow(text.tokens, std::max<int64_t>(0, last - 1 - window), first, last);
    first = last;
  }
  return absl::OkStatus();
}

void TaskRows::AddRow(const std::vector<int32_t>& text, int64_t begin, int64_t first,
                      int64_t last) {
  ATOLL_CHECK(begin < first && first < last && last <= std::ssize(text));
  for (int64_t i = begin; i < last; ++i) {
    tokens_.push_back(i < first ? MaskToken(text[static_cast<size_t>(i)])
                                : text[static_cast<size_t>(i)]);
  }
  begins_.push_back(std::ssize(tokens_));
}

uint64_t TaskRows::Digest(uint64_t before) const {
  const auto add = [](const auto& numbers, uint64_t digest) {
    return XXH3_64bits_withSeed(numbers.data(), numbers.size() * sizeof(numbers[0]), digest);
  };
  std::vector<int64_t> right;
  for (const ItemMeasures& item : items_) right.push_back(item.right);
  return add(right, add(begins_, add(tokens_, before)));
}

absl::StatusOr<TaskScore> TaskRows::Score(const Evaluate& evaluate) const {
  TaskTally tally(kind_);
  int64_t row = 0;
  auto rows = answers_.begin();
  for (const ItemMeasures& item : items_) {
    std::vector<LogLikelihood> found(item.answers.size());
    for (LogLikelihood& one : found) {
      double hits = 0;
      for (const int64_t end = row + *rows++; row < end; ++row) {
        ATOLL_ASSIGN_OR_RETURN(const LossSum loss, evaluate(row));
        if (!std::isfinite(loss.nats)) return TaskScore{.kind = kind_};
        one.nats -= loss.nats;
        one.tokens += loss.tokens;
        hits += loss.hits;
      }
      one.greedy = hits == static_cast<double>(one.tokens);
    }
    tally.Add(item, found);
  }
  return tally.Finish();
}

}  // namespace atl
