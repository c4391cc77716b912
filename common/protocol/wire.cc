#include "common/protocol/wire.h"

#include "common/protocol/node_name.h"
#include "common/protocol/outer_optimizer.h"
#include "common/protocol/round_limit.h"
#include "common/protocol/wire_limits.h"
#include "common/status.h"
#include "proto/control.fields.h"

namespace atl {

namespace {

template <class S, class M>
absl::Status EncodeInto(const S& message, M* wire) {
  MessageWriter encoder;
  Fields(encoder, message, *wire);
  return encoder.status();
}

template <class S, class M>
absl::Status EncodeEnvelope(const std::string& name, const S& message, M* wire) {
  ATOLL_RETURN_IF_ERROR(CheckNodeName(name));
  return EncodeInto(message, wire);
}

template <class S, class M>
absl::StatusOr<S> DecodeFrom(M* wire) {
  S message;
  MessageReader decoder;
  Fields(decoder, message, *wire);
  ATOLL_RETURN_IF_ERROR(decoder.status());
  return message;
}

// An envelope: the addressee or sender has a good name, and there is a message in it.
template <class S, class M>
absl::StatusOr<S> DecodeEnvelope(const std::string& name, M* wire) {
  ATOLL_RETURN_IF_ERROR(CheckNodeName(name));
  if (wire->message_case() == M::MESSAGE_NOT_SET) {
    return absl::InvalidArgumentError("message: absent, or of a kind this version does not know");
  }
  return DecodeFrom<S>(wire);
}

}  // namespace

absl::Status Encode(const FromWorker& message, v1::FromWorker* wire) {
  return EncodeEnvelope(message.worker, message, wire);
}
absl::Status Encode(const ToWorker& message, v1::ToWorker* wire) {
  return EncodeEnvelope(message.worker, message, wire);
}
absl::Status Encode(const FromServer& message, v1::FromServer* wire) {
  return EncodeEnvelope(message.server, message, wire);
}
absl::Status Encode(const ToServer& message, v1::ToServer* wire) {
  return EncodeEnvelope(message.server, message, wire);
}
absl::Status Encode(const JobSpec& spec, v1::JobSpec* wire) { return EncodeInto(spec, wire); }
absl::Status Encode(const DeviceProfile& profile, v1::DeviceProfile* wire) {
  return EncodeInto(profile, wire);
}
absl::Status Encode(const StepTrace& trace, v1::StepTrace* wire) { return EncodeInto(trace, wire); }
absl::Status Encode(const JobDefinition& definition, v1::JobDefinition* wire) {
  return EncodeInto(definition, wire);
}

absl::StatusOr<FromWorker> Decode(v1::FromWorker* wire) {
  return DecodeEnvelope<FromWorker>(wire->worker(), wire);
}
absl::StatusOr<ToWorker> Decode(v1::ToWorker* wire) {
  return DecodeEnvelope<ToWorker>(wire->worker(), wire);
}
absl::StatusOr<FromServer> Decode(v1::FromServer* wire) {
  return DecodeEnvelope<FromServer>(wire->server(), wire);
}
absl::StatusOr<JobDefinition> Decode(v1::JobDefinition* wire) {
  return DecodeFrom<JobDefinition>(wire);
}
absl::StatusOr<ToServer> Decode(v1::ToServer* wire) {
  return DecodeEnvelope<ToServer>(wire->server(), wire);
}
namespace {

bool IsOfSite(const v1::OuterSpec& outer) {
  return outer.site().rounds() > 0 || !outer.contributes_to().empty();
}

// Where H is chosen, a job exchanges often and in few bits; what pushes and pulls leave out goes
// into the next ones. Not where one island is all there is, or a site's servers push the sums.
void FillEncodings(v1::OuterSpec* outer) {
  const bool alone = outer->has_max_islands() && outer->max_islands() == 1;
  if (outer->steps_per_round() > 0 || alone || IsOfSite(*outer)) return;
  if (!outer->has_push_encoding()) outer->set_push_encoding(v1::ENCODING_INT4);
  if (!outer->has_pull_encoding()) outer->set_pull_encoding(v1::ENCODING_INT4);
}

void FillDefaults(v1::OuterSpec* outer) {
  FillEncodings(outer);
  OuterChoice choice;
  if (outer->has_optimizer()) choice.optimizer = outer->optimizer();
  if (outer->has_learning_rate()) choice.learning_rate = outer->learning_rate();
  if (outer->has_momentum()) choice.momentum = outer->momentum();
  choice = WithDefaults(std::move(choice));
  outer->set_optimizer(*choice.optimizer);
  outer->set_learning_rate(*choice.learning_rate);
  outer->set_momentum(*choice.momentum);
}

// Adapters of islands that are averaged lose least where lengths and directions are averaged apart
// (bench/adapters/run merges). REQUIRES: FillDefaults has run.
void FillMerge(const v1::AdapterSpec& adapter, v1::OuterSpec* outer) {
  const bool limited = outer->has_max_share() && outer->max_share() < 1;
  if (adapter.kind() != v1::ADAPTER_KIND_LORA || outer->has_merge() || limited) return;
  const bool few = !outer->has_max_islands() ||
                   outer->max_islands() <= static_cast<int64_t>(kMaxContributionsByLayer);
  if (!few || IsOfSite(*outer) || outer->optimizer() != OuterSpec().optimizer) return;
  outer->set_merge("radial");
}

}  // namespace

absl::StatusOr<JobSpec> Decode(v1::JobSpec* wire) {
  constexpr double kMuonMomentum = 0.95;  // its authors'; InnerSpec has what is usual with SGD
  if (wire->inner().optimizer() == v1::INNER_OPTIMIZER_MUON && !wire->inner().has_momentum()) {
    wire->mutable_inner()->set_momentum(kMuonMomentum);
  }
  if (wire->layout().link_limits_size() > 0 && !wire->outer().has_steps_per_round()) {
    wire->mutable_outer()->set_steps_per_round(kScheduleSteps);
  }
  FillDefaults(wire->mutable_outer());
  FillMerge(wire->adapter(), wire->mutable_outer());
  return DecodeFrom<JobSpec>(wire);
}
absl::StatusOr<DeviceProfile> Decode(v1::DeviceProfile* wire) {
  return DecodeFrom<DeviceProfile>(wire);
}
absl::StatusOr<StepTrace> Decode(v1::StepTrace* wire) { return DecodeFrom<StepTrace>(wire); }

absl::Status CheckNodeName(absl::string_view name) {
  if (IsNodeName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "name \"", name.substr(0, 80),
      "\": must be at most 63 letters, digits, '-', '_' and '.', and not begin with '-' or '.'"));
}

}  // namespace atl
