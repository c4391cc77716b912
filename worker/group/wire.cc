#include "worker/group/wire.h"

#include <numeric>

#include "worker/group/parts.h"

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
  if (shard.tensor_shares_size() < 1 || shard.tensor_shares_size() > kRanksMax) {
    return Bad("number of ranks");
  }
  for (int32_t share : shard.tensor_shares()) {
    if (share < 1) return Bad("tensor share");
  }
  if (shard.rank() < 0 || shard.rank() >= shard.tensor_shares_size()) return Bad("rank");
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
  int64_t total = 0;
  for (const v1::PositionSpan& range : step.ranges()) total += range.end() - range.begin();
  return total < 1 ? Bad("sequences of a step") : absl::OkStatus();
}

absl::Status Check(const v1::WorkDone& work) {
  if (!IsCount(work.steps()) || !IsCount(work.tokens())) return Bad("work");
  return Check(work.consumed());
}

absl::Status Check(const v1::ContributionName& name) {
  if (name.island() < 0 || name.generation() < 0 || name.incarnation() < 0 ||
      name.base_version() < kNoVersion || name.base_version() > kCountMax) {
    return Bad("contribution");
  }
  return absl::OkStatus();
}

absl::Status Check(const v1::Inheritance& inheritance) {
  const v1::Leadership& known = inheritance.leadership();
  for (const int64_t count : {int64_t{known.island()}, known.generation(), known.tokens_at_base(),
                              known.carried_steps(), known.lease_request(), known.inner_step(),
                              known.tokens(), known.pushed_bytes(), known.pulled_bytes()}) {
    if (!IsCount(count)) return Bad("a leader's count");
  }
  for (const int64_t or_none : {known.base_version(), inheritance.known_steps()}) {
    if (or_none != -1 && !IsCount(or_none)) return Bad("a leader's count");
  }
  ATOLL_RETURN_IF_ERROR(Check(known.local()));
  ATOLL_RETURN_IF_ERROR(Check(known.in_flight()));
  ATOLL_RETURN_IF_ERROR(Check(known.in_flight_work()));
  ATOLL_RETURN_IF_ERROR(Check(known.last_pushed()));
  ATOLL_RETURN_IF_ERROR(Check(known.stepping()));
  return Check(known.leased());
}

absl::Status Check(const v1::FetchCall& fetch) {
  if (!IsCount(fetch.optimizer_step())) return Bad("optimizer step");
  for (const v1::FetchCall::Item& item : fetch.items()) {
    ATOLL_RETURN_IF_ERROR(Check(item.shard()));
    if (item.sources_size() < 1 || item.sources_size() > kRanksMax) return Bad("sources");
    for (const v1::FetchCall::Source& source : item.sources()) {
      ATOLL_RETURN_IF_ERROR(Check(source.shard()));
      if (source.shard().layer() != item.shard().layer()) return Bad("a source's layer");
    }
  }
  return absl::OkStatus();
}

// Of a device's state, or (`of_leader`) of what the leader has beside it.
absl::Status Check(const v1::LayerCall& call, bool of_leader) {
  const bool state = call.parts() >= 1 && call.parts() <= kAllParts;
  const bool beside = of_leader && call.parts() > 0 && (call.parts() & ~kLeaderParts) == 0;
  if (!state && !beside) return Bad("parts");
  if (call.of_snapshot() && !state) return Bad("parts of a snapshot");
  if (call.of_addition() && call.parts() != kParametersPart) return Bad("parts of an addition");
  return Check(call.shard());
}

absl::Status Check(const v1::StepSums& step) {
  if (!IsCount(step.plan()) || !IsCount(step.number())) return Bad("step number");
  return step.sums_size() > kSumsMax ? Bad("number of sums") : absl::OkStatus();
}

absl::Status Check(const v1::GroupReply& reply) {
  if (reply.code() < 0 || reply.code() > 16) return Bad("status code");
  if (!IsCount(reply.last_number())) return Bad("step number");
  if (reply.boundaries_size() > kRangesMax) return Bad("number of boundaries");
  if (reply.memory_size() > kDevicesMax) return Bad("number of devices");
  for (const v1::DeviceMemory& memory : reply.memory()) {
    if (memory.predicted_bytes() < 0 || memory.peak_bytes() < 0 || memory.limit_bytes() < 0) {
      return Bad("memory");
    }
  }
  ATOLL_RETURN_IF_ERROR(Check(reply.taken()));
  ATOLL_RETURN_IF_ERROR(Check(reply.waits()));
  if (reply.has_inheritance()) ATOLL_RETURN_IF_ERROR(Check(reply.inheritance()));
  for (const v1::HeldShard& held : reply.held()) {
    ATOLL_RETURN_IF_ERROR(Check(held.shard()));
    if (held.elements() < 0 || held.elements() > kElementsMax) return Bad("elements");
    if (!IsCount(held.optimizer_step())) return Bad("optimizer step");
  }
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
      return Check(frame.get_layer(), /*of_leader=*/true);
    case v1::GroupFrame::kSetLayer:
      return Check(frame.set_layer(), /*of_leader=*/false);
    case v1::GroupFrame::kSetSteps:
      return IsCount(frame.set_steps().optimizer_steps()) ? absl::OkStatus() : Bad("steps");
    case v1::GroupFrame::kRendezvous:
      if (frame.rendezvous().key().size() > 1024 || frame.rendezvous().value().size() > 65536) {
        return Bad("rendezvous entry");
      }
      return absl::OkStatus();
    case v1::GroupFrame::kReply:
      return Check(frame.reply());
    case v1::GroupFrame::kLine:
      return frame.line().what() < 0 || frame.line().what() > 2 ? Bad("what a line call says")
                                                                : absl::OkStatus();
    case v1::GroupFrame::kSettle:
      return Check(frame.settle().take());
    case v1::GroupFrame::kTrace:
      return IsCount(frame.trace().number()) ? absl::OkStatus() : Bad("step number");
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

absl::StatusOr<v1::GroupFrame> ParseGroupFrame(absl::string_view bytes) {
  v1::GroupFrame frame;
  if (!frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("not a GroupFrame");
  }
  if (frame.epoch() < 0) return Bad("epoch");
  ATOLL_RETURN_IF_ERROR(CheckBody(frame));
  return frame;
}

absl::StatusOr<v1::PieceHeader> ParsePieceHeader(absl::string_view bytes, int64_t payload_bytes) {
  v1::PieceHeader header;
  if (!header.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("not a PieceHeader");
  }
  if (header.part() < 0 || header.part() >= kPartsMax) return Bad("part");
  if (header.offset() < 0 || header.offset() > kElementsMax) return Bad("offset");
  if (payload_bytes < 4 || payload_bytes % 4 != 0 || payload_bytes > 4 * kPieceElements) {
    return Bad("length of a piece");
  }
  return header;
}

std::string TensorHeaderOf(const TensorMessage& message) {
  v1::TensorHeader header;
  header.set_step(message.tag.step);
  header.set_replica(message.tag.replica);
  header.set_stage(message.tag.stage);
  header.set_rank(message.tag.rank);
  header.set_micro_batch(message.tag.micro_batch);
  header.set_piece(message.tag.piece);
  header.set_pieces(message.tag.pieces);
  header.set_gradient(message.tag.gradient);
  header.set_from(message.from);
  header.set_to(message.to);
  header.set_element_bytes(static_cast<int32_t>(SizeOf(message.dtype)));
  header.set_epoch(message.epoch);
  return header.SerializeAsString();
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
  message.tag.piece = header.piece();
  message.tag.pieces = header.pieces();
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

void ToWire(const LayerShard& shard, v1::ShardName* out) {
  out->set_layer(shard.layer);
  out->set_rank(shard.rank);
  for (int32_t share : shard.tensor_shares) out->add_tensor_shares(share);
}

LayerShard FromWire(const v1::ShardName& shard) {
  return {
      shard.layer(), shard.rank(), {shard.tensor_shares().begin(), shard.tensor_shares().end()}};
}

void ToWire(const HeldLayer& held, v1::HeldShard* out) {
  ToWire(held.shard, out->mutable_shard());
  out->set_device(held.device);
  out->set_elements(held.elements);
  out->set_optimizer_step(held.optimizer_step);
  out->set_written(held.written);
  out->set_surplus(held.surplus);
  out->set_table_only(held.table_only);
}

HeldLayer FromWire(const v1::HeldShard& held) {
  HeldLayer out;
  out.shard = FromWire(held.shard());
  out.device = held.device();
  out.elements = held.elements();
  out.optimizer_step = held.optimizer_step();
  out.written = held.written();
  out.surplus = held.surplus();
  out.table_only = held.table_only();
  return out;
}

void ToWire(const std::vector<PositionRange>& ranges, v1::StepCall* out) {
  ToWire(ranges, out->mutable_ranges());
}

std::vector<PositionRange> RangesOf(const v1::StepCall& step) { return FromWire(step.ranges()); }

void ToWire(const BoundaryState& boundary, v1::Boundary* out) {
  out->set_from(boundary.from);
  out->set_to(boundary.to);
  out->set_pieces(boundary.pieces);
  out->set_message_seconds(boundary.message_seconds);
  out->set_bandwidth_bytes_per_s(boundary.bandwidth_bytes_per_s);
  out->set_saturated(boundary.saturated);
  out->set_reason(boundary.reason);
  out->set_way(boundary.way);
  out->set_window(boundary.window);
  out->set_quickest_bytes(boundary.quickest_bytes);
  out->set_quickest_seconds(boundary.quickest_seconds);
}

BoundaryState FromWire(const v1::Boundary& boundary) {
  BoundaryState state{boundary.from(),
                      boundary.to(),
                      boundary.pieces(),
                      boundary.message_seconds(),
                      boundary.bandwidth_bytes_per_s(),
                      boundary.saturated(),
                      boundary.reason()};
  state.way = boundary.way();
  state.window = boundary.window();
  state.quickest_bytes = boundary.quickest_bytes();
  state.quickest_seconds = boundary.quickest_seconds();
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

void ToWire(const LineCall& call, v1::LineCall* out) {
  out->set_what(static_cast<int32_t>(call.what));
  out->set_line(call.line);
  out->set_step(call.part.step);
  out->set_place(call.part.place);
  out->set_rank(call.part.rank);
  out->set_piece(call.part.piece);
}

LineCall FromWire(const v1::LineCall& call) {
  return {static_cast<LineCall::What>(call.what()),
          call.line(),
          {call.step(), call.place(), call.rank(), call.piece()}};
}

namespace {

void ToWire(const Work& work, v1::WorkDone* out) {
  out->set_steps(work.steps);
  out->set_tokens(work.tokens);
  out->set_loss_times_tokens(work.loss_times_tokens);
  ToWire(work.consumed, out->mutable_consumed());
}

Work FromWire(const v1::WorkDone& work) {
  return {work.steps(), work.tokens(), work.loss_times_tokens(), FromWire(work.consumed())};
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

absl::Status StatusOf(const v1::GroupReply& reply) {
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
      return "drop layers that have moved away";
    case v1::GroupFrame::kStep:
      return absl::StrCat("step ", call.step().number());
    case v1::GroupFrame::kEvaluate:
      return "validate";
    case v1::GroupFrame::kGetLayer:
      return of("lend ", call.get_layer());
    case v1::GroupFrame::kSetLayer:
      return of("take ", call.set_layer());
    case v1::GroupFrame::kSetSteps:
      return "set the optimizer's step";
    case v1::GroupFrame::kTrace:
      return "tell what the step's operations took";
    case v1::GroupFrame::kClock:
      return "tell the time";
    case v1::GroupFrame::kTakeOver:
      return "tell what its leader knows";
    case v1::GroupFrame::kSnapshot:
      return "copy what it holds";
    case v1::GroupFrame::kAddition:
      return call.addition().add() ? "adopt a version" : "make room for a version";
    case v1::GroupFrame::kSettle:
      return "agree on the newest step";
    default:
      return "a message";  // nobody answers the others
  }
}

std::string ToString(const LayerShard& shard) {
  const std::string layer = absl::StrCat("layer ", shard.layer);
  return shard.tensor_shares.size() == 1 ? layer : absl::StrCat("rank ", shard.rank, " of ", layer);
}

}  // namespace atl::worker
