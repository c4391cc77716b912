// The holdings of one device: layers with their moments, across plans, and under a plan the memory
// to run it. Used by one thread at a time.

#ifndef ATOLL_WORKER_PIPELINE_DEVICE_H_
#define ATOLL_WORKER_PIPELINE_DEVICE_H_

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/model/stage.h"
#include "worker/pipeline/engine.h"
#include "worker/pipeline/held_state.h"
#include "worker/pipeline/layer_copies.h"
#include "worker/pipeline/role.h"
#include "worker/pipeline/staging.h"

namespace atl::worker {

// The memory of one device's part in steps, but for its layers and stages.
struct RunMemory {
  Tensor output, grad_input;  // of a stage, in flight to another device: [N, the widest's columns]
  Tensor targets;             // of a micro-batch: int32 [1, N]
  Tensor borders;      // of all micro-batches, see Borders: int32; absent where rows have none
  Tensor totals;       // loss by micro-batch: f32 [micro-batches, kLossTotals]
  Tensor pair_totals;  // by answer of a micro-batch's pairs; absent where rows are none
  Tensor router_share, router_totals;  // of a mixture: see StageCall
  Tensor constants;
  Workspace workspace;
};

class Device {
 public:
  Device(std::string name, LocalDevice parts);

  const std::string& name() const { return name_; }
  Backend& compute() { return *parts_.compute; }
  Backend& communication() { return *parts_.communication; }
  Stream& stream() { return *stream_; }
  // Its operations may go on after the call that requested them.
  bool runs_behind_host() const { return !parts_.compute->memory_on_host(); }
  Stream& communication_stream() { return *communication_stream_; }

  // Takes the memory for a role: layers that it does not hold yet, stages, and the rest. Layers
  // that the role does not need become surplus. `part`: of the device's rank. On an error nothing
  // runs, and the layers are as they were, but for new ones that are not written.
  absl::Status Configure(const EngineJob& job, const DeviceRole& role, const TensorPart& part,
                         const std::vector<int32_t>& tensor_split_ratios);
  // Has no part in the plan.
  void Idle();
  bool idle() const { return !role_.has_value(); }

  const DeviceRole& role() const { return *role_; }
  const Model& model() const { return *model_; }
  Stage& stage(int32_t stage) { return *stages_.at(stage); }
  const RunMemory& run() const { return run_; }
  int32_t* host_inputs() { return static_cast<int32_t*>(host_tokens_.data()); }
  int32_t* host_targets() { return host_inputs() + host_input_numbers_; }
  // Numbers of one sequence's borders, and borders of sequences [first, first + sequences).
  int64_t border_numbers() const { return border_numbers_; }
  std::span<int32_t> host_borders(int64_t first, int64_t sequences) {
    return {host_inputs() + host_borders_ + first * border_numbers_,
            static_cast<size_t>(sequences * border_numbers_)};
  }
  Optimizer& optimizer() { return *optimizer_; }

  // Returns the layers in the plan: by layer, then the table's copy. The optimizer's layers, in its
  // order.
  const std::vector<HeldState*>& planned() const { return planned_; }
  HeldState* FindPlanned(int32_t layer, bool table_only);
  std::vector<std::unique_ptr<HeldState>>& held() { return held_; }
  void DropSurplus();
  void DropAll();
  // Waits for what an interrupted step has left on the streams, whatever came of it.
  void Drain();

  // ---- Besides its layers, in memory of their own: one of these two at a time. False: no backend
  // stages its layers, or there is no room; then there is neither. ----
  // A copy of the planned layers' parameters: what is on the stream already comes
  // before it, what follows does not change it.
  absl::StatusOr<bool> TakeSnapshot();
  // Prepares memory for what is to be added to the planned layers' parameters.
  absl::StatusOr<bool> PrepareAddition();
  void ForgetCopies();  // their memory is kept for the next ones
  void DropCopies();
  // While the device computes, but not while the four above are called. For any thread.
  // -1: it is not in the snapshot.
  int64_t SnapshotElements(const LayerShard& shard) const;
  // NOT_FOUND: likewise.
  absl::Status ReadSnapshot(const LayerShard& shard, Range range, std::span<float> to);
  // Writes the addition to all layers and tables here that are of this shard; returns whether there
  // are any.
  absl::StatusOr<bool> WriteAddition(const LayerShard& shard, std::span<const float> values);
  // All of the addition has been written, and waits to be added.
  bool HasAddition() const;
  // Adds it, on the stream, and forgets it.
  void Add();

  absl::Status Read(const HeldState::Values& from, std::span<float> to);
  // All of a tensor of f32 or f64, as floats on the host.
  absl::Status Read(const Tensor& from, std::span<float> to);
  absl::Status Write(const Tensor& to, std::span<const float> from);

  DeviceMemory Memory() const;

 private:
  // A copy of what lies in memory besides the layers.
  struct Copied {
    HeldState* held;
    bool written;
  };

  HeldState* Find(const LayerShard& shard, bool table_only);
  const Copied* FindSnapshot(const LayerShard& shard) const;
  absl::Status TakeLayers(const EngineJob& job, const std::vector<int32_t>& tensor_split_ratios);
  absl::Status TakeLayer(const LayerShard& shard, bool table_only, const LayerLayout& layout,
                         const EngineJob& job);
  void MakeStages(const EngineJob& job);
  int64_t CarveRun(const EngineJob& job, void* memory);
  absl::Status CheckMemory(int64_t run_bytes) const;
  std::string DescribeStages() const;
  absl::Status OutOfMemory(const absl::Status& status, const std::string& what,
                           const char* remedy) const;
  int64_t StageBytes() const;
  bool HasRoomFor(int64_t bytes) const;
  std::vector<Tensor> CopiedTensors() const;

  const std::string name_;
  LocalDevice parts_;
  int64_t limit_bytes_ = 0;  // what the job may use of its memory; 0: no limit
  std::unique_ptr<Stream> stream_, communication_stream_;
  std::unique_ptr<Staging> staging_;  // null: copies are the computing stream's
  std::unique_ptr<Event> reached_;    // of the stream, when staging_ is used
  std::vector<std::unique_ptr<HeldState>> held_;

  // Under a plan.
  std::optional<DeviceRole> role_;
  std::optional<Model> model_;
  std::vector<HeldState*> planned_;
  std::unique_ptr<Optimizer> optimizer_;
  std::map<int32_t, std::unique_ptr<Stage>> stages_;
  Buffer run_memory_, host_tokens_;
  int64_t host_input_numbers_ = 0;  // of these; targets lie behind, and borders from host_borders_
  int64_t host_borders_ = 0, border_numbers_ = 0;
  RunMemory run_;

  std::unique_ptr<LayerCopies> copies_;  // with staging_
  std::vector<Copied> copied_;           // what each of them is of
  bool adds_ = false;                    // they are an addition
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_DEVICE_H_
