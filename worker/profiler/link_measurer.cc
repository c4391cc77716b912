#include "worker/profiler/link_measurer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/event_loop.h"

namespace atl::worker {

namespace {

constexpr int64_t kDuringStepsBytesMax = int64_t{8} << 20;
constexpr int kDuringStepsRuns = 3;

LinkMeasurerOptions WithProgress(LinkMeasurerOptions options) {
  options.profile.progress = [report = options.measuring](size_t link, size_t links,
                                                          const NodeId& to) {
    report(absl::StrCat("measures the link to ", to, " (", link + 1, " of ", links, ")"));
  };
  return options;
}

std::vector<IslandMember> SelectDestinations(const MeasureLinks& request) {
  std::vector<IslandMember> to;
  for (const IslandMember& member : request.members) {
    if (std::find(request.to.begin(), request.to.end(), member.worker) != request.to.end()) {
      to.push_back(member);
    }
  }
  return to;
}

}  // namespace

LinkMeasurer::LinkMeasurer(PeerLink* link, LinkMeasurerOptions options)
    : link_(link), options_(WithProgress(std::move(options))) {}

void LinkMeasurer::Measure(MeasureLinks request) {
  const std::lock_guard lock(mutex_);
  if (request.probe) {
    next_probe_ = std::move(request);
  } else {
    if (request.request == newest_)
      return;  // the coordinator repeats requests until they are answered
    newest_ = request.request;
    next_ = std::move(request);
  }
  work_.Add([this] { MeasureNext(); });
}

void LinkMeasurer::MeasureNext() {
  std::optional<MeasureLinks> next;
  {
    const std::lock_guard lock(mutex_);
    next = std::exchange(next_ ? next_ : next_probe_, std::nullopt);
  }
  if (!next) return;  // a newer one has replaced it
  LinksMeasured answer;
  answer.job = next->job;
  answer.request = next->request;
  answer.probe = next->probe;
  if (next->probe) {
    Probe(*next, answer);
  } else if (next->during_steps) {
    MeasureDuringSteps(*next, answer);
  } else {
    Do(*next, answer);
  }
  for (LinkProfile& link : answer.links) {
    for (const IslandMember& member : next->members) {
      if (member.worker == link.to) link.relay = link_->FindRelay(member);
    }
  }
  if (next->measurer == link_->name()) options_.post(std::move(answer));
}

void LinkMeasurer::Probe(const MeasureLinks& request, LinksMeasured& answer) {
  const std::vector<IslandMember> probed = SelectDestinations(request);
  std::set<NodeId> silent;
  for (auto& [worker, trouble] : link_->Probe(probed, options_.probe_timeout)) {
    silent.insert(worker);
    answer.unreachable.push_back({worker, std::move(trouble)});
  }
  for (const IslandMember& member : probed) {
    if (silent.count(member.worker) == 0) answer.reached.push_back(member.worker);
  }
}

void LinkMeasurer::MeasureDuringSteps(const MeasureLinks& request, LinksMeasured& answer) {
  link_->SetTemporaryPeers(request.members, options_.temporary_for);
  if (request.measurer != link_->name()) return;
  // A worker that trains needs its link; smaller sizes measure it well enough.
  LinkProfileOptions profile = options_.profile;
  profile.bytes_max = std::min(profile.bytes_max, kDuringStepsBytesMax);
  profile.runs = std::min(profile.runs, kDuringStepsRuns);
  LinksFound found =
      ProfileLinksDuringSteps(*link_, SelectDestinations(request), profile, options_.meet_timeout);
  options_.measuring("");
  answer.links = std::move(found.links);
  answer.unmeasured = std::move(found.failed);  // training shows whether it answers at all
}

void LinkMeasurer::Do(const MeasureLinks& request, LinksMeasured& answer) {
  const absl::Status met = options_.meet({request.job, 0, request.request}, request.members);
  answer.trouble = std::string(met.message());
  if (!met.ok() || request.measurer != link_->name()) return;
  // A worker that does not come delays the others until the deadline only.
  const Instant deadline = SteadyNow() + options_.meet_timeout;
  std::vector<NodeId> peers;
  for (const IslandMember& member : request.members) {
    const NodeId& to = member.worker;
    const bool wanted = request.to.empty() ||
                        std::find(request.to.begin(), request.to.end(), to) != request.to.end();
    if (to == link_->name() || !wanted) continue;
    const absl::Status here = link_->AwaitPeers(deadline, {to});
    if (here.ok()) {
      peers.push_back(to);
    } else {
      Sort({to, std::string(here.message())}, answer);
    }
  }
  LinksFound found = ProfileLinks(*link_, peers, options_.profile);
  options_.measuring("");
  answer.links = std::move(found.links);
  for (LinkFailure& failure : found.failed) Sort(std::move(failure), answer);
}

// A worker that was connected at any time meanwhile can be reached.
void LinkMeasurer::Sort(LinkFailure failure, LinksMeasured& answer) const {
  for (const auto& [worker, trouble] : link_->Unconnected(options_.meet_timeout * 3 / 4)) {
    if (worker != failure.to) continue;
    answer.unreachable.push_back(std::move(failure));
    return;
  }
  answer.unmeasured.push_back(std::move(failure));
}

}  // namespace atl::worker
