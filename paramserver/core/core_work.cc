// The arithmetic of rounds, a part in each Step without an event: a server of billions of
// parameters sends its heartbeats and takes pushes meanwhile. Nothing of it is seen before all is
// done.

#include <algorithm>
#include <utility>

#include "paramserver/core/core.h"
#include "paramserver/core/turn.h"

namespace atl::ps {

bool ServerCore::HasWork() const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [this](const auto& entry) { return HasWork(entry.second); });
}

// Jobs are served round-robin.
void ServerCore::Work(Turn& turn) {
  auto next = jobs_.upper_bound(worked_last_);
  for (size_t i = 0; i < jobs_.size(); ++i, ++next) {
    if (next == jobs_.end()) next = jobs_.begin();
    auto& [id, job] = *next;
    if (!HasWork(job)) continue;
    worked_last_ = id;
    return job.applying ? ApplyPart(id, job, turn) : GatherPart(id, job, turn);
  }
}

void ServerCore::ApplyPart(const JobId& id, Job& job, Turn& turn) {
  if (job.state->ApplyPart(*job.committing, options_.work_elements)) FinishCommit(id, job, turn);
}

void ServerCore::FinishCommit(const JobId& id, Job& job, Turn& turn) {
  const CommittedRecord commit = *std::exchange(job.committing, std::nullopt);
  job.applying = false;
  job.statistics.reset();
  Known(commit.dropped, job);
  UpdateRoom();
  Say(RoundApplied{id, commit.version}, turn);
  FetchBaseParts(id, job, turn);
  if (std::exchange(job.end_after_commit, false)) End(id, job, turn);
  MaybeSnapshot(job, turn);
}

void ServerCore::GatherPart(const JobId& id, Job& job, Turn& turn) {
  Gathering& gathering = *job.gathering;
  const absl::StatusOr<bool> done = job.state->AddToGram(gathering.sum, options_.work_elements);
  if (done.ok() && !*done) return;
  if (done.ok()) {
    Statistics& made = job.statistics.emplace();
    made = {id,
            gathering.version,
            std::move(gathering.sum.contributions),
            {},
            std::move(gathering.sum.shards)};
    for (auto& [layer, values] : gathering.sum.by_layer) {
      made.layers.push_back({layer, std::move(values)});
    }
    Say(made, turn);
  } else {
    Fault(id,
          absl::StrCat("statistics of round ", gathering.version, ": ", done.status().message()),
          turn);
  }
  job.gathering.reset();
}

}  // namespace atl::ps
