#include "worker/export.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "worker/model/frozen_weights.h"
#include "worker/model/merge_adapter.h"
#include "worker/model/model.h"
#include "worker/model/weights.h"
#include "worker/outer/transfer_limits.h"

namespace atl::worker {
namespace {

using Values = std::vector<std::vector<float>>;  // by layer

// Fetches all shards into `values`, kShardsAtOnce at a time.
class Fetch {
 public:
  // All of these outlive it.
  Fetch(TensorClient& client, const ExportRequest& request, std::vector<std::vector<float>>& values)
      : client_(client), request_(request), values_(values) {}

  // Once. Every pull ends at its timeout at the latest, so this does.
  absl::Status Run(const std::function<void(double)>& progress) {
    std::unique_lock lock(mutex_);
    StartMore();
    size_t reported = 0;
    while (!running_.empty() || reported < arrived_) {
      changed_.wait(lock, [&] { return running_.empty() || arrived_ > reported; });
      if (arrived_ == reported) continue;
      reported = arrived_;
      lock.unlock();
      progress(static_cast<double>(reported) / static_cast<double>(request_.shards.size()));
      lock.lock();
    }
    return status_;
  }

 private:
  // REQUIRES: mutex_ is held.
  void StartMore() {
    while (status_.ok() && next_ < request_.shards.size() &&
           running_.size() < static_cast<size_t>(kShardsAtOnce)) {
      const size_t index = next_++;
      const ShardPlacement& shard = request_.shards[index];
      const std::span<float> destination =
          std::span(values_[static_cast<size_t>(shard.layer)])
              .subspan(static_cast<size_t>(shard.begin), static_cast<size_t>(shard.elements));
      PullRequest pull;
      pull.job = request_.job;
      pull.version = request_.version;
      pull.shard = shard.shard;
      if (request_.ema) pull.slot = kPullAverage;
      running_[index] =
          client_.Pull({shard.endpoint, shard.public_key}, pull, destination,
                       TransferTimeout(shard.elements * static_cast<int64_t>(sizeof(float))),
                       [this, index](const PullResult& result) { Arrived(index, result); });
    }
  }

  // On the network thread.
  void Arrived(size_t index, const PullResult& result) {
    const std::lock_guard lock(mutex_);
    running_.erase(index);
    if (result.status.ok()) {
      ++arrived_;
      StartMore();
    } else if (status_.ok()) {
      const ShardPlacement& shard = request_.shards[index];
      status_ = Annotate(result.status, absl::StrCat("shard ", shard.shard, " from ", shard.server,
                                                     " at ", shard.endpoint));
      for (const auto& [other, id] : running_) client_.Cancel(id);
    }
    changed_.notify_one();
  }

  TensorClient& client_;
  const ExportRequest& request_;
  std::vector<std::vector<float>>& values_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  size_t next_ = 0;  // shard to request
  size_t arrived_ = 0;
  std::map<size_t, TransferId> running_;
  absl::Status status_;  // of the first that failed
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

constexpr int64_t kJobFileBytesMax = 4096;

bool IsAdapterFile(const std::string& name) {
  return name == kAdapterConfigFile || name == kAdapterWeightsFile;
}

bool IsModelFile(const std::string& name) {
  return name == "config.json" ||
         (absl::StartsWith(name, "model") && (absl::EndsWith(name, ".safetensors") ||
                                              absl::EndsWith(name, ".safetensors.index.json")));
}

// A folder with a model's files must hold an earlier export of the same job.
absl::Status CheckFolder(const ExportRequest& request) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names, RealFiles().List(request.folder));
  const auto model = std::find_if(names.begin(), names.end(), [](const std::string& name) {
    return IsModelFile(name) || IsAdapterFile(name);
  });
  if (model == names.end()) return absl::OkStatus();
  const auto file = InputFile::Open(absl::StrCat(request.folder, "/", kExportJobFile));
  const auto job = file.ok() ? file->ReadAll(kJobFileBytesMax) : file.status();
  if (job.ok() && *job == request.job + "\n") return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(request.folder, "/", *model, ": is ",
                   job.ok() ? absl::StrCat("of job ", absl::StripTrailingAsciiWhitespace(*job))
                            : "no export of this job",
                   ", and would be overwritten; give another folder, or delete it"));
}

absl::Status NameJob(const ExportRequest& request) {
  const std::string text = request.job + "\n";
  ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(request.folder));
  return WriteFileAtomically(RealFiles(), absl::StrCat(request.folder, "/", kExportJobFile),
                             std::array{AsBytes(text)});
}

// Removes an earlier export of the job in another form: what loads the folder would take both.
absl::Status RemoveFiles(const std::string& folder, bool (*which)(const std::string&)) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names, RealFiles().List(folder));
  for (const std::string& name : names) {
    if (!which(name)) continue;
    std::error_code error;
    std::filesystem::remove(std::filesystem::path(folder) / name, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat(folder, "/", name, ": cannot be deleted: ", error.message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Values> Merge(const ExportRequest& request, const std::vector<LayerLayout>& layouts,
                             const std::vector<LayerLayout>& base, const Values& adapter) {
  Values merged;
  for (const LayerLayout& layout : base) merged.emplace_back(static_cast<size_t>(layout.size));
  const std::vector<std::span<float>> spans(merged.begin(), merged.end());
  ATOLL_RETURN_IF_ERROR(
      Annotate(ReadWeights(request.base, base, spans), "model.initial_weights_path"));
  for (size_t l = 0; l < layouts.size(); ++l) {
    if (layouts[l].coding) merged[l] = FrozenWeights(layouts[l], merged[l]).Stored();
    MergeAdapter(layouts[l], request.config.adapter, adapter[l], merged[l]);
  }
  return merged;
}

absl::Status Write(const ExportRequest& request, const std::vector<LayerLayout>& layouts,
                   const Values& values) {
  const auto source = [](const Values& of) -> LayerSource {
    return [&of](int layer) -> absl::StatusOr<std::span<const float>> { return of[layer]; };
  };
  if (!request.config.adapter.present()) {
    return WriteModelFolder(request.folder, request.config, layouts, source(values), kMaxShardBytes,
                            request.weight_type);
  }
  if (!request.merge) {
    ATOLL_RETURN_IF_ERROR(WriteAdapterFolder(request.folder, request.config, layouts,
                                             source(values), request.base, request.weight_type));
    return RemoveFiles(request.folder, IsModelFile);
  }
  const std::vector<LayerLayout> base = MakeLayouts(request.config.Base());
  ATOLL_ASSIGN_OR_RETURN(const Values merged, Merge(request, layouts, base, values));
  ATOLL_RETURN_IF_ERROR(WriteModelFolder(request.folder, request.config.Base(), base,
                                         source(merged), kMaxShardBytes, request.weight_type));
  return RemoveFiles(request.folder, IsAdapterFile);
}

}  // namespace

absl::Status ExportModel(TensorClient& client, const ExportRequest& request,
                         const std::function<void(double)>& progress) {
  ATOLL_ASSIGN_OR_RETURN(const Model model, Model::Create(request.config));
  if (request.merge && !request.config.adapter.present()) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", request.job, " has no adapter to merge: export it without --merge"));
  }
  ATOLL_RETURN_IF_ERROR(CheckCover(request, model));
  ATOLL_RETURN_IF_ERROR(CheckFolder(request));
  std::vector<LayerLayout> layouts;
  std::vector<std::vector<float>> values;
  for (const auto& layer : model.layers()) {
    layouts.push_back(layer->layout());
    values.emplace_back(static_cast<size_t>(layer->layout().size));
  }

  ATOLL_RETURN_IF_ERROR(Fetch(client, request, values).Run(progress));
  ATOLL_RETURN_IF_ERROR(NameJob(request));
  return Write(request, layouts, values);
}

}  // namespace atl::worker
