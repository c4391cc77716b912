#include "bench/island/wires.h"

#include <algorithm>

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
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status ShapedTransport::Send(const std::string& from, const std::string& to,
                                   const worker::MessageTag& tag, Backend& backend, Stream& stream,
                                   const Tensor& payload) {
  const Way way = way_(from, to);
  if (way.name.empty()) return inner_.Send(from, to, tag, backend, stream, payload);
  const auto size = static_cast<size_t>(payload.size() * SizeOf(payload.dtype));
  const Duration serial = FromSeconds(static_cast<double>(size) / way.line.bytes_per_s);
  const Duration latency = FromSeconds(way.line.latency_s);
  OnItsWay message{
      from,          to,           tag,         Seconds(serial + latency), std::vector<char>(size),
      payload.dtype, payload.rows, payload.cols};
  backend.CopyToHost(stream, message.bytes.data(), payload);
  ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
  const std::lock_guard lock(mutex_);
  Instant& free_at = free_at_[way.name];
  free_at = std::max(free_at, SteadyNow()) + serial;
  on_its_way_.emplace(free_at + latency, std::move(message));
  changed_.notify_all();
  return absl::OkStatus();
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
    if (on_its_way_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto next = on_its_way_.begin();
    if (SteadyNow() < next->first) {
      changed_.wait_until(lock,
                          std::chrono::steady_clock::time_point(next->first.time_since_epoch()));
      continue;
    }
    OnItsWay message = std::move(next->second);
    on_its_way_.erase(next);
    if (message.tag.stage != worker::kCommitStage) {
      std::deque<worker::Transfer>& arrived = arrived_[{message.from, message.to}];
      arrived.push_back(
          {message.tag.gradient, static_cast<int64_t>(message.bytes.size()), message.seconds});
      if (arrived.size() > kTransfersKept) arrived.pop_front();
    }
    lock.unlock();
    const Tensor payload(message.bytes.data(), message.dtype, message.rows, message.cols);
    // A failure is an abort: the receiver hears of it from the transport itself.
    (void)inner_.Send(message.from, message.to, message.tag, *backend_, *stream_, payload);
    lock.lock();
  }
}

}  // namespace atl::bench
