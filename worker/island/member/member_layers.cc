// GroupMember: layers' state that is sent, fetched, read and written.

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "worker/island/member/member.h"

namespace atl::worker {
namespace {

absl::Status CheckElements(const LayerShard& shard, Range wanted, int64_t elements) {
  if (wanted.end <= elements) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("elements ", wanted.begin, " to ", wanted.end,
                                                 " of ", ToString(shard), ", which has ",
                                                 elements));
}

}  // namespace

absl::Status GroupMember::FetchFrom(const NodeId& from, const LayerShard& shard, Range elements,
                                    v1::LayerCall of, const ShardParts& out) {
  v1::GroupFrame frame;
  v1::LayerCall& what = *frame.mutable_get_layer();
  what = std::move(of);
  ToWire(shard, what.mutable_shard());
  what.set_parts(WantedOf(out));
  what.set_begin(elements.begin);
  what.set_end(elements.end);
  // The destination must be registered before the first chunk comes.
  const CallId call = calls_.Begin(from, Describe(frame));
  inbox_.Expect({from, call}, PartsOf(out), ToString(FromWire(frame.get_layer().shard())));
  frame.set_call(call);
  frame.set_epoch(epoch_);
  if (const absl::Status sent = SendFrame(from, frame); !sent.ok()) calls_.Fail(call, sent);
  const auto reply = Await(call, options_.call_timeout);
  absl::Status status = reply.status();
  if (status.ok() && what.of_save() != 0 && !reply->copies_taken()) {
    status = absl::NotFoundError(
        absl::StrCat(from, " has no copy of ", ToString(shard), " from save ", what.of_save()));
  }
  if (!status.ok()) inbox_.Drop({from, call});
  ATOLL_RETURN_IF_ERROR(status);
  return AwaitChunks({from, call}, out);
}

absl::StatusOr<bool> GroupMember::TakeSnapshot(bool moments) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  const std::lock_guard work(engine_mutex_);
  return engine->TakeSnapshot(moments);
}

absl::StatusOr<bool> GroupMember::PrepareAddition() {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  const std::lock_guard work(engine_mutex_);
  return engine->PrepareAddition();
}

absl::Status GroupMember::SetAddition(const LayerShard& shard, std::span<const float> values) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  return engine->SetAddition(shard, values);
}

absl::Status GroupMember::Add() {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  log_.Change([](ReplayLog& log) { log.Changed(); });
  const std::lock_guard work(engine_mutex_);
  return engine->Add();
}

absl::Status GroupMember::GetSnapshot(const NodeId& from, const LayerShard& shard, Range elements,
                                      const ShardParts& out) {
  if (from != name()) {
    v1::LayerCall of;
    of.set_of_snapshot(true);
    return FetchFrom(from, shard, elements, std::move(of), out);
  }
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  for (const auto& [part, span] : PartsOf(out)) {
    ATOLL_RETURN_IF_ERROR(engine->GetSnapshot(shard, static_cast<LayerPart>(part), elements, span));
  }
  return absl::OkStatus();
}

absl::Status GroupMember::GetShard(const NodeId& from, const LayerShard& shard, Range elements,
                                   const ShardParts& out) {
  if (from != name()) return FetchFrom(from, shard, elements, {}, out);
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  const std::lock_guard work(engine_mutex_);
  for (const auto& [part, span] : PartsOf(out)) {
    ATOLL_RETURN_IF_ERROR(engine->GetLayer(shard, static_cast<LayerPart>(part), elements, span));
  }
  return absl::OkStatus();
}

absl::Status GroupMember::SetShard(const LayerShard& shard, const ShardParts& values,
                                   bool borrowed) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  if (!borrowed) log_.Change([](ReplayLog& log) { log.Changed(); });
  const std::lock_guard work(engine_mutex_);
  for (const auto& [part, span] : PartsOf(values)) {
    ATOLL_RETURN_IF_ERROR(engine->SetLayer(shard, static_cast<LayerPart>(part), span));
  }
  return absl::OkStatus();
}

absl::Status GroupMember::SetState(const LayerShard& shard, int64_t optimizer_step,
                                   const ShardParts& values) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  std::map<LayerPart, std::span<const float>> parts;
  for (const auto& [part, span] : PartsOf(values)) parts[static_cast<LayerPart>(part)] = span;
  const std::lock_guard work(engine_mutex_);
  return engine->SetState(shard, optimizer_step, parts);
}

absl::Status GroupMember::SetOptimizerSteps(int64_t steps) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  if (steps == 0) log_.Change([](ReplayLog& log) { log.Changed(); });
  const std::lock_guard work(engine_mutex_);
  return engine->SetOptimizerSteps(steps);
}

void GroupMember::AnswerTransfer(const OutgoingTransfer& outgoing) {
  v1::GroupReply reply;
  if (outgoing.what.of_save() != 0) {
    // Not an error: those that are interrupt what goes on at who leads.
    const absl::StatusOr<bool> sent = SendSaved(outgoing);
    reply.set_copies_taken(sent.ok() && *sent);
  } else {
    ToWire(SendTransfer(outgoing), &reply);
  }
  Reply(outgoing.to, outgoing.call, std::move(reply));
}

absl::Status GroupMember::SendSnapshot(const OutgoingTransfer& outgoing) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  const LayerShard shard = FromWire(outgoing.what.shard());
  // Checks that it is here before memory is taken.
  ATOLL_ASSIGN_OR_RETURN(const int64_t all, engine->SnapshotElements(shard));
  const Range elements{outgoing.what.begin(), outgoing.what.end()};
  ATOLL_RETURN_IF_ERROR(CheckElements(shard, elements, all));
  const auto parts = std::make_shared<const OwnedParts>(elements.size(), outgoing.what.parts());
  ATOLL_RETURN_IF_ERROR(GetSnapshot(name(), shard, elements, parts->parts()));
  return SendParts(outgoing.to, outgoing.call, parts);
}

absl::Status GroupMember::SendTransfer(const OutgoingTransfer& outgoing) {
  if ((outgoing.what.parts() & kOuterParts) != 0) return SendOuter(outgoing);
  if (outgoing.what.of_snapshot()) return SendSnapshot(outgoing);
  const LayerShard shard = FromWire(outgoing.what.shard());
  // Checks that it is here before memory is taken.
  const std::vector<HeldLayer> held = Held();
  const auto found = std::find_if(held.begin(), held.end(), [&](const HeldLayer& layer) {
    return layer.shard == shard && layer.written && !layer.table_only;
  });
  if (found == held.end())
    return absl::NotFoundError(absl::StrCat(ToString(shard), " is not here"));
  const Range elements{outgoing.what.begin(), outgoing.what.end()};
  ATOLL_RETURN_IF_ERROR(CheckElements(shard, elements, found->elements));
  const auto parts = std::make_shared<const OwnedParts>(elements.size(), outgoing.what.parts());
  ATOLL_RETURN_IF_ERROR(GetShard(name(), shard, elements, parts->parts()));
  return SendParts(outgoing.to, outgoing.call, parts);
}

}  // namespace atl::worker
