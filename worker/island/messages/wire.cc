#include "worker/island/messages/wire.h"

#include "worker/island/messages/outer_wire.h"
#include "worker/island/parts.h"

namespace atl::worker {
namespace {

using Spans = google::protobuf::RepeatedPtrField<v1::PositionSpan>;

void ToWire(const std::vector<PositionRange>& ranges, Spans* out) {
  for (const PositionRange& range : ranges) {
    v1::PositionSpan* span = out->Add();
    span->set_begin(range.begin);
    span->set_end(range.end);
  }
}

std::vector<PositionRange> FromWire(const Spans& spans) {
  std::vector<PositionRange> ranges;
  for (const v1::PositionSpan& span : spans) ranges.push_back({span.begin(), span.end()});
  return ranges;
}

}  // namespace

std::string SerializeTensorHeader(const TensorMessage& message) {
  v1::TensorHeader header;
  header.set_step(message.tag.step);
  header.set_replica(message.tag.replica);
  header.set_stage(message.tag.stage);
  header.set_rank(message.tag.rank);
  header.set_micro_batch(message.tag.micro_batch);
  header.set_chunk(message.tag.chunk);
  header.set_chunks(message.tag.chunks);
  header.set_gradient(message.tag.gradient);
  header.set_from(message.from);
  header.set_to(message.to);
  header.set_element_bytes(static_cast<int32_t>(GetElementSize(message.dtype)));
  header.set_epoch(message.epoch);
  return header.SerializeAsString();
}

void ToWire(const LayerShard& shard, v1::ShardName* out) {
  out->set_layer(shard.layer);
  out->set_rank(shard.rank);
  for (int32_t share : shard.tensor_split_ratios) out->add_tensor_split_ratios(share);
}

LayerShard FromWire(const v1::ShardName& shard) {
  return {shard.layer(),
          shard.rank(),
          {shard.tensor_split_ratios().begin(), shard.tensor_split_ratios().end()}};
}

void ToWire(const LayerShard& shard, Range elements, v1::SavedShard* out) {
  ToWire(shard, out->mutable_shard());
  out->set_begin(elements.begin);
  out->set_end(elements.end);
}

void ToWire(const StateStamp& stamp, v1::StateStamp* out) {
  out->set_generation(stamp.generation);
  out->set_change(stamp.change);
}

StateStamp FromWire(const v1::StateStamp& stamp) { return {stamp.generation(), stamp.change()}; }

void ToWire(const HeldLayer& held, v1::HeldShard* out) {
  ToWire(held.shard, out->mutable_shard());
  out->set_device(held.device);
  out->set_elements(held.elements);
  out->set_optimizer_step(held.optimizer_step);
  ToWire(held.parameters_since, out->mutable_parameters_since());
  ToWire(held.moments_since, out->mutable_moments_since());
  out->set_written(held.written);
  out->set_surplus(held.surplus);
  out->set_table_only(held.table_only);
  out->set_owned_begin(held.owned.begin);
  out->set_owned_end(held.owned.end);
  out->set_whole(held.whole);
}

HeldLayer FromWire(const v1::HeldShard& held) {
  HeldLayer out;
  out.shard = FromWire(held.shard());
  out.device = held.device();
  out.elements = held.elements();
  out.optimizer_step = held.optimizer_step();
  out.parameters_since = FromWire(held.parameters_since());
  out.moments_since = FromWire(held.moments_since());
  out.written = held.written();
  out.surplus = held.surplus();
  out.table_only = held.table_only();
  out.owned = {held.owned_begin(), held.owned_end()};
  out.whole = held.whole();
  return out;
}

void ToWire(const std::vector<PositionRange>& ranges, v1::StepCall* out) {
  ToWire(ranges, out->mutable_ranges());
}

std::vector<PositionRange> RangesFromStepCall(const v1::StepCall& step) {
  return FromWire(step.ranges());
}

void ToWire(const StageLinkState& stage_link, v1::StageLink* out) {
  out->set_from(stage_link.from);
  out->set_to(stage_link.to);
  out->set_chunks(stage_link.chunks);
  out->set_message_seconds(stage_link.message_seconds);
  out->set_bandwidth_bytes_per_s(stage_link.bandwidth_bytes_per_s);
  out->set_saturated(stage_link.saturated);
  out->set_reason(stage_link.reason);
  out->set_transport(stage_link.transport);
  out->set_window(stage_link.window);
  out->set_quickest_bytes(stage_link.quickest_bytes);
  out->set_quickest_seconds(stage_link.quickest_seconds);
}

StageLinkState FromWire(const v1::StageLink& stage_link) {
  StageLinkState state{stage_link.from(),
                       stage_link.to(),
                       stage_link.chunks(),
                       stage_link.message_seconds(),
                       stage_link.bandwidth_bytes_per_s(),
                       stage_link.saturated(),
                       stage_link.reason()};
  state.transport = stage_link.transport();
  state.window = stage_link.window();
  state.quickest_bytes = stage_link.quickest_bytes();
  state.quickest_seconds = stage_link.quickest_seconds();
  return state;
}

void ToWire(const DeviceMemory& memory, v1::DeviceMemory* out) {
  out->set_device(memory.device);
  out->set_predicted_bytes(memory.predicted_bytes);
  out->set_peak_bytes(memory.peak_bytes);
  out->set_limit_bytes(memory.limit_bytes);
}

DeviceMemoryState FromWire(const v1::DeviceMemory& memory) {
  return {memory.device(), memory.predicted_bytes(), memory.peak_bytes(), memory.limit_bytes()};
}

void ToWire(const StepSums& step, v1::StepSums* out) {
  out->set_plan(step.plan);
  out->set_number(step.number);
  out->mutable_sums()->Add(step.sums.begin(), step.sums.end());
}

StepSums FromWire(const v1::StepSums& step) {
  return {step.plan(), step.number(), {step.sums().begin(), step.sums().end()}};
}

void ToWire(const SharedLinkCall& call, v1::SharedLinkCall* out) {
  out->set_what(static_cast<int32_t>(call.what));
  out->set_link(call.link);
  out->set_step(call.part.step);
  out->set_position(call.part.position);
  out->set_rank(call.part.rank);
  out->set_chunk(call.part.chunk);
}

SharedLinkCall FromWire(const v1::SharedLinkCall& call) {
  return {static_cast<SharedLinkCall::What>(call.what()),
          call.link(),
          {call.step(), call.position(), call.rank(), call.chunk()}};
}

namespace {

void ToWire(const Work& work, v1::WorkDone* out) {
  out->set_steps(work.steps);
  out->set_tokens(work.tokens);
  out->set_loss_times_tokens(work.loss_times_tokens);
  ToWire(work.consumed, out->mutable_consumed());
  out->set_masked_tokens(work.masked_tokens);
}

Work FromWire(const v1::WorkDone& work) {
  return {work.steps(), work.tokens(), work.loss_times_tokens(), FromWire(work.consumed()),
          work.masked_tokens()};
}

void ToWire(const ContributionId& id, v1::ContributionName* out) {
  out->set_island(id.island);
  out->set_generation(id.generation);
  out->set_incarnation(id.incarnation);
  out->set_base_version(id.base_version);
}

ContributionId FromWire(const v1::ContributionName& name) {
  return {name.island(), name.generation(), name.incarnation(), name.base_version()};
}

}  // namespace

void ToWire(const Leadership& known, v1::Leadership* out) {
  out->set_island(known.island);
  out->set_generation(known.generation);
  out->set_adopted(known.adopted);
  out->set_base_version(known.base_version);
  out->set_tokens_at_base(known.tokens_at_base);
  out->set_initial_made(known.initial_made);
  out->set_reset_moments(known.reset_moments);
  out->set_diverged(known.diverged);
  ToWire(known.local, out->mutable_local());
  out->set_carried_steps(known.carried_steps);
  if (known.in_flight) ToWire(*known.in_flight, out->mutable_in_flight());
  ToWire(known.in_flight_work, out->mutable_in_flight_work());
  if (known.last_pushed) ToWire(*known.last_pushed, out->mutable_last_pushed());
  ToWire(known.stepping, out->mutable_stepping());
  out->set_step_failed(known.step_failed);
  ToWire(known.leased, out->mutable_leased());
  out->set_exhausted(known.exhausted);
  out->set_lease_request(known.lease_request);
  out->set_inner_step(known.inner_step);
  out->set_tokens(known.tokens);
  out->set_pushed_bytes(known.pushed_bytes);
  out->set_pulled_bytes(known.pulled_bytes);
  out->set_loss(known.loss);
}

Leadership FromWire(const v1::Leadership& m) {
  Leadership known;
  known.island = m.island();
  known.generation = m.generation();
  known.adopted = m.adopted();
  known.base_version = m.base_version();
  known.tokens_at_base = m.tokens_at_base();
  known.initial_made = m.initial_made();
  known.reset_moments = m.reset_moments();
  known.diverged = m.diverged();
  known.local = FromWire(m.local());
  known.carried_steps = m.carried_steps();
  if (m.has_in_flight()) known.in_flight = FromWire(m.in_flight());
  known.in_flight_work = FromWire(m.in_flight_work());
  if (m.has_last_pushed()) known.last_pushed = FromWire(m.last_pushed());
  known.stepping = FromWire(m.stepping());
  known.step_failed = m.step_failed();
  known.leased = FromWire(m.leased());
  known.exhausted = m.exhausted();
  known.lease_request = m.lease_request();
  known.inner_step = m.inner_step();
  known.tokens = m.tokens();
  known.pushed_bytes = m.pushed_bytes();
  known.pulled_bytes = m.pulled_bytes();
  known.loss = m.loss();
  return known;
}

void ToWire(const absl::Status& status, v1::GroupReply* out) {
  out->set_code(static_cast<int32_t>(status.code()));
  out->set_message(std::string(status.message().substr(0, 4096)));
}

absl::Status StatusFromReply(const v1::GroupReply& reply) {
  return absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message());
}

std::string Describe(const v1::GroupFrame& call) {
  const auto of = [](const std::string& what, const v1::LayerCall& layer) {
    return absl::StrCat(what, ToString(FromWire(layer.shard())));
  };
  switch (call.body_case()) {
    case v1::GroupFrame::kConfigure:
      return "set up the plan";
    case v1::GroupFrame::kFetch:
      return "fetch layers";
    case v1::GroupFrame::kDropSurplus:
      return "drop surplus layers";
    case v1::GroupFrame::kStep:
      return absl::StrCat("step ", call.step().number());
    case v1::GroupFrame::kEvaluate:
      return "validate";
    case v1::GroupFrame::kGetLayer:
      return of("send ", call.get_layer());
    case v1::GroupFrame::kSetSteps:
      return "set the optimizer's step";
    case v1::GroupFrame::kTrace:
      return "report the times of the step's operations";
    case v1::GroupFrame::kClock:
      return "report the time";
    case v1::GroupFrame::kTakeOver:
      return "report its control state";
    case v1::GroupFrame::kSnapshot:
      return "copy what it holds";
    case v1::GroupFrame::kAddition:
      return call.addition().add() ? "adopt a version" : "make room for a version";
    case v1::GroupFrame::kDrain:
      return "agree on the newest step";
    case v1::GroupFrame::kOuter:
      return Describe(call.outer());
    default:
      return "a message";  // the others have no reply
  }
}

std::string ToString(const LayerShard& shard) {
  const std::string layer = absl::StrCat("layer ", shard.layer);
  return shard.tensor_split_ratios.size() == 1 ? layer
                                               : absl::StrCat("rank ", shard.rank, " of ", layer);
}

}  // namespace atl::worker
