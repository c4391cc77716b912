#include "bench/island/shaped_transport.h"

#include <algorithm>
#include <cmath>

#include "common/event_loop.h"

namespace atl::bench {
namespace {

constexpr size_t kTransfersKept = 1024;

}  // namespace

ShapedTransport::ShapedTransport(LinkLookup lookup, int64_t max_bytes)
    : lookup_(std::move(lookup)), inner_(max_bytes) {
  thread_ = std::thread([this] { Deliver(); });
}

ShapedTransport::~ShapedTransport() {
  for (const auto& [worker, scheduler] : schedulers_) scheduler->Stop();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ShapedTransport::UseSendOrder(const IslandPlan& plan) {
  for (const IslandMember& member : plan.members) {
    auto send_call = [this, from = member.worker](const NodeId& to, const SharedLinkCall& call) {
      schedulers_.at(to)->OnCall(from, call);
    };
    schedulers_[member.worker] =
        std::make_unique<worker::SharedLinkScheduler>(member.worker, std::move(send_call));
    schedulers_[member.worker]->SetPlan(plan);
  }
}

absl::Status ShapedTransport::Send(const std::string& from, const std::string& to,
                                   const MessageTag& tag, Backend& backend, Stream& stream,
                                   const Tensor& payload) {
  const SharedLink shared_link = lookup_(from, to);
  if (shared_link.name.empty()) return inner_.Send(from, to, tag, backend, stream, payload);
  const int64_t size = payload.size() * GetElementSize(payload.dtype);
  const auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(size));
  backend.CopyToHost(stream, bytes->data(), payload);
  ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
  // A failure is an abort: the transport itself notifies the receiver.
  auto arrive = [this, from, to, tag, dtype = payload.dtype, bytes] {
    (void)inner_.SendBytes(from, to, tag, dtype, *bytes, bytes);
  };
  auto message = std::make_shared<InFlightMessage>(
      InFlightMessage{from, to, size, std::move(arrive), tag.gradient});
  const auto scheduler = schedulers_.find(WorkerFromDevice(from));
  if (scheduler == schedulers_.end() || !scheduler->second->Has(tag)) {
    Put(shared_link, std::move(*message), nullptr);
    return absl::OkStatus();
  }
  return scheduler->second->Send(tag, [this, shared_link, message](Left left) {
    Put(shared_link, std::move(*message), std::move(left));
  });
}

absl::Status ShapedTransport::SendVotes(const std::string& from, const std::string& to,
                                        const VoteTag& tag, const std::vector<double>& votes) {
  const SharedLink shared_link = lookup_(from, to);
  if (shared_link.name.empty()) return inner_.SendVotes(from, to, tag, votes);
  const auto size = static_cast<int64_t>(votes.size() * sizeof(double));
  auto arrive = [this, from, to, tag, votes] { (void)inner_.SendVotes(from, to, tag, votes); };
  Put(shared_link, {from, to, size, std::move(arrive), std::nullopt}, nullptr);
  return absl::OkStatus();
}

void ShapedTransport::Put(const SharedLink& shared_link, InFlightMessage message, Left left) {
  std::vector<Left> departed;
  {
    const std::lock_guard lock(mutex_);
    const Instant now = SteadyNow();
    Depart(now, &departed);
    LinkState& link = links_[shared_link.name];
    if (link.queues.empty()) link.at = now;
    link.shape = shared_link.shape;
    const auto bytes = static_cast<double>(message.bytes);
    const std::pair connection(WorkerFromDevice(message.from), WorkerFromDevice(message.to));
    link.queues[connection].push_back({std::move(message), bytes, now, std::move(left)});
  }
  changed_.notify_all();
  for (const Left& each : departed) each();
}

// When the next last byte leaves, if nothing comes in between.
std::optional<Instant> ShapedTransport::NextDeparture(const LinkState& link) {
  if (link.queues.empty()) return std::nullopt;
  double least = INFINITY;
  for (const auto& [connection, queue] : link.queues) {
    least = std::min(least, queue.front().left_bytes);
  }
  const double seconds = least * static_cast<double>(link.queues.size()) / link.shape.bytes_per_s;
  // Rounded up: by then it has left, however fast the link is.
  return link.at + FromSeconds(std::max(seconds, 0.0)) + Duration(1);
}

// Plays all links up to now. `departed`: to be called without the lock.
void ShapedTransport::Depart(Instant now, std::vector<Left>* departed) {
  for (auto& [name, link] : links_) {
    while (!link.queues.empty()) {
      const Instant until = std::min(now, *NextDeparture(link));
      const double each = Seconds(until - link.at) * link.shape.bytes_per_s /
                          static_cast<double>(link.queues.size());
      link.at = until;
      bool left = false;
      for (auto queue = link.queues.begin(); queue != link.queues.end();) {
        QueuedMessage& head = queue->second.front();
        head.left_bytes -= each;
        if (head.left_bytes > 1e-6) {
          ++queue;
          continue;
        }
        left = true;
        const Instant arrival = until + FromSeconds(link.shape.latency_s);
        head.message.seconds = Seconds(arrival - head.begun);
        if (head.left) departed->push_back(std::move(head.left));
        in_flight_.emplace(arrival, std::move(head.message));
        queue->second.pop_front();
        if (queue->second.empty()) {
          queue = link.queues.erase(queue);
        } else {
          queue->second.front().begun = until;
          ++queue;
        }
      }
      if (!left && until == now) break;
    }
  }
}

std::vector<worker::Transfer> ShapedTransport::TakeTransfers(const std::string& from,
                                                             const std::string& to) {
  const std::lock_guard lock(mutex_);
  const auto found = arrived_.find({from, to});
  if (found == arrived_.end()) return {};
  std::vector<worker::Transfer> taken(found->second.begin(), found->second.end());
  arrived_.erase(found);
  return taken;
}

void ShapedTransport::Deliver() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::vector<Left> departed;
    Depart(SteadyNow(), &departed);
    if (!departed.empty()) {
      lock.unlock();
      for (const Left& each : departed) each();
      lock.lock();
      continue;
    }
    std::optional<Instant> next;
    for (const auto& [name, link] : links_) {
      const auto departure = NextDeparture(link);
      if (departure && (!next || *departure < *next)) next = departure;
    }
    const auto first = in_flight_.begin();
    if (first != in_flight_.end() && (!next || first->first < *next)) next = first->first;
    if (!next) {
      changed_.wait(lock);
      continue;
    }
    if (SteadyNow() < *next) {
      changed_.wait_until(lock, std::chrono::steady_clock::time_point(next->time_since_epoch()));
      continue;
    }
    if (first == in_flight_.end() || first->first > *next) continue;  // a departure
    InFlightMessage message = std::move(first->second);
    in_flight_.erase(first);
    if (message.gradient) {
      std::deque<worker::Transfer>& arrived = arrived_[{message.from, message.to}];
      arrived.push_back({*message.gradient, message.bytes, message.seconds});
      if (arrived.size() > kTransfersKept) arrived.pop_front();
    }
    lock.unlock();
    message.arrive();
    lock.lock();
  }
}

}  // namespace atl::bench
