#include "worker/profiler/layer_profiler.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/thread_communicator.h"
#include "worker/profiler/layer_bench.h"

namespace atl::worker {
namespace {

constexpr int64_t kKinds = 3;     // of layers
constexpr double kLinear = 0.03;  // times a sequence that change less than this are steady
constexpr Duration kCollectiveTimeout = std::chrono::seconds(60);

// The measurement of one group's devices, size by size. Their threads meet before each size, so
// that all of them work on the same thing.
class Profiling {
 public:
  Profiling(const std::vector<ProfiledDevice>& devices, const ModelConfig& config,
            const ProfileOptions& options, std::vector<DeviceProfile> known)
      : devices_(devices),
        config_(config),
        options_(options),
        started_(std::chrono::steady_clock::now()),
        profiles_(std::move(known)) {
    ATOLL_CHECK(profiles_.empty() || profiles_.size() == devices.size());
    if (!profiles_.empty()) return;
    for (const ProfiledDevice& device : devices) {
      profiles_.push_back({device.name, device.kind, "", 0, {}});
    }
  }

  bool IsComplete() const {
    const std::vector<int64_t> rows = MicroBatches();
    for (const int size : TensorSizes()) {
      for (size_t i = 0; i < rows.size(); ++i) {
        if (!Known(size, rows[i])) return false;
        if (i >= 2 && IsStable(CountGroupedDevices(size), size, rows[i])) break;
      }
    }
    return true;
  }

  absl::StatusOr<std::vector<DeviceProfile>> Run() {
    const std::vector<int> sizes = TensorSizes();
    for (size_t i = 0; i < sizes.size(); ++i) {
      ATOLL_RETURN_IF_ERROR(RunSize(sizes[i], i, sizes.size()));
    }
    return std::move(profiles_);
  }

 private:
  bool Late() const { return std::chrono::steady_clock::now() - started_ > options_.limit; }

  std::vector<int> TensorSizes() const {
    std::vector<int> sizes = {1};
    for (const int size : options_.tensor_parallel) {
      if (size > 1 && size <= static_cast<int>(devices_.size()) &&
          CutModel(config_, size, {}).ok()) {
        sizes.push_back(size);
      }
    }
    return sizes;
  }

  std::vector<int64_t> MicroBatches() const {
    std::vector<int64_t> rows;
    for (int64_t b = 1; b <= options_.micro_batch_max; b *= 2) rows.push_back(b);
    return rows;
  }

  // Groups of `size` devices in order; what is left over of them measures nothing.
  size_t CountGroupedDevices(int size) const {
    return devices_.size() / static_cast<size_t>(size) * static_cast<size_t>(size);
  }

  bool Known(int size, int64_t rows) const {
    return std::all_of(profiles_.begin(),
                       profiles_.begin() + static_cast<std::ptrdiff_t>(CountGroupedDevices(size)),
                       [&](const DeviceProfile& profile) {
                         return std::count_if(profile.layers.begin(), profile.layers.end(),
                                              [&](const LayerCost& cost) {
                                                return cost.tensor_parallel == size &&
                                                       cost.micro_batch_sequences == rows;
                                              }) == kKinds;
                       });
  }

  absl::Status RunSize(int size, size_t sizes_before, size_t sizes) {
    const size_t members = CountGroupedDevices(size);
    std::vector<std::unique_ptr<Communicator>> communicators;
    std::vector<Model> models;
    if (size == 1) {
      ATOLL_ASSIGN_OR_RETURN(Model model, Model::Create(config_, options_.compute));
      models.push_back(std::move(model));
      communicators.resize(members);
    } else {
      ATOLL_ASSIGN_OR_RETURN(const std::vector<TensorPart> parts, CutModel(config_, size, {}));
      for (const TensorPart& part : parts) {
        ATOLL_ASSIGN_OR_RETURN(Model model, Model::Create(config_, options_.compute, part));
        models.push_back(std::move(model));
      }
      for (size_t first = 0; first < members; first += static_cast<size_t>(size)) {
        for (auto& c : NewThreadCommunicators(size, kCollectiveTimeout)) {
          communicators.push_back(std::move(c));
        }
      }
    }
    const std::vector<int64_t> rows = MicroBatches();
    stop_ = false;
    for (size_t i = 0; i < rows.size() && !stop_; ++i) {
      if (Known(size, rows[i])) {
        stop_ = i >= 2 && IsStable(members, size, rows[i]);
        continue;
      }
      DropIncomplete(size, rows[i]);
      if (options_.cancelled != nullptr && *options_.cancelled) {
        return absl::AbortedError("measuring layers is interrupted");
      }
      if (i > 0 && Late()) break;
      ATOLL_RETURN_IF_ERROR(CheckChoices(config_, {rows[i], options_.sequence_length}));
      layers_before_ = static_cast<int64_t>(sizes_before * rows.size() + i) * kKinds;
      layers_most_ = static_cast<int64_t>(sizes * rows.size()) * kKinds;
      std::vector<std::thread> threads;
      for (size_t d = 0; d < members; ++d) {
        const Model& model = models[d % models.size()];
        threads.emplace_back([&, d, i] {
          const absl::Status status =
              Measure(d, model, communicators[d].get(), {rows[i], options_.sequence_length});
          if (status.ok()) return;
          for (auto& c : communicators) {
            if (c != nullptr) c->Abort("profiling failed on another device");
          }
          const std::lock_guard lock(mutex_);
          if (error_.ok()) error_ = status;
        });
      }
      for (std::thread& thread : threads) thread.join();
      if (!error_.ok()) {
        // A larger micro-batch that does not fit ends the sizes; the smallest must.
        if (i > 0 && error_.code() == absl::StatusCode::kResourceExhausted) {
          error_ = absl::OkStatus();
          DropIncomplete(size, rows[i]);
          break;
        }
        return error_;
      }
      stop_ = i >= 2 && IsStable(members, size, rows[i]);
    }
    return absl::OkStatus();
  }

  absl::Status Measure(size_t d, const Model& model, Communicator* communicator,
                       const BatchShape& shape) {
    int64_t kind = 0;
    const int block = static_cast<int>(config_.MeasuredBlock()) + 1;
    for (const int layer : {0, block, static_cast<int>(model.layers().size()) - 1}) {
      if (d == 0) ReportProgress(kind++, communicator, shape);
      ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<LayerBench> bench,
                             LayerBench::Create(*devices_[d].backend, model, layer, shape,
                                                options_.optimizer, communicator));
      ATOLL_ASSIGN_OR_RETURN(LayerCost cost,
                             bench->Measure(options_.emulation.only ? 0 : options_.runs));
      Emulate(devices_[d].name, &cost);
      profiles_[d].layers.push_back(cost);
    }
    return absl::OkStatus();
  }

  void ReportProgress(int64_t kind, const Communicator* communicator,
                      const BatchShape& shape) const {
    if (!options_.progress) return;
    constexpr const char* kNames[kKinds] = {"embedding", "block", "head"};
    const int shared = communicator == nullptr ? 1 : communicator->size();
    options_.progress(layers_before_ + kind + 1, layers_most_,
                      absl::StrCat(kNames[kind], ", micro-batch ", shape.rows,
                                   shared > 1 ? absl::StrCat(", shared by ", shared) : ""));
  }

  // Sets the times that operations last in training: as long as it computes, or as it is said to.
  void Emulate(const std::string& device, LayerCost* cost) const {
    if (options_.emulation.duration == nullptr) return;
    const auto at_least = [&](PlanOpKind kind, int64_t* ns) {
      const Duration emulated =
          options_.emulation.duration(device, cost->kind, kind, cost->micro_batch_sequences);
      *ns = std::max<int64_t>(*ns, std::chrono::nanoseconds(emulated).count());
    };
    at_least(PlanOpKind::kForward, &cost->forward_ns);
    at_least(PlanOpKind::kInputGradient, &cost->input_gradient_ns);
    at_least(PlanOpKind::kWeightGradient, &cost->weight_gradient_ns);
  }

  void DropIncomplete(int size, int64_t rows) {
    for (DeviceProfile& profile : profiles_) {
      std::erase_if(profile.layers, [&](const LayerCost& cost) {
        return cost.tensor_parallel == size && cost.micro_batch_sequences == rows;
      });
    }
  }

  // Returns whether the time of a sequence no longer depends on how many there are, on every
  // device.
  bool IsStable(size_t members, int size, int64_t rows) const {
    for (size_t d = 0; d < members; ++d) {
      const auto of = [&](int64_t b) {
        double ns = 0;
        for (const LayerCost& cost : profiles_[d].layers) {
          if (cost.tensor_parallel != size || cost.micro_batch_sequences != b) continue;
          ns += static_cast<double>(cost.forward_ns + cost.input_gradient_ns +
                                    cost.weight_gradient_ns);
        }
        return ns / static_cast<double>(b);
      };
      if (std::abs(of(rows) / of(rows / 2) - 1) > kLinear) return false;
    }
    return true;
  }

  const std::vector<ProfiledDevice>& devices_;
  const ModelConfig& config_;
  const ProfileOptions& options_;
  const std::chrono::steady_clock::time_point started_;
  std::vector<DeviceProfile> profiles_;  // thread d writes profile d
  bool stop_ = false;
  int64_t layers_before_ = 0, layers_most_ = 0;  // of the size that is measured; for display
  std::mutex mutex_;
  absl::Status error_;  // guarded by mutex_ while threads run
};

}  // namespace

absl::StatusOr<std::vector<DeviceProfile>> ProfileLayers(const std::vector<ProfiledDevice>& devices,
                                                         const ModelConfig& config,
                                                         const ProfileOptions& options,
                                                         std::vector<DeviceProfile> known) {
  ATOLL_CHECK(options.sequence_length >= 1 && options.sequence_length <= config.LongestSequence());
  ATOLL_CHECK(options.runs >= 1 && options.micro_batch_max >= 1 && !devices.empty());
  return Profiling(devices, config, options, std::move(known)).Run();
}

bool IsComplete(const std::vector<ProfiledDevice>& devices, const ModelConfig& config,
                const ProfileOptions& options, const std::vector<DeviceProfile>& known) {
  return known.size() == devices.size() && Profiling(devices, config, options, known).IsComplete();
}

}  // namespace atl::worker
