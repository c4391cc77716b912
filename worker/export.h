// A job's global model, out of the parameter servers and into a Hugging Face folder; of a job with
// an adapter, the adapter as PEFT has it, or merged into the model's weights.

#ifndef ATOLL_WORKER_EXPORT_H_
#define ATOLL_WORKER_EXPORT_H_

#include <functional>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "common/net/tensor/tensor_client.h"
#include "common/protocol/control.h"
#include "common/status.h"
#include "worker/model/safetensors.h"

namespace atl::worker {

// The file of an exported folder that names the job.
inline constexpr char kExportJobFile[] = "atoll-job";

struct ExportRequest {
  JobId job;
  Version version = kNoVersion;
  std::vector<ShardPlacement> shards;  // all of the job's
  ModelConfig config;
  std::string folder;  // made if need be
  WeightType weight_type = WeightType::kFp32;
  std::string base;    // of a job with an adapter: the folder of the model's weights
  bool merge = false;  // the whole model instead of the adapter: reads `base`
  bool ema = false;    // the moving average of the parameters
};

// Pulls every shard at exactly `version`, a few at a time, and writes config.json and safetensors
// (worker/model's WriteModelFolder: complete or not there). `progress` gets the share of shards
// that has arrived, in [0, 1]. There is no limit to the whole: each shard has one by its size
// (TransferTimeout), from when it is requested. The first one that fails ends the rest.
// FAILED_PRECONDITION with the newer version in its message if a server has advanced: retry.
// ALREADY_EXISTS, at once: the folder holds a model's files, and its kExportJobFile does not
// name this job. INVALID_ARGUMENT: `merge` without an adapter.
// Memory: one copy of the model.
absl::Status ExportModel(TensorClient& client, const ExportRequest& request,
                         const std::function<void(double)>& progress);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_EXPORT_H_
