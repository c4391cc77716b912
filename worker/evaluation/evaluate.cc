#include "worker/evaluation/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace atl {
namespace {

// Bytes that begin a character of UTF-8.
int64_t CountCharacters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// Counts what a split at white space gives: also an empty word before or behind it.
int64_t CountWords(const std::string& text) {
  int64_t gaps = 0;
  bool in_gap = false;
  for (const char c : text) {
    const bool space = absl::ascii_isspace(c);
    gaps += space && !in_gap ? 1 : 0;
    in_gap = space;
  }
  return gaps + 1;
}

// Returns the first of equal ones.
template <typename Value>
int64_t FindBest(int64_t count, const Value& value) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i) {
    if (value(i) > value(best)) best = i;
  }
  return best;
}

}  // namespace

Share TaskTally::Hits::Over(int64_t items) const {
  const auto n = static_cast<double>(items);
  const double mean = static_cast<double>(count) / n;
  // The sample's deviation over the root of n.
  return {mean, items > 1 ? std::sqrt(mean * (1 - mean) / (n - 1)) : 0};
}

void TaskTally::Add(const TaskItem& item, std::span<const LogLikelihood> found) {
  ATOLL_CHECK(found.size() == item.answers.size());
  ++score_.items;
  for (const LogLikelihood& one : found) score_.tokens += one.tokens;
  if (score_.kind == TaskKind::kChoices) {
    const auto by_nats = [&](int64_t i) { return found[i].nats; };
    const auto by_character = [&](int64_t i) {
      return found[i].nats / static_cast<double>(CountCharacters(item.answers[i]));
    };
    const auto count = static_cast<int64_t>(found.size());
    right_.count += FindBest(count, by_nats) == item.right ? 1 : 0;
    right_normalised_.count += FindBest(count, by_character) == item.right ? 1 : 0;
    return;
  }
  nats_ += found[0].nats;
  right_.count += found[0].greedy ? 1 : 0;
  words_ += CountWords(item.answers[0]);
  bytes_ += std::ssize(item.answers[0]);
}

TaskScore TaskTally::Finish() const {
  TaskScore score = score_;
  if (score.items == 0) return score;
  if (score.kind != TaskKind::kPerplexity) score.accuracy = right_.Over(score.items);
  if (score.kind == TaskKind::kChoices) {
    score.normalised = right_normalised_.Over(score.items);
    return score;
  }
  const auto per = [&](int64_t count) { return -nats_ / static_cast<double>(count); };
  if (score.kind == TaskKind::kExact) {
    score.perplexity = std::exp(per(score.items));
    return score;
  }
  score.perplexity = std::exp(per(std::max<int64_t>(score.tokens, 1)));
  score.word_perplexity = std::exp(per(words_));
  score.byte_perplexity = std::exp(per(bytes_));
  score.bits_per_byte = per(bytes_) / std::numbers::ln2;
  return score;
}

absl::StatusOr<TaskScore> EvaluateTask(const Task& task, int64_t limit, PairEncoder& encoder,
                                       Scorer& scorer,
                                       const std::function<bool(int64_t)>& progress) {
  TaskTally tally(task.kind);
  const int64_t all = std::ssize(task.items), count = limit > 0 ? std::min(limit, all) : all;
  for (int64_t i = 0; i < count; ++i) {
    const TaskItem& item = task.items[i];
    std::vector<LogLikelihood> found;
    for (const std::string& answer : item.answers) {
      const auto text = encoder.Encode(item.prompt, JoinAnswer(item.prompt, answer));
      const auto one = !text.ok() ? text.status()
                       : task.kind == TaskKind::kPerplexity
                           ? scorer.Roll(*text)
                           : scorer.Score(*text, task.kind == TaskKind::kExact);
      if (!one.ok()) return Annotate(one.status(), absl::StrCat("line ", item.line));
      found.push_back(*one);
    }
    tally.Add(item, found);
    if (!progress(i + 1)) return absl::AbortedError("interrupted");
  }
  return tally.Finish();
}

}  // namespace atl
