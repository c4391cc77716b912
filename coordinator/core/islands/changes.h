// Findings about an island's workers and the links between them since a plan was last requested:
// the reasons to request another one. Pure.

#ifndef ATOLL_COORDINATOR_CORE_ISLANDS_CHANGES_H_
#define ATOLL_COORDINATOR_CORE_ISLANDS_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace atl::coord {

class Changes {
 public:
  static constexpr double kUnusable = 1e300;  // the plan in force cannot be set up with it

  // The newest change of a subject replaces those before. `size`: how much it is, from 1; of too
  // many only the largest are kept.
  void Add(const std::string& subject, double size, const std::string& reason);
  // Forgets the findings that `considered` has, too, and that are unchanged since.
  void Forget(const Changes& considered);

  bool empty() const { return changes_.empty(); }
  bool unusable() const;
  // The largest three, then how many more.
  std::string Text() const;

  template <class V>
  void VisitFields(V& v) {
    v(changes_, dropped_);
  }

 private:
  struct Change {
    double size = 1;
    std::string reason;

    bool operator==(const Change&) const = default;
  };
  static constexpr size_t kKept = 64;
  static constexpr size_t kNamed = 3;

  std::map<std::string, Change> changes_;  // by subject
  int64_t dropped_ = 0;                    // too many
};

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ISLANDS_CHANGES_H_
