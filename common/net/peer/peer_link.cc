// The part of PeerLink that other threads call.

#include "common/net/peer/peer_link.h"

#include <algorithm>

#include "common/check.h"
#include "common/event_loop.h"

namespace atl {

absl::StatusOr<std::unique_ptr<PeerLink>> PeerLink::Create(PeerLinkOptions options,
                                                           PeerHandler* handler) {
  ATOLL_RETURN_IF_ERROR(Annotate(CheckChunkBytes(options.chunk_bytes), "peer link"));
  std::unique_ptr<PeerLink> link(new PeerLink(std::move(options), handler));
  ATOLL_RETURN_IF_ERROR(link->Start());
  return link;
}

absl::Status PeerLink::SetPeers(const PeerFence& fence, const std::vector<IslandMember>& members) {
  ATOLL_RETURN_IF_ERROR(Check(fence, members));
  Call([&] { Adopt(fence, members); });
  return absl::OkStatus();
}

absl::Status PeerLink::Check(const PeerFence& fence,
                             const std::vector<IslandMember>& members) const {
  ATOLL_RETURN_IF_ERROR(CheckJob(fence.job));
  std::set<NodeId> names;
  for (const IslandMember& member : members) {
    const std::string who = absl::StrCat("member ", member.worker, " of the island");
    if (!names.insert(member.worker).second) {
      return absl::InvalidArgumentError(absl::StrCat(who, " is there twice"));
    }
    if (member.worker == options_.name) continue;
    if (!CheckJob(member.worker).ok() || member.worker.size() > 63) {
      return absl::InvalidArgumentError(absl::StrCat(who, ": not a worker's name"));
    }
    if (!options_.keys.empty() && member.public_key.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(who, " has no key and we have one; start it with --curve-key"));
    }
    const ClientSecurity security{options_.keys, options_.allow_plaintext_beyond_loopback};
    for (int edge = 0; edge <= std::ssize(member.more_endpoints); ++edge) {
      ATOLL_RETURN_IF_ERROR(
          Annotate(CheckSecurity(security, GetEdgeEndpoint(member, edge), member.public_key), who));
    }
    if (CountEdges(options_, member) > kPeerEndpointsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(who, " has more than ", kPeerEndpointsMax, " endpoints"));
    }
  }
  return absl::OkStatus();
}

absl::Status PeerLink::AwaitPeers(Instant deadline, const std::vector<NodeId>& peers) {
  std::unique_lock lock(mutex_);
  while (true) {
    std::string missing;
    bool any_lost = false;
    for (const auto& [name, entry] : directory_) {
      if (!entry.is_peer || (entry.welcomed && !entry.lost)) continue;
      if (!peers.empty() && std::find(peers.begin(), peers.end(), name) == peers.end()) continue;
      absl::StrAppend(&missing, missing.empty() ? "" : "; ", name, ": ", entry.trouble);
      any_lost |= entry.lost;
    }
    if (missing.empty()) return absl::OkStatus();
    if (any_lost) return absl::UnavailableError(missing);
    const Duration left = deadline - SteadyNow();
    if (left <= Duration(0)) return absl::DeadlineExceededError(missing);
    changed_.wait_for(lock, std::min<Duration>(left, std::chrono::seconds(1)));
  }
}

absl::Status PeerLink::Send(const NodeId& to, PeerMessage message) {
  ATOLL_CHECK(message.header.size() <= kPeerHeaderBytesMax, message.header.size());
  const auto bytes = static_cast<int64_t>(message.payload.size());
  const int64_t window = options_.window_bytes[static_cast<int>(message.channel)];
  if (bytes + kPeerMessageCost > window) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", bytes, " bytes to ", to,
                                                   ": its channel takes ",
                                                   window - kPeerMessageCost, " at most"));
  }
  // std::function needs a copyable task.
  auto shared = std::make_shared<Outgoing>();
  {
    const std::lock_guard lock(mutex_);
    const auto it = directory_.find(to);
    if (it == directory_.end() || !it->second.is_peer) {
      return absl::UnavailableError(absl::StrCat(to, " is no peer"));
    }
    Entry& entry = it->second;
    if (entry.lost) return absl::UnavailableError(absl::StrCat(to, " is lost: ", entry.trouble));
    if (entry.queued_messages >= options_.queued_messages_max ||
        entry.queued_bytes + bytes > options_.queued_bytes_max) {
      return absl::ResourceExhaustedError(absl::StrCat("too much waits to be sent to ", to, ": ",
                                                       entry.queued_messages, " messages with ",
                                                       entry.queued_bytes, " bytes"));
    }
    ++entry.queued_messages;
    entry.queued_bytes += bytes;
    shared->round = round_;
  }
  shared->message = std::move(message);
  shared->queued = SteadyNow();
  tasks_->Post([this, to, shared] { Queue(to, std::move(*shared)); });
  return absl::OkStatus();
}

void PeerLink::Queue(const NodeId& to, Outgoing outgoing) {
  absl::Status refusal;
  {
    const std::lock_guard lock(mutex_);
    if (outgoing.round != round_) refusal = absl::AbortedError("a new plan has begun");
  }
  Peer* peer = Find(to);
  if (stopping_) refusal = absl::CancelledError("the link ends");
  if (refusal.ok() && peer->lost) refusal = absl::UnavailableError(absl::StrCat(to, " is lost"));
  if (!refusal.ok()) return Fail(to, std::move(outgoing), refusal);
  peer->queues[static_cast<int>(outgoing.message.channel)].push_back(std::move(outgoing));
}

bool PeerLink::IsLost(const NodeId& peer) const {
  const std::lock_guard lock(mutex_);
  const auto it = directory_.find(peer);
  return it != directory_.end() && it->second.is_peer && it->second.lost;
}

std::vector<std::pair<NodeId, std::string>> PeerLink::Unconnected(Duration at_least) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<NodeId, std::string>> all;
  const Instant before = SteadyNow() - at_least;
  for (const auto& [name, entry] : directory_) {
    const bool is_one = entry.is_peer && !entry.lost && entry.unconnected_since.has_value() &&
                        *entry.unconnected_since <= before;
    if (is_one) all.emplace_back(name, entry.trouble);
  }
  return all;
}

void PeerLink::Lose(const NodeId& peer, const std::string& reason) {
  tasks_->Post([this, peer, reason] { OnPeerLost(peer, reason); });
}

void PeerLink::DropQueued(PeerChannel channel) {
  tasks_->Post([this, channel] {
    for (const auto& [name, peer] : peers_) {
      auto& queue = peer->queues[static_cast<int>(channel)];
      const bool begun = !queue.empty() && queue.front().number != 0;
      while (queue.size() > (begun ? 1 : 0)) {
        Outgoing dropped = std::move(queue.back());
        queue.pop_back();
        Fail(name, std::move(dropped), absl::AbortedError("dropped before it was sent"));
      }
    }
  });
}

std::vector<PeerCounters> PeerLink::counters() const {
  const std::lock_guard lock(mutex_);
  std::vector<PeerCounters> all;
  for (const auto& [name, entry] : directory_) all.push_back(entry.counters);
  return all;
}

int64_t PeerLink::frames_refused() const {
  const std::lock_guard lock(mutex_);
  return frames_refused_;
}

}  // namespace atl
