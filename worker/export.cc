#include "worker/export.h"

#include <condition_variable>
#include <mutex>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/model/model.h"
#include "worker/model/weights.h"

namespace atl::worker {
namespace {

// Collects the results of pulls, which arrive on the network thread.
class Arrivals {
 public:
  explicit Arrivals(size_t expected) : missing_(expected) {}

  void Arrived(const ShardPlacement& shard, const PullResult& result) {
    std::lock_guard lock(mutex_);
    --missing_;
    if (status_.ok() && !result.status.ok()) {
      status_ = Annotate(result.status, absl::StrCat("shard ", shard.shard, " from ", shard.server,
                                                     " at ", shard.endpoint));
    }
    changed_.notify_one();
  }

  // Every pull ends at its timeout at the latest, so this does.
  absl::Status Wait(const std::function<void(double)>& progress, size_t expected) {
    std::unique_lock lock(mutex_);
    size_t seen = missing_ + 1;
    while (missing_ > 0) {
      if (missing_ < seen) {
        seen = missing_;
        lock.unlock();
        progress(1 - static_cast<double>(seen) / static_cast<double>(expected));
        lock.lock();
        continue;
      }
      changed_.wait(lock);
    }
    progress(1);
    return status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t missing_;
  absl::Status status_;
};

// Shards must cover every layer once: they come from another machine.
absl::Status CheckCover(const ExportRequest& request, const Model& model) {
  std::vector<int64_t> covered(model.layers().size(), 0);
  for (const ShardPlacement& shard : request.shards) {
    if (shard.layer < 0 || shard.layer >= static_cast<int32_t>(covered.size()) || shard.begin < 0 ||
        shard.elements <= 0 ||
        shard.begin > model.layers()[shard.layer]->layout().size - shard.elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard ", shard.shard, " does not fit the model's layer ", shard.layer,
                       "; was the model's config file changed since the job began?"));
    }
    covered[shard.layer] += shard.elements;
  }
  for (size_t l = 0; l < covered.size(); ++l) {
    if (covered[l] != model.layers()[l]->layout().size) {
      return absl::InvalidArgumentError(
          absl::StrCat("the shards of layer ", l, " hold ", covered[l], " parameters, the model ",
                       model.layers()[l]->layout().size,
                       "; was the model's config file changed since the job began?"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExportModel(TensorClient& client, const ExportRequest& request,
                         const std::function<void(double)>& progress) {
  ATOLL_ASSIGN_OR_RETURN(const Model model, Model::Create(request.config));
  ATOLL_RETURN_IF_ERROR(CheckCover(request, model));
  std::vector<LayerLayout> layouts;
  std::vector<std::vector<float>> values;
  for (const auto& layer : model.layers()) {
    layouts.push_back(layer->layout());
    values.emplace_back(static_cast<size_t>(layer->layout().size));
  }

  Arrivals arrivals(request.shards.size());
  for (const ShardPlacement& shard : request.shards) {
    const std::span<float> destination =
        std::span(values[static_cast<size_t>(shard.layer)])
            .subspan(static_cast<size_t>(shard.begin), static_cast<size_t>(shard.elements));
    PullRequest pull;
    pull.job = request.job;
    pull.version = request.version;
    pull.shard = shard.shard;
    client.Pull({shard.endpoint, shard.public_key}, pull, destination, request.shard_timeout,
                [&arrivals, shard](PullResult result) { arrivals.Arrived(shard, result); });
  }
  ATOLL_RETURN_IF_ERROR(arrivals.Wait(progress, request.shards.size()));
  return WriteModelFolder(
      request.folder, request.config, layouts,
      [&values](int layer) -> absl::StatusOr<std::span<const float>> { return values[layer]; });
}

}  // namespace atl::worker
