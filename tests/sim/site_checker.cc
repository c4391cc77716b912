// Computes what is expected of the job of a site's servers, by the same arithmetic that they use
// (RoundStep::adopts, contributes), and what it contributes to the job above.

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/checker.h"

namespace atl::sim {
namespace {

std::vector<PositionRange> RangesFromPositions(std::vector<int64_t> positions) {
  std::sort(positions.begin(), positions.end());
  std::vector<PositionRange> ranges;
  for (const int64_t position : positions) {
    if (ranges.empty() || ranges.back().end != position) ranges.push_back({position, position});
    ++ranges.back().end;
  }
  return ranges;
}

}  // namespace

void Checker::Fail(std::string what) {
  all_.Fail(IsOfSite() ? absl::StrCat("job of a site: ", what) : std::move(what));
}

// Expects an adoption: a parameter that no round has changed since becomes the adopted number
// itself.
void Checker::ExpectAdopted(Version adopted, Model& model) {
  const auto above = all_.users().expected_.find(adopted);
  if (above == all_.users().expected_.end()) {
    return Fail(absl::StrCat("N3: adopts version ", adopted, ", which was never sent"));
  }
  const LayerValues& to = above->second.theta;
  const LayerValues from = model.contributed.empty() ? model.base : model.contributed;
  if (from.empty()) {
    model.theta = to;
    for (LayerValues& slot : model.slots) {
      for (size_t l = 0; l < to.size(); ++l) slot[l].assign(to[l].size(), 0.0f);
    }
  } else {
    ++adopted_;
    for (size_t l = 0; l < to.size(); ++l) {
      for (size_t i = 0; i < to[l].size(); ++i) {
        float& x = model.theta[l][i];
        x = x == from[l][i] ? to[l][i] : x + (to[l][i] - from[l][i]);
      }
    }
  }
  model.base = to;
  model.contributed.clear();
}

void Checker::ExpectContributed(Version version, Model& model) {
  model.contributed = model.theta;
  Contribution& contribution = contributions_[version];
  contribution.delta = model.base;
  for (size_t l = 0; l < model.theta.size(); ++l) {
    for (size_t i = 0; i < model.theta[l].size(); ++i) {
      contribution.delta[l][i] -= model.theta[l][i];
    }
  }
  CaptureContribution(contribution);
}

// Notes a contribution of all that the site's rounds have accepted since the one before.
void Checker::NoteContribution(const DecisionRecord& decision) {
  if (!decision.step.contributes) return;
  std::vector<int64_t> positions;
  for (auto it = made_.rbegin(); it != made_.rend(); ++it) {
    if (it->first != decision.round && it->second.step.contributes) break;
    positions.insert(positions.end(), it->second.positions.begin(), it->second.positions.end());
  }
  if (positions.empty()) Fail(absl::StrCat("version ", decision.version, " contributes nothing"));
  contributions_[decision.version].trained_on = RangesFromPositions(std::move(positions));
}

void Checker::NameContribution(const SiteJob& site) {
  if (!site.contribution) return;
  Contribution& contribution = contributions_[site.contributed_at];
  contribution.id = site.contribution;
  CaptureContribution(contribution);
}

void Checker::CaptureContribution(const Contribution& contribution) {
  if (!contribution.id || contribution.delta.empty()) return;
  all_.users().DeltaCaptured(*contribution.id, contribution.delta, contribution.trained_on);
}

void Checker::NotTaken(const ContributionId& id) {
  for (const auto& [version, contribution] : contributions_) {
    if (contribution.id != id) continue;
    for (const PositionRange& range : contribution.trained_on) {
      for (int64_t position = range.begin; position < range.end; ++position) {
        committed_positions_.erase(position);
      }
    }
  }
}

int64_t Checker::contributed() const {
  return std::count_if(contributions_.begin(), contributions_.end(), [&](const auto& entry) {
    return entry.second.id && all_.users().Committed(*entry.second.id);
  });
}

// --------------------------------------------------------------------------------- all jobs ----

Checker& Checkers::Of(const JobId& job) {
  const auto other = others_.find(job);
  if (other != others_.end()) return other->second;
  const auto site = sites_.find(job);
  return site == sites_.end() ? users_ : site->second;
}

bool Checkers::KnowsOther(const std::string& name) const {
  return std::any_of(others_.begin(), others_.end(),
                     [&](const auto& entry) { return entry.second.spec().name == name; });
}

bool Checkers::HoldsForSite(const NodeId& server) const {
  return std::any_of(sites_.begin(), sites_.end(),
                     [&](const auto& entry) { return entry.second.Holds(server); });
}

void Checkers::Persisted(const StoreRecord& record) {
  if (const auto* job = std::get_if<JobRecord>(&record); job != nullptr && job->site) {
    const auto [site, fresh] = sites_.try_emplace(job->job, job->spec, &pool_, this);
    if (fresh && removal_requested_) site->second.NoteRemovalRequest();
    if (job->removed) site->second.EndPersisted();
  }
  if (const auto* job = std::get_if<JobRecord>(&record); job != nullptr && !job->site) {
    if (job->spec.name != users_.spec().name) {
      others_.try_emplace(job->job, job->spec, &pool_, this);
    }
  }
  if (const auto* removed = std::get_if<RemovedRecord>(&record)) {
    if (IsOfSite(removed->job)) Of(removed->job).EndPersisted();
  }
  if (const auto* progress = std::get_if<ProgressRecord>(&record)) {
    if (IsOfSite(progress->job) && HasEnded(progress->state)) Of(progress->job).EndPersisted();
  }
  const auto* contribution = std::get_if<ContributionRecord>(&record);
  if (contribution != nullptr && contribution->dropped && !IsOfSite(contribution->job)) {
    NotTaken(contribution->contribution);
  }
  std::visit(
      [&](const auto& any) {
        if constexpr (requires { any.job; }) Of(any.job).Persisted(record);
      },
      record);
}

void Checkers::StoreReplaced() {
  users_.StoreReplaced();
  for (auto& [job, site] : sites_) site.StoreReplaced();
  for (auto& [job, other] : others_) other.StoreReplaced();
}

void Checkers::NoteRemovalRequest() {
  removal_requested_ = true;
  users_.NoteRemovalRequest();
  for (auto& [job, site] : sites_) site.NoteRemovalRequest();
  for (auto& [job, other] : others_) other.NoteRemovalRequest();
}

void Checkers::NotTaken(const ContributionId& contribution) {
  for (auto& [job, site] : sites_) site.NotTaken(contribution);
}

int64_t Checkers::adopted() const {
  return std::accumulate(
      sites_.begin(), sites_.end(), int64_t{0},
      [](int64_t sum, const auto& entry) { return sum + entry.second.adopted(); });
}

int64_t Checkers::contributed() const {
  return std::accumulate(
      sites_.begin(), sites_.end(), int64_t{0},
      [](int64_t sum, const auto& entry) { return sum + entry.second.contributed(); });
}

}  // namespace atl::sim
