#include "worker/profiler/worker_profiler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/model/job_model.h"

namespace atl::worker {
namespace {

constexpr int64_t kMicroBatchMax = 64;

ProfileOptions OptionsFor(const JobSpec& spec, const WorkerProfilerOptions& worker) {
  ProfileOptions options;
  options.compute = worker.compute;
  options.sequence_length = spec.data.sequence_length;
  const InnerSpec& inner = spec.inner;
  options.micro_batch_max = std::min(
      inner.micro_batch_sequences > 0 ? inner.micro_batch_sequences : inner.batch_sequences,
      kMicroBatchMax);
  if (spec.layout.tensor_parallel > 0) {
    options.tensor_parallel = {1, static_cast<int>(spec.layout.tensor_parallel)};
  } else {
    options.tensor_parallel = {1, 2, 4, 8};
  }
  options.optimizer = OptimizerOptionsFromSpec(inner);
  options.runs = worker.runs;
  options.emulation = worker.emulation;
  options.limit = worker.limit;
  options.progress = [&worker](int64_t layer, int64_t most, const std::string& what) {
    worker.measuring(absl::StrCat("measures layers: ", layer, " of at most ", most, ", ", what));
  };
  return options;
}

}  // namespace

WorkerProfiler::WorkerProfiler(Files& files, WorkerProfilerOptions options)
    : cache_(files, options.folder), options_(std::move(options)) {}

std::string WorkerProfiler::DescribeDeviceKind(size_t device) const {
  const DeviceInfo& info = options_.devices[device];
  return absl::StrCat(info.kind, ", ", info.threads, " threads, ", options_.devices.size(),
                      " devices");
}

std::vector<DeviceProfile> WorkerProfiler::ProfilesFor(const JobSpec& spec, const JobFacts& facts,
                                                       bool needs_plan,
                                                       const std::atomic<bool>* cancelled) {
  // Limits of links are kept by plans, of measured steps.
  const bool alone = spec.layout.island == IslandScope::kWorker && options_.devices.size() == 1 &&
                     spec.layout.link_limits.empty();
  if (alone && !needs_plan) return {};
  const uint64_t digest = ComputeModelDigest(facts.model, spec);
  std::vector<DeviceProfile> profiles;
  for (size_t d = 0; d < options_.devices.size(); ++d) {
    auto known = cache_.Find(absl::StrCat(options_.worker, "/", d), DescribeDeviceKind(d), digest,
                             options_.software_version);
    if (known.has_value()) profiles.push_back(*std::move(known));
  }
  // They measure together.
  if (profiles.size() != options_.devices.size()) profiles.clear();
  const auto start = std::chrono::steady_clock::now();
  bool known = false;
  auto measured = Measure(spec, facts, profiles, cancelled, &known);
  options_.measuring("");
  if (known) return profiles;
  if (!measured.ok()) {
    LogWarning("profiler", "the job's layers were not measured: ", measured.status().message());
    return profiles;
  }
  for (DeviceProfile& profile : *measured) {
    profile.model_digest = digest;
    profile.software_version = options_.software_version;
    if (const absl::Status stored = cache_.Store(profile); !stored.ok()) {
      LogWarning("profiler", "measurements are not kept: ", stored.message());
    }
  }
  LogInfo("profiler", "layers of ", facts.model.layers, " blocks measured on ",
          options_.devices.size(), " devices in ",
          Seconds(std::chrono::steady_clock::now() - start), " s");
  return *std::move(measured);
}

// `all`: there is nothing left to measure.
absl::StatusOr<std::vector<DeviceProfile>> WorkerProfiler::Measure(
    const JobSpec& spec, const JobFacts& facts, std::vector<DeviceProfile> known,
    const std::atomic<bool>* cancelled, bool* all) {
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigFromFacts(facts.model, spec));
  ProfileOptions wanted = OptionsFor(spec, options_);
  wanted.cancelled = cancelled;
  std::vector<ProfiledDevice> devices;
  for (size_t d = 0; d < options_.devices.size(); ++d) {
    devices.push_back({absl::StrCat(options_.worker, "/", d), DescribeDeviceKind(d), nullptr});
  }
  *all = IsComplete(devices, config, wanted, known);
  if (*all) return known;
  std::vector<std::unique_ptr<Backend>> backends;
  for (size_t d = 0; d < devices.size(); ++d) {
    ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                           options_.make_backend(static_cast<int>(d)));
    devices[d].backend = backend.get();
    backends.push_back(std::move(backend));
  }
  return ProfileLayers(devices, config, wanted, std::move(known));
}

void WorkerProfiler::Forget() {
  if (const absl::Status status = cache_.Clear(); !status.ok()) {
    LogWarning("profiler", "old measurements cannot be deleted: ", status.message());
  }
}

}  // namespace atl::worker
