#include "worker/evaluation/tally.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/ascii.h"
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

// The share of right items, and the sample's deviation over the root of their number.
void SetAccuracy(int64_t right, int64_t items, double* mean, double* standard_error) {
  const auto n = static_cast<double>(items);
  *mean = static_cast<double>(right) / n;
  *standard_error = items > 1 ? std::sqrt(*mean * (1 - *mean) / (n - 1)) : 0;
}

}  // namespace

ItemMeasures Measure(const TaskItem& item) {
  ItemMeasures measures{item.right, {}};
  for (const std::string& answer : item.answers) {
    measures.answers.push_back({CountCharacters(answer), CountWords(answer), std::ssize(answer)});
  }
  return measures;
}

void TaskTally::Add(const ItemMeasures& item, std::span<const LogLikelihood> found) {
  ATOLL_CHECK(found.size() == item.answers.size());
  ++score_.items;
  for (const LogLikelihood& one : found) score_.tokens += one.tokens;
  if (score_.kind == TaskKind::kChoices) {
    const auto by_nats = [&](int64_t i) { return found[i].nats; };
    const auto by_character = [&](int64_t i) {
      return found[i].nats / static_cast<double>(item.answers[i].characters);
    };
    const auto count = static_cast<int64_t>(found.size());
    right_ += FindBest(count, by_nats) == item.right ? 1 : 0;
    right_normalised_ += FindBest(count, by_character) == item.right ? 1 : 0;
    return;
  }
  nats_ += found[0].nats;
  right_ += found[0].greedy ? 1 : 0;
  words_ += item.answers[0].words;
  bytes_ += item.answers[0].bytes;
}

TaskScore TaskTally::Finish() const {
  TaskScore score = score_;
  if (score.items == 0) return score;
  if (score.kind != TaskKind::kPerplexity) {
    SetAccuracy(right_, score.items, &score.accuracy, &score.accuracy_standard_error);
  }
  if (score.kind == TaskKind::kChoices) {
    SetAccuracy(right_normalised_, score.items, &score.normalised_accuracy,
                &score.normalised_accuracy_standard_error);
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

}  // namespace atl
