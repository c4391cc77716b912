#include "worker/island/member/peer_transport.h"

#include <algorithm>

#include "common/check.h"
#include "common/event_loop.h"
#include "common/protocol/island_plan.h"
#include "common/protocol/tensor_groups.h"
#include "worker/pipeline/role.h"

namespace atl::worker {

namespace {
constexpr size_t kTransfersKept = 256;

DType TypeFromHeader(const TensorHeader& header) {
  return header.element_bytes == 2   ? DType::kBfloat16
         : header.element_bytes == 4 ? DType::kFloat32
                                     : DType::kFloat64;
}

// Null where there is no such one.
template <typename Items>
auto At(const Items& items, int64_t index) -> const typename Items::value_type* {
  if (index < 0 || index >= static_cast<int64_t>(items.size())) return nullptr;
  return &items[static_cast<size_t>(index)];
}

}  // namespace

void PeerTransport::BeginEpoch(int64_t epoch) {
  const std::lock_guard lock(mutex_);
  next_epoch_ = epoch;
}

void PeerTransport::Reset() {
  const std::lock_guard lock(mutex_);
  epoch_ = next_epoch_;
  LocalTransport::Reset();
}

void PeerTransport::SetPlan(const IslandPlan& plan) {
  {
    const std::lock_guard lock(mutex_);
    replicas_ = plan.replicas;
    devices_ = ListDevices(plan);
  }
  scheduler_.SetPlan(plan);
}

bool PeerTransport::PlannedLocked(const TensorHeader& message) const {
  return std::visit([&](const auto& tag) { return PlannedLocked(message, tag); }, message.tag);
}

bool PeerTransport::PlannedLocked(const TensorHeader& message, const VoteTag& tag) const {
  const std::string* const sender = At(devices_, tag.sender);
  return message.element_bytes == sizeof(double) && sender != nullptr && *sender == message.from &&
         std::find(devices_.begin(), devices_.end(), message.to) != devices_.end();
}

bool PeerTransport::PlannedLocked(const TensorHeader& message, const MessageTag& tag) const {
  const PlanReplica* const replica = At(replicas_, tag.replica);
  if (replica == nullptr || tag.micro_batch < 0 || tag.micro_batch >= replica->micro_batches) {
    return false;
  }
  const PlanStage* const to = At(replica->stages, tag.stage);
  const PlanStage* const from = At(replica->stages, int64_t{tag.stage} + (tag.gradient ? 1 : -1));
  if (to == nullptr || from == nullptr) return false;
  const std::string* const receiver = At(to->devices, tag.rank);
  if (receiver == nullptr || *receiver != message.to || from->devices.empty()) return false;
  const size_t sender = SendingRank(static_cast<size_t>(tag.rank), from->devices.size());
  return from->devices[sender] == message.from;
}

absl::Status PeerTransport::Admit(const NodeId& from, absl::string_view header,
                                  int64_t payload_bytes) {
  const auto message = ParseTensorHeader(header);
  if (!message.ok()) return message.status();
  if (WorkerFromDevice(message->from) != from || WorkerFromDevice(message->to) != worker_) {
    return absl::InvalidArgumentError(
        absl::StrCat(message->from, " > ", message->to, " is not a stage link from ", from));
  }
  if (payload_bytes % message->element_bytes != 0) {
    return absl::InvalidArgumentError("not a whole number of elements");
  }
  const std::lock_guard lock(mutex_);
  if (message->epoch != epoch_) return absl::AbortedError("of another attempt at the plan");
  if (PlannedLocked(*message)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the plan has no such message from ", message->from, " to ", message->to));
}

void PeerTransport::OnMessage(PeerDelivery delivery) {
  const TensorHeader message = *ParseTensorHeader(delivery.header);  // admitted
  auto owner = std::make_shared<PeerDelivery>(std::move(delivery));
  const std::span<const std::byte> bytes = owner->payload.bytes();
  const std::lock_guard lock(mutex_);   // until it is there: no Reset comes between
  if (message.epoch != epoch_) return;  // it has changed since the message was admitted
  Deliver(message.from, message.to, message.tag, TypeFromHeader(message), bytes, std::move(owner));
}

absl::Status PeerTransport::SendVotes(const std::string& from, const std::string& to,
                                      const VoteTag& tag, const std::vector<double>& votes) {
  const NodeId worker = WorkerFromDevice(to);
  if (worker == worker_) return LocalTransport::SendVotes(from, to, tag, votes);
  const auto copy = std::make_shared<const std::vector<double>>(votes);
  return link_->Send(worker, MakePeerMessage({tag, from, to, sizeof(double)},
                                             std::as_bytes(std::span(*copy)), copy));
}

PeerMessage PeerTransport::MakePeerMessage(TensorHeader message, std::span<const std::byte> bytes,
                                           std::shared_ptr<const void> owner) {
  PeerMessage sent;
  sent.channel = PeerChannel::kTensor;
  sent.payload = bytes;
  sent.owner = std::move(owner);
  const std::lock_guard lock(mutex_);
  message.epoch = epoch_;
  sent.header = Serialize(message);
  return sent;
}

absl::Status PeerTransport::SendBytes(const std::string& from, const std::string& to,
                                      const MessageTag& tag, DType dtype,
                                      std::span<const std::byte> bytes,
                                      std::shared_ptr<const void> owner, bool announces) {
  const NodeId worker = WorkerFromDevice(to);
  if (worker == worker_)
    return LocalTransport::SendBytes(from, to, tag, dtype, bytes, std::move(owner));
  const auto size = static_cast<int64_t>(bytes.size());
  PeerMessage message = MakePeerMessage(
      {tag, from, to, static_cast<int32_t>(GetElementSize(dtype))}, bytes, std::move(owner));
  if (announces) return link_->Send(worker, std::move(message));
  message.arrived = [counted = counted_, ends = DevicePair{from, to}, size,
                     gradient = tag.gradient](absl::Status status, PeerTiming timing) {
    if (!status.ok()) return;
    const std::lock_guard lock(counted->mutex);
    std::deque<Transfer>& arrived = counted->arrived[ends];
    arrived.push_back({gradient, size, Seconds(timing.travelled)});
    if (arrived.size() > kTransfersKept) arrived.pop_front();
  };
  SentMessage sent{from, to, tag, size, SteadyNow(), {}, {}};
  if (!scheduler_.Has(tag)) {
    Log(std::move(sent), &message);
    return link_->Send(worker, std::move(message));
  }
  auto waiting = std::make_shared<PeerMessage>(std::move(message));
  return scheduler_.Send(tag, [this, worker, waiting, sent](std::function<void()> left) {
    waiting->left = [left](const absl::Status&) { left(); };
    Log(sent, waiting.get());
    const absl::Status status = link_->Send(worker, std::move(*waiting));
    if (status.ok()) return;
    LocalTransport::Abort(std::string(status.message()));  // its sender has returned already
    left();
  });
}

// Says in the log, where its step is recorded, when the message left and arrived. Called just
// before the link gets it.
void PeerTransport::Log(SentMessage sent, PeerMessage* message) {
  if (!log_->records(sent.tag.step)) return;
  const Instant queued = SteadyNow();
  const int64_t step = sent.tag.step;
  message->arrived = [log = log_, log_index = log_->OnSent(std::move(sent)), step, queued,
                      count = std::move(message->arrived)](absl::Status status, PeerTiming timing) {
    const Instant start = queued + timing.queued;
    if (status.ok()) log->OnArrived(step, log_index, start, start + timing.travelled);
    count(std::move(status), timing);
  };
}

void PeerTransport::Abort(const std::string& reason) {
  LocalTransport::Abort(reason);
  scheduler_.Forget();
  link_->DropQueued(PeerChannel::kTensor);
  link_->DropQueued(PeerChannel::kCollective);  // members say afterwards that they have failed
}

std::vector<Transfer> PeerTransport::TakeTransfers(const std::string& from, const std::string& to) {
  const std::lock_guard lock(counted_->mutex);
  const auto it = counted_->arrived.find({from, to});
  if (it == counted_->arrived.end()) return {};
  std::vector<Transfer> taken(it->second.begin(), it->second.end());
  it->second.clear();
  return taken;
}

}  // namespace atl::worker
