// What comes in from other members: checked before anything is made of it.

#include <algorithm>
#include <bit>
#include <cmath>

#include "worker/island/messages/outer_wire.h"
#include "worker/island/messages/wire.h"
#include "worker/island/parts.h"

namespace atl::worker {
namespace {

constexpr int kRanksMax = 1024;
constexpr int kRangesMax = 4096;
constexpr int kDevicesMax = 64;  // of one worker
constexpr int kSumsMax = 65536;
constexpr int64_t kElementsMax = int64_t{1} << 40;
constexpr int64_t kPositionMax = int64_t{1} << 56;
constexpr int64_t kCountMax = int64_t{1} << 56;  // of anything: counting on never overflows

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is out of range"));
}

bool IsCount(int64_t value) { return value >= 0 && value <= kCountMax; }

absl::Status Check(const v1::ShardName& shard) {
  if (shard.layer() < 0) return Bad("layer");
  if (shard.tensor_split_ratios_size() < 1 || shard.tensor_split_ratios_size() > kRanksMax) {
    return Bad("number of ranks");
  }
  for (int32_t share : shard.tensor_split_ratios()) {
    if (share < 1) return Bad("tensor share");
  }
  if (shard.rank() < 0 || shard.rank() >= shard.tensor_split_ratios_size()) return Bad("rank");
  return absl::OkStatus();
}

using Spans = google::protobuf::RepeatedPtrField<v1::PositionSpan>;
absl::Status Check(const Spans& ranges) {
  if (ranges.size() > kRangesMax) return Bad("number of ranges");
  for (const v1::PositionSpan& range : ranges) {
    if (range.begin() < 0 || range.end() < range.begin() || range.end() > kPositionMax) {
      return Bad("position range");
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const v1::StepCall& step) {
  if (!IsCount(step.number())) return Bad("step number");
  if (step.ranges().empty()) return Bad("number of ranges");
  ATOLL_RETURN_IF_ERROR(Check(step.ranges()));
  const bool any = std::any_of(step.ranges().begin(), step.ranges().end(),
                               [](const auto& range) { return range.begin() < range.end(); });
  return any ? absl::OkStatus() : Bad("sequences of a step");
}

absl::Status Check(const v1::WorkDone& work) {
  if (!IsCount(work.steps()) || !IsCount(work.tokens()) || !IsCount(work.masked_tokens()) ||
      work.masked_tokens() > work.tokens()) {
    return Bad("work");
  }
  return Check(work.consumed());
}

absl::Status Check(const v1::ContributionName& name) {
  if (name.island() < 0 || name.generation() < 0 || name.incarnation() < 0 ||
      name.base_version() < kNoVersion || name.base_version() > kCountMax) {
    return Bad("contribution");
  }
  return absl::OkStatus();
}

absl::Status Check(const v1::Handover& handover) {
  const v1::Leadership& known = handover.leadership();
  for (const int64_t count : {int64_t{known.island()}, known.generation(), known.tokens_at_base(),
                              known.carried_steps(), known.lease_request(), known.inner_step(),
                              known.tokens(), known.pushed_bytes(), known.pulled_bytes()}) {
    if (!IsCount(count)) return Bad("a leader's count");
  }
  for (const int64_t or_none :
       {known.base_version(), handover.known_steps(), handover.outer().base()}) {
    if (or_none != -1 && !IsCount(or_none)) return Bad("a leader's count");
  }
  ATOLL_RETURN_IF_ERROR(Check(known.local()));
  ATOLL_RETURN_IF_ERROR(Check(known.in_flight()));
  ATOLL_RETURN_IF_ERROR(Check(handover.outer().captured()));
  ATOLL_RETURN_IF_ERROR(Check(known.in_flight_work()));
  ATOLL_RETURN_IF_ERROR(Check(known.last_pushed()));
  ATOLL_RETURN_IF_ERROR(Check(known.stepping()));
  return Check(known.leased());
}

absl::Status CheckElements(int64_t begin, int64_t end) {
  return begin < 0 || end <= begin || end > kElementsMax ? Bad("elements") : absl::OkStatus();
}

absl::Status Check(const v1::SavedShard& unit) {
  ATOLL_RETURN_IF_ERROR(Check(unit.shard()));
  return CheckElements(unit.begin(), unit.end());
}

absl::Status CheckTier(int32_t tier) {
  return tier >= 0 && tier < kTiers ? absl::OkStatus() : Bad("tier");
}

absl::Status Check(const v1::SaveCall& save) {
  if (!IsCount(save.save()) || save.save() == 0 || !IsCount(save.keep())) return Bad("save");
  if (!IsCount(save.optimizer_step())) return Bad("optimizer step");
  for (const v1::SavedShard& unit : save.own()) ATOLL_RETURN_IF_ERROR(Check(unit));
  for (const v1::SaveCall::Fetch& fetch : save.fetch()) ATOLL_RETURN_IF_ERROR(Check(fetch.unit()));
  return CheckTier(save.tier());
}

absl::Status Check(const v1::HeldSave& save) {
  if (!IsCount(save.save()) || save.save() == 0) return Bad("save");
  if (!IsCount(save.optimizer_step())) return Bad("optimizer step");
  for (const v1::HeldSave::Unit& unit : save.units()) {
    ATOLL_RETURN_IF_ERROR(Check(unit.unit()));
    if (unit.elements() < unit.unit().end() || unit.elements() > kElementsMax) {
      return Bad("elements");
    }
    ATOLL_RETURN_IF_ERROR(CheckTier(unit.tier()));
  }
  return absl::OkStatus();
}

absl::Status Check(const v1::FetchCall& fetch) {
  if (!IsCount(fetch.optimizer_step())) return Bad("optimizer step");
  if (!IsCount(fetch.save())) return Bad("save");
  for (const v1::FetchCall::Item& item : fetch.items()) {
    ATOLL_RETURN_IF_ERROR(Check(item.shard()));
    if (item.sources_size() < 1 || item.sources_size() > kRanksMax) return Bad("sources");
    for (const v1::FetchCall::Source& source : item.sources()) {
      ATOLL_RETURN_IF_ERROR(Check(source.shard()));
      if (source.parts() < 1 || source.parts() > kAllParts) return Bad("a source's parts");
      ATOLL_RETURN_IF_ERROR(CheckElements(source.begin(), source.end()));
      if (source.shard().layer() != item.shard().layer()) return Bad("a source's layer");
      if (!IsCount(source.save())) return Bad("save");
    }
  }
  return absl::OkStatus();
}

// Some elements of a device's state, or of what an owner keeps.
absl::Status Check(const v1::LayerCall& call) {
  const bool state = call.parts() >= 1 && call.parts() <= kAllParts;
  const bool outer =
      (call.parts() & ~kOuterParts) == 0 && std::popcount(static_cast<uint32_t>(call.parts())) == 1;
  if (!state && !outer) return Bad("parts");
  if (call.of_snapshot() && !state) return Bad("parts of a snapshot");
  const bool saved = state || call.parts() == 1 << GetOuterPart(OuterKind::kResidual);
  if (!IsCount(call.of_save()) || (call.of_save() != 0 && !saved)) return Bad("save");
  ATOLL_RETURN_IF_ERROR(Check(call.shard()));
  return CheckElements(call.begin(), call.end());
}

absl::Status Check(const v1::StepSums& step) {
  if (!IsCount(step.plan()) || !IsCount(step.number())) return Bad("step number");
  return step.sums_size() > kSumsMax ? Bad("number of sums") : absl::OkStatus();
}

absl::Status Check(const v1::GroupReply& reply) {
  if (reply.code() < 0 || reply.code() > 16) return Bad("status code");
  if (!IsCount(reply.last_number())) return Bad("step number");
  if (reply.stage_links_size() > kRangesMax) return Bad("number of stage links");
  if (reply.memory_size() > kDevicesMax) return Bad("number of devices");
  for (const v1::DeviceMemory& memory : reply.memory()) {
    if (memory.predicted_bytes() < 0 || memory.peak_bytes() < 0 || memory.limit_bytes() < 0) {
      return Bad("memory");
    }
  }
  ATOLL_RETURN_IF_ERROR(Check(reply.taken()));
  ATOLL_RETURN_IF_ERROR(Check(reply.waits()));
  if (reply.has_handover()) ATOLL_RETURN_IF_ERROR(Check(reply.handover()));
  ATOLL_RETURN_IF_ERROR(worker::Check(reply.outer()));
  for (const v1::HeldShard& held : reply.held()) {
    ATOLL_RETURN_IF_ERROR(Check(held.shard()));
    if (held.elements() < 0 || held.elements() > kElementsMax) return Bad("elements");
    if (held.owned_begin() < 0 || held.owned_end() < held.owned_begin() ||
        held.owned_end() > held.elements()) {
      return Bad("what is owned");
    }
    if (!IsCount(held.optimizer_step())) return Bad("optimizer step");
  }
  for (const v1::HeldSave& save : reply.saves()) ATOLL_RETURN_IF_ERROR(Check(save));
  return absl::OkStatus();
}

absl::Status CheckBody(const v1::GroupFrame& frame) {
  switch (frame.body_case()) {
    case v1::GroupFrame::kFetch:
      return Check(frame.fetch());
    case v1::GroupFrame::kStep:
      return Check(frame.step());
    case v1::GroupFrame::kEvaluate:
      if (!IsCount(frame.evaluate().number()) || !IsCount(frame.evaluate().first()) ||
          !IsCount(frame.evaluate().count()) || frame.evaluate().count() == 0) {
        return Bad("validation sequences");
      }
      return absl::OkStatus();
    case v1::GroupFrame::kGetLayer:
      return Check(frame.get_layer());
    case v1::GroupFrame::kSetSteps:
      return IsCount(frame.set_steps().optimizer_steps()) ? absl::OkStatus() : Bad("steps");
    case v1::GroupFrame::kRendezvous:
      if (frame.rendezvous().key().size() > 1024 || frame.rendezvous().value().size() > 65536) {
        return Bad("rendezvous entry");
      }
      return absl::OkStatus();
    case v1::GroupFrame::kReply:
      return Check(frame.reply());
    case v1::GroupFrame::kLink:
      return frame.link().what() < 0 || frame.link().what() > 2 ? Bad("what a link call says")
                                                                : absl::OkStatus();
    case v1::GroupFrame::kDrain:
      return Check(frame.drain().take());
    case v1::GroupFrame::kOuter:
      return worker::Check(frame.outer());
    case v1::GroupFrame::kTransfer:
      return worker::Check(frame.transfer());
    case v1::GroupFrame::kTrace:
      return IsCount(frame.trace().number()) ? absl::OkStatus() : Bad("step number");
    case v1::GroupFrame::kSave:
      return Check(frame.save());
    case v1::GroupFrame::kSaveDone:
      return IsCount(frame.save_done().save()) ? absl::OkStatus() : Bad("save");
    case v1::GroupFrame::kGoOnSaving:
      return IsCount(frame.go_on_saving().save()) ? absl::OkStatus() : Bad("save");
    case v1::GroupFrame::kForgetSaves:
      if (!IsCount(frame.forget_saves().save())) return Bad("save");
      return CheckTier(frame.forget_saves().tier());
    case v1::GroupFrame::kClock:
    case v1::GroupFrame::kConfigure:
    case v1::GroupFrame::kDropSurplus:
    case v1::GroupFrame::kSnapshot:
    case v1::GroupFrame::kAddition:
    case v1::GroupFrame::kTakeOver:
    case v1::GroupFrame::kInterrupt:
      return absl::OkStatus();
    case v1::GroupFrame::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the frame has no body that is known");
}

}  // namespace

absl::StatusOr<v1::GroupFrame> ParseGroupFrame(absl::string_view bytes) {
  v1::GroupFrame frame;
  if (!frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("not a GroupFrame");
  }
  if (frame.epoch() < 0) return Bad("epoch");
  ATOLL_RETURN_IF_ERROR(CheckBody(frame));
  return frame;
}

absl::StatusOr<v1::ChunkHeader> ParseChunkHeader(absl::string_view bytes, int64_t payload_bytes) {
  v1::ChunkHeader header;
  if (!header.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("not a ChunkHeader");
  }
  if (header.part() < 0 || header.part() >= kPartsMax) return Bad("part");
  if (header.offset() < 0 || header.offset() > kElementsMax) return Bad("offset");
  if (payload_bytes < 4 || payload_bytes % 4 != 0 || payload_bytes > 4 * kChunkElements) {
    return Bad("length of a chunk");
  }
  return header;
}

absl::StatusOr<TensorMessage> ParseTensorHeader(absl::string_view bytes) {
  v1::TensorHeader header;
  if (!header.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("not a TensorHeader");
  }
  TensorMessage message;
  message.tag.step = header.step();
  message.tag.replica = header.replica();
  message.tag.stage = header.stage();
  message.tag.rank = header.rank();
  message.tag.micro_batch = header.micro_batch();
  message.tag.chunk = header.chunk();
  message.tag.chunks = header.chunks();
  message.tag.gradient = header.gradient();
  message.from = header.from();
  message.to = header.to();
  message.epoch = header.epoch();
  switch (header.element_bytes()) {
    case 2:
      message.dtype = DType::kBfloat16;
      return message;
    case 4:
      message.dtype = DType::kFloat32;
      return message;
    case 8:
      message.dtype = DType::kFloat64;
      return message;
    default:
      return Bad("element size");
  }
}

}  // namespace atl::worker
