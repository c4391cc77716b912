#include "coordinator/profile_book.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

constexpr size_t kMaxLinks = size_t{1} << 20;

bool Usable(const LinkProfile& link) {
  return link.bandwidth_bytes_per_s > 0 && std::isfinite(link.bandwidth_bytes_per_s) &&
         link.latency_ns >= 0;
}

std::vector<IslandMember> MembersOf(const PlanRequest& request) {
  std::vector<IslandMember> members;
  for (const PlanMember& member : request.members) members.push_back(member.member);
  return members;
}

// All can be reached by the others.
bool Reachable(const PlanRequest& request) {
  return std::all_of(request.members.begin(), request.members.end(),
                     [](const PlanMember& m) { return !m.member.endpoint.empty(); });
}

}  // namespace

void ProfileBook::OnMessage(Instant now, const FromWorker& from) {
  if (const auto* prepared = std::get_if<JobPrepared>(&from.message)) {
    for (const DeviceProfile& profile : prepared->profiles) {
      if (WorkerOfDevice(profile.device) != from.worker || profile.layers.empty()) continue;
      const std::pair key(profile.device, profile.model_digest);
      if (profiles_.size() >= options_.max_profiles && profiles_.count(key) == 0) continue;
      profiles_[key] = profile;
    }
  } else if (const auto* measured = std::get_if<LinksMeasured>(&from.message)) {
    for (const LinkProfile& link : measured->links) {
      if (link.from != from.worker || link.to == from.worker || !Usable(link)) continue;
      const Pair pair(link.from, link.to);
      if (links_.size() >= kMaxLinks && links_.count(pair) == 0) continue;
      links_[pair] = {link, now, false};
    }
    for (Waiting& waiting : waiting_) {
      if (waiting.measurer == from.worker && waiting.turn == measured->request) {
        waiting.measurer.clear();
      }
    }
  } else if (const auto* heartbeat = std::get_if<WorkerHeartbeat>(&from.message)) {
    if (!heartbeat->progress) return;
    for (const BoundaryState& boundary : heartbeat->progress->boundaries) {
      OnBoundary(now, from.worker, boundary);
    }
  }
}

// A leader speaks of all boundaries of its island. Only links that were measured are corrected:
// what a window of messages shows is one number, and does not tell latency from bandwidth.
void ProfileBook::OnBoundary(Instant now, const NodeId& /*leader*/, const BoundaryState& boundary) {
  const auto known = links_.find({WorkerOfDevice(boundary.from), WorkerOfDevice(boundary.to)});
  if (known == links_.end() || !(boundary.bandwidth_bytes_per_s > 0) ||
      !(boundary.message_seconds > 0) || !std::isfinite(boundary.bandwidth_bytes_per_s)) {
    return;
  }
  LinkReport& report = known->second;
  const double share = boundary.bandwidth_bytes_per_s / report.link.bandwidth_bytes_per_s;
  const double bytes = boundary.bandwidth_bytes_per_s * boundary.message_seconds;
  const double latency_s = static_cast<double>(report.link.latency_ns) * 1e-9;
  const double expected_s = latency_s + bytes / report.link.bandwidth_bytes_per_s;
  if (boundary.message_seconds <= latency_s) return;
  // Where all messages have one size, their bandwidth includes the latency; else it does not.
  if (std::abs(share - 1) <= options_.changed ||
      std::abs(boundary.message_seconds / expected_s - 1) <= options_.changed) {
    report.at = now;  // still true
    return;
  }
  // Half way there, as factors go: one window of messages may have been held up by anything.
  report.link.bandwidth_bytes_per_s =
      std::sqrt(report.link.bandwidth_bytes_per_s * bytes / (boundary.message_seconds - latency_s));
  report.at = now;
  report.live = true;
}

void ProfileBook::Want(Instant now, PlanKey key, PlanRequest request, bool busy) {
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    return waiting.key.job == key.job && waiting.key.island == key.island;
  });
  Waiting waiting;
  waiting.key = std::move(key);
  waiting.request = std::move(request);
  waiting.turn_ends = waiting.send_again = now;
  if (busy || waiting.request.members.size() < 2 || !Reachable(waiting.request)) {
    for (const PlanMember& member : waiting.request.members) {
      waiting.had_turn.insert(member.member.worker);
    }
  }
  waiting_.push_back(std::move(waiting));
}

bool ProfileBook::Fresh(Instant now, const Pair& pair) const {
  const auto known = links_.find(pair);
  return known != links_.end() && now - known->second.at <= options_.link_fresh;
}

// The first one in order with a link to measure that has not had its turn.
NodeId ProfileBook::NextMeasurer(Instant now, const Waiting& waiting) const {
  for (const PlanMember& member : waiting.request.members) {
    const NodeId& from = member.member.worker;
    if (waiting.had_turn.count(from) > 0) continue;
    for (const PlanMember& other : waiting.request.members) {
      if (other.member.worker != from && !Fresh(now, {from, other.member.worker})) return from;
    }
  }
  return "";
}

// Whether one of them takes part in a turn that goes on.
bool ProfileBook::InTurn(const std::vector<IslandMember>& members) const {
  for (const Waiting& waiting : waiting_) {
    if (waiting.measurer.empty()) continue;
    for (const PlanMember& member : waiting.request.members) {
      for (const IslandMember& other : members) {
        if (other.worker == member.member.worker) return true;
      }
    }
  }
  return false;
}

ProfileBook::Work ProfileBook::Advance(Instant now) {
  Work work;
  for (size_t i = 0; i < waiting_.size();) {
    Waiting& waiting = waiting_[i];
    const std::vector<IslandMember> members = MembersOf(waiting.request);
    if (!waiting.measurer.empty() && now >= waiting.turn_ends) waiting.measurer.clear();
    if (waiting.measurer.empty()) {
      const NodeId next = NextMeasurer(now, waiting);
      if (next.empty()) {
        FillIn(waiting.request);
        work.plan.emplace_back(waiting.key, std::move(waiting.request));
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      if (!InTurn(members)) {
        waiting.had_turn.insert(next);
        waiting.measurer = next;
        // Grows over restarts of the coordinator, too.
        last_turn_ = std::max<int64_t>(last_turn_ + 1, now.time_since_epoch().count());
        waiting.turn = last_turn_;
        waiting.turn_ends = now + options_.turn_limit;
        waiting.send_again = now;
      }
    }
    if (!waiting.measurer.empty()) {
      if (now >= waiting.send_again) {
        for (const IslandMember& member : members) {
          work.send.push_back(
              {member.worker, member.incarnation,
               MeasureLinks{waiting.key.job, waiting.turn, members, waiting.measurer}});
        }
        waiting.send_again = now + kRetryInterval;
      }
      work.deadline = std::min({work.deadline, waiting.turn_ends, waiting.send_again});
    }
    ++i;
  }
  return work;
}

std::vector<DeviceProfile> ProfileBook::Devices(uint64_t model_digest) const {
  std::vector<DeviceProfile> devices;
  for (const auto& [key, profile] : profiles_) {
    if (key.second == model_digest) devices.push_back(profile);
  }
  return devices;
}

std::vector<LinkReport> ProfileBook::Links() const {
  std::vector<LinkReport> links;
  for (const auto& [pair, report] : links_) links.push_back(report);
  return links;
}

void ProfileBook::FillIn(PlanRequest& request) const {
  const uint64_t digest = DigestOf(request.facts.model, request.spec.data.sequence_length);
  request.links.clear();
  for (PlanMember& member : request.members) {
    member.profiles.clear();
    for (size_t i = 0; i < member.devices.size(); ++i) {
      const auto known = profiles_.find({absl::StrCat(member.member.worker, "/", i), digest});
      if (known != profiles_.end()) member.profiles.push_back(known->second);
    }
    for (const PlanMember& other : request.members) {
      const auto link = links_.find({member.member.worker, other.member.worker});
      if (link != links_.end()) request.links.push_back(link->second.link);
    }
  }
}

}  // namespace atl
