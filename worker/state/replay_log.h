// A log of what has been done to an island's state since it was saved, so that it can be done
// again, with the same bits. Pure.

#ifndef ATOLL_WORKER_STATE_REPLAY_LOG_H_
#define ATOLL_WORKER_STATE_REPLAY_LOG_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

#include "common/protocol/saved_state.h"

namespace atl::worker {

// The parameters of all layers became theta_base; else something changed that is not known.
struct LoggedParameters {
  bool are_base = false;
};
using LoggedChange = std::variant<LoggedStep, LoggedParameters>;

class ReplayLog {
 public:
  static constexpr size_t kChangesMax = 1 << 16;

  // Notes a save: what follows happens to its state. It is kept (`lasting`) while others come.
  void Saved(int64_t save, int64_t optimizer_step, bool lasting = false) {
    std::erase_if(marks_, [&](const Mark& mark) { return mark.save == save; });
    marks_.push_back({save, next_, lasting, optimizer_step});
    const auto alike = [&](const Mark& mark) { return mark.lasting == lasting; };
    if (std::count_if(marks_.begin(), marks_.end(), alike) > kMarksMax) {
      marks_.erase(std::find_if(marks_.begin(), marks_.end(), alike));
    }
    while (!changes_.empty() && first() < marks_.front().at) changes_.pop_front();
  }
  // A step that was abandoned is replayed under the same number.
  void Stepped(LoggedStep step) {
    while (!changes_.empty()) {
      const auto* last = std::get_if<LoggedStep>(&changes_.back());
      if (last == nullptr || last->optimizer_step < step.optimizer_step) break;
      if (EndsSaved()) break;  // it is in a save
      changes_.pop_back();
      --next_;
    }
    Add(std::move(step));
  }
  // Something has been set: no state before it is of use, unless it is Explained at once.
  void Changed() {
    if (!EndsUnknown() || EndsSaved()) Add(LoggedParameters{});
  }
  // It was that the parameters became theta_base.
  void Explained() {
    if (!EndsUnknown() || EndsSaved()) return;
    changes_.pop_back();
    --next_;
    Add(LoggedParameters{true});
  }
  // theta_base is another one from now on.
  void ForgetBase() {
    for (LoggedChange& change : changes_) {
      if (auto* parameters = std::get_if<LoggedParameters>(&change)) parameters->are_base = false;
    }
  }
  // The known changes since then; `all`: they lead to the present state.
  struct Changes {
    std::vector<LoggedChange> list;
    bool all = false;
    bool all_but_last = false;   // nothing is known of the newest, which was no step
    int64_t optimizer_step = 0;  // of the state after all in `list`
  };
  // None: nothing is known of this save.
  std::optional<Changes> Since(int64_t save) const {
    for (const Mark& mark : marks_) {
      if (mark.save != save || mark.at < first()) continue;
      const auto begin = changes_.begin() + (mark.at - first());
      const auto known = std::find_if(begin, changes_.end(), IsUnknown);
      Changes changes{{begin, known}};
      changes.all = known == changes_.end();
      changes.all_but_last = !changes.all && known + 1 == changes_.end();
      changes.optimizer_step = mark.optimizer_step;
      for (const LoggedChange& change : changes.list) {
        const auto* step = std::get_if<LoggedStep>(&change);
        if (step != nullptr) changes.optimizer_step = step->optimizer_step;
      }
      return changes;
    }
    return std::nullopt;
  }
  // The last one seen, whether it was made or restored.
  std::optional<int64_t> newest_save() const {
    return marks_.empty() ? std::nullopt : std::optional(marks_.back().save);
  }
  void Clear() {
    marks_.clear();
    changes_.clear();
  }

 private:
  struct Mark {
    int64_t save = 0;
    int64_t at = 0;  // number of the first change since
    bool lasting = false;
    int64_t optimizer_step = 0;
  };
  static constexpr int kMarksMax = 4;  // of each sort

  static bool IsUnknown(const LoggedChange& change) {
    const auto* parameters = std::get_if<LoggedParameters>(&change);
    return parameters != nullptr && !parameters->are_base;
  }
  // A save has all that has happened.
  bool EndsSaved() const { return !marks_.empty() && marks_.back().at == next_; }
  bool EndsUnknown() const { return !changes_.empty() && IsUnknown(changes_.back()); }
  int64_t first() const { return next_ - static_cast<int64_t>(changes_.size()); }
  void Add(LoggedChange change) {
    if (marks_.empty()) return;
    changes_.push_back(std::move(change));
    ++next_;
    if (changes_.size() > kChangesMax) changes_.pop_front();
  }

  std::deque<Mark> marks_;
  std::deque<LoggedChange> changes_;  // the newest ones, up to number next_ - 1
  int64_t next_ = 0;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_REPLAY_LOG_H_
