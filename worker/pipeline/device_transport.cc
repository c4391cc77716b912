#include "worker/pipeline/device_transport.h"

#include <algorithm>

#include "common/protocol/tensor_groups.h"
#include "worker/pipeline/device_transport_impl.h"

namespace atl::worker {
namespace {

constexpr int kBlocksByHost = 4;
constexpr int64_t kAlignment = 256;

}  // namespace

// ------------------------------------------------------------------------------------ setup ----

DeviceTransport::DeviceTransport(LocalTransport* host, Duration timeout, MessageLog* log)
    : host_(host), timeout_(timeout), log_(log), block_limit_(timeout) {
  host_->OnAbort([this](const std::string& reason) { Stop(reason); });
}

DeviceTransport::~DeviceTransport() {
  host_->OnAbort(nullptr);
  for (const auto& [device, port] : ports_) host_->OnArrival(device, nullptr);
  End("the transport ends");
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (const auto& [device, port] : ports_) {
    port->out.join();
    port->in.join();
  }
}

void DeviceTransport::Add(const std::string& device, std::unique_ptr<Backend> sending,
                          std::unique_ptr<Backend> receiving) {
  auto port = std::make_unique<Port>();
  port->device = device;
  port->sending = std::move(sending);
  port->receiving = std::move(receiving);
  port->pinned = std::make_shared<PinnedPool>(port->sending);
  Port* const own = port.get();
  ports_[device] = std::move(port);
  own->out = std::thread([this, own] { SendForEver(*own); });
  own->in = std::thread([this, own] { ReceiveForEver(*own); });
  host_->OnArrival(device, [this, own](const std::string& from, const MessageTag& tag) {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    InJob job;
    job.from = from;
    job.tag = tag;
    own->in_jobs.push_back(std::move(job));
    changed_.notify_all();
  });
}

DeviceTransport::Port* DeviceTransport::Find(const std::string& device) const {
  const auto found = ports_.find(device);
  return found == ports_.end() ? nullptr : found->second.get();
}

DeviceTransport::Route DeviceTransport::RouteBetween(const IslandPlan& plan,
                                                     const StageLink& stage_link,
                                                     std::string* transport) const {
  const Port *from = Find(stage_link.from), *to = Find(stage_link.to);
  const TransportChoice found = SelectTransport(plan, stage_link.from, stage_link.to);
  if (from != nullptr && to != nullptr && to->receiving->CanAccessPeer(*from->sending)) {
    *transport = "peer copy: GPUs of one worker";
    return Route::kPeer;
  }
  if (found.kind == TransportKind::kNccl && (from != nullptr || to != nullptr)) {
    *transport = absl::StrCat("NCCL: ", found.reason);
    return Route::kNccl;
  }
  *transport =
      absl::StrCat("pinned host memory",
                   found.kind == TransportKind::kLink ? " and ZeroMQ: " : ": ", found.reason);
  return Route::kHost;
}

absl::Status DeviceTransport::Prepare(const IslandPlan& plan, int64_t message_bytes) {
  End("another plan");
  struct Counts {
    int out = 0, in_direct = 0, in_host = 0;
  };
  std::map<std::string, Counts> counts;
  std::map<DevicePair, Path> paths;
  for (const StageLink& stage_link : ListStageLinks(plan)) {
    Path& path = paths[{stage_link.from, stage_link.to}];
    path.route = RouteBetween(plan, stage_link, &path.transport);
    int messages = 0;
    for (const PlanReplica& replica : plan.replicas) {
      for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
        const std::vector<std::string>& here = replica.stages[s].devices;
        const std::vector<std::string>& next = replica.stages[s + 1].devices;
        const auto count = [&](const std::vector<std::string>& from,
                               const std::vector<std::string>& to) {
          for (const auto& [sends, receives] : MessagePairs(from.size(), to.size())) {
            if (stage_link == StageLink{from[sends], to[receives]})
              messages += replica.micro_batches;
          }
        };
        count(here, next);
        count(next, here);
      }
    }
    counts[stage_link.from].out += messages;
    (path.route == Route::kHost ? counts[stage_link.to].in_host
                                : counts[stage_link.to].in_direct) += messages;
  }
  for (const auto& [device, port] : ports_) {
    const Counts& count = counts[device];
    ATOLL_RETURN_IF_ERROR(
        Annotate(TakeBlocks(*port, message_bytes, std::min(count.out, kBlocksByHost),
                            count.in_direct + std::min(count.in_host, kBlocksByHost)),
                 absl::StrCat(device, ", messages")));
  }
  const std::lock_guard lock(mutex_);
  paths_ = std::move(paths);
  block_limit_ = StepLimit(plan, timeout_);
  return absl::OkStatus();
}

absl::Status DeviceTransport::TakeBlocks(Port& port, int64_t message_bytes, int out, int in) {
  if (port.out_stream == nullptr) {
    ATOLL_ASSIGN_OR_RETURN(port.out_stream, port.sending->NewStream());
    ATOLL_ASSIGN_OR_RETURN(port.in_stream, port.receiving->NewStream());
  }
  const int64_t each = (message_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const auto take = [&](Backend& backend, int count, Buffer* memory,
                        std::vector<Block>* blocks) -> absl::Status {
    blocks->clear();
    *memory = Buffer();
    ATOLL_ASSIGN_OR_RETURN(*memory, backend.Allocate(each * count));
    for (int b = 0; b < count; ++b) {
      Block& block = blocks->emplace_back();
      block.data = static_cast<char*>(memory->data()) + b * each;
      block.bytes = each;
      ATOLL_ASSIGN_OR_RETURN(block.event, backend.NewEvent());
    }
    return absl::OkStatus();
  };
  ATOLL_RETURN_IF_ERROR(take(*port.sending, out, &port.out_memory, &port.out_blocks));
  ATOLL_RETURN_IF_ERROR(take(*port.receiving, in, &port.in_memory, &port.in_blocks));
  ATOLL_ASSIGN_OR_RETURN(port.staging, port.receiving->AllocateHost(each));
  const std::lock_guard lock(mutex_);
  port.idle_out.clear();
  port.idle_in.clear();
  for (Block& block : port.out_blocks) port.idle_out.push_back(&block);
  for (Block& block : port.in_blocks) port.idle_in.push_back(&block);
  return absl::OkStatus();
}

// Afterwards nothing is under way, and all blocks are idle.
void DeviceTransport::End(const std::string& reason) {
  Abort(reason);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::all_of(ports_.begin(), ports_.end(), [](const auto& entry) {
      return !entry.second->sends && !entry.second->receives;
    });
  });
  for (const auto& [device, port] : ports_) {
    port->out_jobs.clear();
    port->in_jobs.clear();
    port->early.clear();
    port->inbox.clear();
    port->idle_out.clear();
    port->idle_in.clear();
    for (Block& block : port->out_blocks) port->idle_out.push_back(&block);
    for (Block& block : port->in_blocks) port->idle_in.push_back(&block);
  }
  std::vector<std::shared_ptr<Communicator>> pairs;  // die outside the lock
  for (auto& [ends, path] : paths_) {
    pairs.push_back(std::move(path.out));
    pairs.push_back(std::move(path.in));
    path.announced = path.expected = 0;
  }
  lock.unlock();
  { const std::lock_guard stopped(stop_mutex_); }
  pairs.clear();
  // The last messages of the old plan's end are no concern of the next plan's.
  for (const auto& [device, port] : ports_) {
    if (port->out_stream == nullptr) continue;
    (void)port->sending->Synchronize(*port->out_stream);
    (void)port->receiving->Synchronize(*port->in_stream);
  }
}

void DeviceTransport::Reset() {
  End("another plan");
  {
    const std::lock_guard lock(mutex_);
    aborted_ = false;
  }
  host_->Reset();  // last: what arrives from here on is ours
}

void DeviceTransport::Abort(const std::string& reason) {
  Stop(reason);
  host_->Abort(reason);
}

// For the host transport's thread too: it waits for nothing.
void DeviceTransport::Stop(const std::string& reason) {
  const std::lock_guard stopping(stop_mutex_);
  std::vector<std::shared_ptr<Communicator>> pairs;
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_) reason_ = reason;
    aborted_ = true;
    for (const auto& [ends, path] : paths_) {
      if (path.out != nullptr) pairs.push_back(path.out);
      if (path.in != nullptr) pairs.push_back(path.in);
    }
    changed_.notify_all();
  }
  for (const auto& pair : pairs) pair->Abort(reason);
}

std::vector<Transfer> DeviceTransport::TakeTransfers(const std::string& from,
                                                     const std::string& to) {
  {
    const std::lock_guard lock(mutex_);
    const auto path = paths_.find({from, to});
    if (path != paths_.end() && path->second.route != Route::kHost) return {};
  }
  return host_->TakeTransfers(from, to);
}

std::string DeviceTransport::DescribeTransport(const std::string& from,
                                               const std::string& to) const {
  const std::lock_guard lock(mutex_);
  const auto found = paths_.find({from, to});
  return found == paths_.end() ? "" : found->second.transport;
}

bool DeviceTransport::Cuts(const std::string& from, const std::string& to) const {
  const std::lock_guard lock(mutex_);
  const auto found = paths_.find({from, to});
  return found == paths_.end() || found->second.route == Route::kHost;
}

std::vector<PairGroup> DeviceTransport::ListPairGroups(const std::string& device) const {
  const std::lock_guard lock(mutex_);
  std::vector<PairGroup> pairs;
  for (const auto& [ends, path] : paths_) {
    if (path.route != Route::kNccl || (ends.first != device && ends.second != device)) continue;
    pairs.push_back({StageLink{ends.first, ends.second}.Name(), ends.first, ends.second});
  }
  return pairs;
}

void DeviceTransport::UsePair(const std::string& device, const PairGroup& pair,
                              std::unique_ptr<Communicator> communicator) {
  const std::lock_guard lock(mutex_);
  Path& path = paths_.at({pair.from, pair.to});
  (device == pair.from ? path.out : path.in) = std::move(communicator);
}

}  // namespace atl::worker
