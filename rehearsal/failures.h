// Failures of a rehearsal: a failures file, and the events that its laws give for a seed.
//
// Times are "90 s", "2 min", "1.5 h" or "3 d". Unknown keys are refused by name. Pure.

#ifndef ATOLL_REHEARSAL_FAILURES_H_
#define ATOLL_REHEARSAL_FAILURES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rng.h"
#include "common/time.h"
#include "rehearsal/scene.h"

namespace atl::rehearsal {

enum class FailureKind {
  kDevice,
  kWorker,
  kNode,
  kSite,
  kLink,
  kServer,
  kPreemption,
  kCoordinator,
  kDisk
};
const char* Name(FailureKind kind);  // as in a file

struct Failure {
  Duration at{0};
  FailureKind kind = FailureKind::kWorker;
  std::string subject;
  Duration lasts = Duration::max();  // for good
  Duration notice{0};
  double factor = 0;                      // of a link's bandwidth
  std::vector<std::string> workers = {};  // that fail, where they do; by name, in order
};

// A time that is drawn for each failure.
struct RepairLaw {
  enum class Form { kFixed, kExponential, kLognormal } form = Form::kFixed;
  Duration time = Duration::max();  // itself, the mean, the median
  double sigma = 0;                 // of the logarithm

  Duration Draw(Rng& rng) const;
};

struct FailureLaw {
  FailureKind kind = FailureKind::kDevice;
  std::string of;
  double mtbf_hours = 0;
  RepairLaw repair;
  std::string together;  // node, rack, site; empty: it fails alone
  double together_share = 1;
  Duration notice{0};
  double factor = 0;
};

struct HourlyPrice {
  std::string of;
  int from_hour = 0, to_hour = 24;
  double price_per_hour = 0;
};

struct Failures {
  std::vector<Failure> events;
  std::vector<FailureLaw> laws;
  std::map<std::string, std::string> racks;  // by node
  Times times;
  std::vector<ServerPlace> servers;
  std::string coordinator_site;
  std::vector<HourlyPrice> prices;
};

absl::StatusOr<Duration> ParseTime(absl::string_view text);

// Reads and checks; subjects are checked by Draw. `path` begins every error.
absl::StatusOr<Failures> ParseFailures(absl::string_view text, const std::string& path);

// Finds what can fail in a scene, by a file: made once for all seeds. Immutable, so thread-safe.
class FailureSource {
 public:
  // Both outlive it. NOT_FOUND names a subject that is not there.
  static absl::StatusOr<FailureSource> Make(const Failures* failures, const Scene* scene);

  // The events of the file and of its laws up to `until`, by time. The same seed gives the same
  // ones, and a subject's do not depend on the other subjects'.
  absl::StatusOr<std::vector<Failure>> Draw(Duration until, uint64_t seed) const;

 private:
  // Subjects of one kind by name, and the workers that fail with each.
  using Subjects = std::map<std::string, std::vector<std::string>>;

  FailureSource(const Failures* failures, const Scene* scene)
      : failures_(*failures), scene_(*scene) {}
  Subjects ListSubjects(FailureKind kind, const std::string& of) const;
  absl::Status FindEvents();
  void FindGroups();
  // The node, rack or site of a worker that `together` names.
  std::string GetGroup(const std::string& together, const SceneWorker& worker) const;
  absl::Status DrawLaw(size_t number, Duration until, uint64_t seed,
                       std::vector<Failure>* drawn) const;

  const Failures& failures_;
  const Scene& scene_;
  std::vector<Failure> events_;
  std::vector<Subjects> of_laws_;
  // Workers that share a node, rack or site, by laws' `together` and its name.
  std::map<std::string, std::map<std::string, std::vector<std::string>>> groups_;
  std::map<std::string, const SceneWorker*> workers_;  // by name
};

// Sets the hourly prices of the scene's workers. NOT_FOUND names what is not there.
absl::Status SetPrices(const std::vector<HourlyPrice>& prices, Scene& scene);

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_FAILURES_H_
