// Parameters that devices get from elsewhere than a round: initial ones, theta_base for a
// validation, and those of the reference of pairs.

#include <algorithm>
#include <cstring>

#include "worker/island/member/outer_exchange.h"

namespace atl::worker {

absl::Status OuterExchange::Do(const InitialWeightsCall&) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, member_->OpenJob());
  const ModelSpec& spec = job->spec.model;
  const bool adapts = job->engine.model.adapter.present();
  const std::string& path = adapts ? job->spec.adapter.path : spec.initial_weights_path;
  ReadWhole read = [&](int32_t layer, std::span<float> out) {
    InitLayer(job->layouts[static_cast<size_t>(layer)], job->engine.model.layers, spec.seed, out);
    return absl::OkStatus();
  };
  if (!path.empty()) {
    auto opened = ReadHeld(*job, path, adapts ? &ReadAdapter : &ReadWeights);
    const char* const field = adapts ? "adapter.path" : "model.initial_weights_path";
    ATOLL_RETURN_IF_ERROR(Annotate(opened.status(), field));
    read = *std::move(opened);
  }
  return SetHeld(OuterTarget::kParameters, /*shards=*/{}, read);
}

absl::StatusOr<OuterExchange::ReadWhole> OuterExchange::ReadHeld(
    const GroupJob& job, const std::string& folder, decltype(&ReadWeights) read) const {
  std::vector<std::vector<float>> values(job.layouts.size());
  for (const HeldLayer& held : HeldShards()) {
    const auto layer = static_cast<size_t>(held.shard.layer);
    values[layer].resize(static_cast<size_t>(job.layouts[layer].size));
  }
  const std::vector<std::span<float>> spans(values.begin(), values.end());
  ATOLL_RETURN_IF_ERROR(read(folder, job.layouts, spans, member_->UntilInterrupted()));
  return [values = std::move(values)](int32_t layer, std::span<float> out) {
    std::ranges::copy(values[static_cast<size_t>(layer)], out.begin());
    return absl::OkStatus();
  };
}

// Only what differs from theta_base is put aside: nothing where no step has followed the pull.
absl::Status OuterExchange::Do(const PutBaseInCall& call) {
  ATOLL_RETURN_IF_ERROR(OpenState().status());
  put_aside_.clear();
  ReadWhole read_base = [&](int32_t layer, std::span<float> out) {
    return ReadLayer(OuterKind::kBase, layer, out);
  };
  if (call.reference) {
    ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, member_->OpenJob());
    if (!job->has_reference_folder()) {
      return absl::FailedPreconditionError("the job has no folder of a reference");
    }
    auto opened = ReadHeld(*job, GetReferencePath(job->spec), &ReadWeights);
    ATOLL_RETURN_IF_ERROR(Annotate(opened.status(), "the reference of [objective]"));
    read_base = *std::move(opened);
  }
  const auto put_in = [&](const HeldLayer& held, std::span<float> base) -> absl::Status {
    if (!held.table_only) {
      std::vector<float> values(base.size());
      ATOLL_RETURN_IF_ERROR(
          layers_->GetShard(member_->name(), held.shard, {0, std::ssize(base)}, {values, {}, {}}));
      if (std::memcmp(values.data(), base.data(), base.size_bytes()) == 0) return absl::OkStatus();
      put_aside_.emplace_back(held.shard, std::move(values));
    }
    return layers_->SetShard(held.shard, {base, {}, {}});
  };
  return ForHeld(/*tables=*/true, /*shards=*/{}, read_base, put_in);
}

absl::Status OuterExchange::Do(const PutBackCall&) {
  for (auto& [shard, values] : put_aside_) {
    ATOLL_RETURN_IF_ERROR(layers_->SetShard(shard, {values, {}, {}}));
  }
  put_aside_.clear();
  return absl::OkStatus();
}

}  // namespace atl::worker
