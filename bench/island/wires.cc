#include "bench/island/wires.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/event_loop.h"
#include "kernels/cpu/cpu.h"

namespace atl::bench {
namespace {

constexpr size_t kTransfersKept = 1024;

}  // namespace

ShapedTransport::ShapedTransport(Ways way, int64_t max_bytes)
    : way_(std::move(way)), inner_(max_bytes), backend_(NewCpuBackend(1)) {
  auto stream = backend_->NewStream();
  ATOLL_CHECK(stream.ok());
  stream_ = *std::move(stream);
  thread_ = std::thread([this] { Deliver(); });
}

ShapedTransport::~ShapedTransport() {
  for (const auto& [worker, turns] : turns_) turns->Stop();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ShapedTransport::TakeTurns(const IslandPlan& plan) {
  for (const IslandMember& member : plan.members) {
    auto tell = [this, from = member.worker](const NodeId& to, const worker::LineCall& call) {
      turns_.at(to)->OnCall(from, call);
    };
    turns_[member.worker] = std::make_unique<worker::LineTurns>(member.worker, std::move(tell));
    turns_[member.worker]->SetPlan(plan);
  }
}

absl::Status ShapedTransport::Send(const std::string& from, const std::string& to,
                                   const worker::MessageTag& tag, Backend& backend, Stream& stream,
                                   const Tensor& payload) {
  const Way way = way_(from, to);
  if (way.name.empty()) return inner_.Send(from, to, tag, backend, stream, payload);
  const auto size = static_cast<size_t>(payload.size() * SizeOf(payload.dtype));
  auto message = std::make_shared<OnItsWay>(OnItsWay{from, to, tag, 0, std::vector<char>(size),
                                                     payload.dtype, payload.rows, payload.cols});
  backend.CopyToHost(stream, message->bytes.data(), payload);
  ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
  const auto turns = turns_.find(WorkerOfDevice(from));
  if (turns == turns_.end() || !turns->second->Has(tag)) {
    Put(way, std::move(*message), nullptr);
    return absl::OkStatus();
  }
  return turns->second->Send(
      tag, [this, way, message](Left left) { Put(way, std::move(*message), std::move(left)); });
}

void ShapedTransport::Put(const Way& way, OnItsWay message, Left left) {
  std::vector<Left> gone;
  {
    const std::lock_guard lock(mutex_);
    const Instant now = SteadyNow();
    Depart(now, &gone);
    LineState& line = lines_[way.name];
    if (line.queues.empty()) line.at = now;
    line.line = way.line;
    const auto bytes = static_cast<double>(message.bytes.size());
    const std::pair connection(WorkerOfDevice(message.from), WorkerOfDevice(message.to));
    line.queues[connection].push_back({std::move(message), bytes, now, std::move(left)});
  }
  changed_.notify_all();
  for (const Left& each : gone) each();
}

// When the next last byte leaves, if nothing comes in between.
std::optional<Instant> ShapedTransport::NextDeparture(const LineState& line) {
  if (line.queues.empty()) return std::nullopt;
  double least = INFINITY;
  for (const auto& [connection, queue] : line.queues) {
    least = std::min(least, queue.front().left_bytes);
  }
  const double seconds = least * static_cast<double>(line.queues.size()) / line.line.bytes_per_s;
  // Rounded up: by then it has left, however fast the line is.
  return line.at + FromSeconds(std::max(seconds, 0.0)) + Duration(1);
}

// Plays all lines up to now. `gone`: to be called without the lock.
void ShapedTransport::Depart(Instant now, std::vector<Left>* gone) {
  for (auto& [name, line] : lines_) {
    while (!line.queues.empty()) {
      const Instant until = std::min(now, *NextDeparture(line));
      const double each = Seconds(until - line.at) * line.line.bytes_per_s /
                          static_cast<double>(line.queues.size());
      line.at = until;
      bool left = false;
      for (auto queue = line.queues.begin(); queue != line.queues.end();) {
        OnLine& head = queue->second.front();
        head.left_bytes -= each;
        if (head.left_bytes > 1e-6) {
          ++queue;
          continue;
        }
        left = true;
        const Instant arrival = until + FromSeconds(line.line.latency_s);
        head.message.seconds = Seconds(arrival - head.begun);
        if (head.left) gone->push_back(std::move(head.left));
        on_its_way_.emplace(arrival, std::move(head.message));
        queue->second.pop_front();
        if (queue->second.empty()) {
          queue = line.queues.erase(queue);
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
    std::vector<Left> gone;
    Depart(SteadyNow(), &gone);
    if (!gone.empty()) {
      lock.unlock();
      for (const Left& each : gone) each();
      lock.lock();
      continue;
    }
    std::optional<Instant> next;
    for (const auto& [name, line] : lines_) {
      const auto departure = NextDeparture(line);
      if (departure && (!next || *departure < *next)) next = departure;
    }
    const auto first = on_its_way_.begin();
    if (first != on_its_way_.end() && (!next || first->first < *next)) next = first->first;
    if (!next) {
      changed_.wait(lock);
      continue;
    }
    if (SteadyNow() < *next) {
      changed_.wait_until(lock, std::chrono::steady_clock::time_point(next->time_since_epoch()));
      continue;
    }
    if (first == on_its_way_.end() || first->first > *next) continue;  // a departure
    OnItsWay message = std::move(first->second);
    on_its_way_.erase(first);
    if (message.tag.stage != worker::kCommitStage) {
      std::deque<worker::Transfer>& arrived = arrived_[{message.from, message.to}];
      arrived.push_back(
          {message.tag.gradient, static_cast<int64_t>(message.bytes.size()), message.seconds});
      if (arrived.size() > kTransfersKept) arrived.pop_front();
    }
    lock.unlock();
    const Tensor payload(message.bytes.data(), message.dtype, message.rows, message.cols);
    // A failure is an abort: the transport itself notifies the receiver.
    (void)inner_.Send(message.from, message.to, message.tag, *backend_, *stream_, payload);
    lock.lock();
  }
}

}  // namespace atl::bench
