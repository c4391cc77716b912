// All devices of one worker under an island's plan: they hold their shards of the layers, and run
// the plan's programs with those of the other workers.
//
// The engine has no network: it gets a Transport for activations and a CommunicatorFactory for
// collectives. Every worker of the island calls the same Configure, Step and Evaluate; layers are
// moved between workers by the owner of the engines, with Held, GetLayer and SetLayer.
//
//   Engine engine("w1", std::move(devices), {});
//   RETURN_IF_ERROR(engine.Configure(job, plan, &transport, &communicators));
//   for (const HeldLayer& held : engine.Held()) ...  // SetLayer what is not written yet
//   auto outcome = engine.Step({.number = 1, .sequences = 32, .learning_rate = 1e-3}, read_tokens);
//
// A step has one commit point: an exchange among all devices of the island that carries gradient
// norm and loss, after every gradient is final. A step that fails before it changes nothing; one
// that fails later may have been taken by some devices and not by others: those that have not can
// still take it before the next Configure (Committed, TakeStep). After a failure or an Interrupt,
// steps are refused until Configure is called again, with the same plan or a new one; layers can be
// read and written all the same.
//
// Threads: one caller, but for Interrupt, GetSnapshot, SetAddition and the queries of their
// elements, which any thread may call. Each device has two threads of its own, one that computes
// and one for gradient all-reduces. Calls block until all devices are done; no wait is longer than
// its deadline, and an error names what did not come and from whom.

#ifndef ATOLL_WORKER_PIPELINE_ENGINE_H_
#define ATOLL_WORKER_PIPELINE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "common/model/tensor_part.h"
#include "common/protocol/control.h"
#include "common/protocol/island_plan.h"
#include "common/protocol/state_stamp.h"
#include "common/status.h"
#include "common/time.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "proto/group.plain.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"
#include "worker/pipeline/emulation.h"
#include "worker/pipeline/interrupt.h"
#include "worker/pipeline/preference.h"
#include "worker/pipeline/spans.h"
#include "worker/pipeline/transport.h"

namespace atl::worker {

// One device of this worker, "worker/index". Both backends work on the same memory; the second one
// is for collectives, which run while the first one computes.
struct LocalDevice {
  int index = 0;
  std::unique_ptr<Backend> compute;
  std::unique_ptr<Backend> communication;
  int64_t memory_bytes = 0;  // Configure refuses what needs more; 0: no limit
  // Set for a device whose memory the host cannot touch: backends for messages out and in, which
  // are copied beside all computing. The engine leaves them alone; its transport works with them.
  std::unique_ptr<Backend> sending, receiving;
  // Set for such a device: the backend for its layers, which are copied from and to the host on
  // streams of its own.
  std::unique_ptr<Backend> staging = nullptr;
};

class CommunicatorFactory {
 public:
  virtual ~CommunicatorFactory() = default;

  // Joins group `name`, made of `devices` in rank order, as device `own`, and waits, bounded, until
  // all are there. Names are unique within a Configure. Called from a thread of the device; all
  // devices join the groups they are in in one global order, so joining may block.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Create(
      const std::string& name, const std::vector<std::string>& devices, const std::string& own) = 0;

  // Ends every Create that waits, and all later ones, with ABORTED; leaves alone what they have
  // made. For any thread. Does nothing where Create never waits.
  virtual void Abort(const std::string& /*reason*/) {}
};

struct EngineJob {
  ModelConfig model;
  DType compute = DType::kFloat32;
  int64_t sequence_length = 0;
  int64_t batch_sequences = 0;  // of a full step of the island
  Documents documents = Documents::kText;
  DpoOptions dpo;  // of pairs
  OptimizerOptions optimizer;
  // Into at most so many chunks (a power of two up to 64) a message between stages may be cut; 1:
  // never, and runs repeat bit for bit.
  int32_t max_chunks = 1;
  int64_t memory_reserve_bytes = 0;  // of each device's memory, left free

  bool operator==(const EngineJob&) const = default;
};

struct EngineOptions {
  // Longest wait for one message; longer under a plan of long steps (StepLimit).
  Duration message_timeout = std::chrono::seconds(60);
  bool keep_gradients = false;  // kGradient is readable after a step; for tests
  Emulation emulation;
  // A hook of tests: called on a device's thread at the commit point, before it takes the commit
  // vote of another device; an error ends its step there.
  std::function<absl::Status(const std::string& device, const std::string& from)> before_vote;
  // Into how many chunks messages between stages are cut, within the job's max_chunks. 0: as the
  // adapter finds best (see adapter.h); results then repeat to rounding only.
  int fixed_chunks = 0;
};

enum class LayerPart : uint8_t { kParameters, kFirstMoment, kSecondMoment, kGradient };

struct StepRequest {
  // Names the step's messages: larger than that of every earlier Step and Evaluate of the island,
  // also when a step is done again.
  int64_t number = 0;
  int64_t sequences = 0;  // of the whole island; at most the job's batch_sequences
  double learning_rate = 0;
  // Waits for the end of every operation, so that its span says when the device did it, also where
  // devices run behind their host.
  bool trace = false;
  // Tokens of all sequences of the step that the loss does not count (common/masked_tokens.h): the
  // loss is the mean over the others, however they are distributed.
  int64_t masked_tokens = 0;
  // A step whose gradient has a larger norm is skipped: it counts as taken, and changes nothing. So
  // is one whose norm or loss is not finite. 0: no limit.
  double norm_limit = 0;
  bool counts_hits = false;  // of tokens, in the loss
  // Results of FindReferences for the step's pairs: the loss is DPO's (preference.h), a mean over
  // pairs, and a hit is a pair whose margin is above 0. None: it is that of tokens.
  std::vector<double> references = {};
};

// Fills in sequences first_row, first_row + 1, ... of the step, ModelConfig::RowNumbers each.
// Called on the thread that called Step.
using SequenceReader = std::function<absl::Status(int64_t first_row, std::span<int32_t> tokens)>;

// Both name the same step.
inline bool IsSameStep(const StepSums& a, const StepSums& b) {
  return a.number != 0 && a.plan == b.plan && a.number == b.number;
}

struct DeviceMemory {
  std::string device;
  int64_t state_bytes = 0;       // parameters, gradients, moments
  int64_t activation_bytes = 0;  // of all micro-batches in flight: taken at Configure
  // Besides them: operations' workspace, outgoing messages, tokens and tables.
  int64_t scratch_bytes = 0;
  int64_t snapshot_bytes = 0;  // of copies of layers in flight from or to the host
  // The plan's prediction for the first three, else their sum; and the snapshot.
  int64_t predicted_bytes = 0;
  int64_t peak_bytes = 0;   // what its backends have counted since surplus layers were dropped
  int64_t limit_bytes = 0;  // that they may take; 0: no limit
};

struct StepOutcome {
  LossSum loss;                             // of the whole island
  double gradient_norm = 0;                 // before clipping
  bool skipped = false;                     // see StepRequest::norm_limit
  std::vector<DeviceStep> devices;          // of this worker
  std::vector<StageLinkState> stage_links;  // out of this worker's devices
  // Why the adapter sends a replan request ("link w1/0 > w2/0 saturated"); empty: it does not.
  std::string plan_wanted;
  std::vector<DeviceMemory> memory;  // of this worker's devices
  // How fast they are: the newest window of each (work_meter.h), without the model's digest.
  std::vector<DeviceWork> work;
  // Times of their gradient all-reduces with other workers' devices: the newest window of each
  // group.
  std::vector<AllReduceTimes> sums;
  std::vector<double> references;  // of FindReferences
};

class CommitTable;
class Device;
struct HeldState;
struct LocalRun;

// engine.cc: plans and steps; engine_state.cc: layers, and steps that were interrupted at their
// commit point.
class Engine {
 public:
  Engine(NodeId worker, std::vector<LocalDevice> devices, EngineOptions options);
  ~Engine();  // interrupts what goes on

  // INVALID_ARGUMENT: a plan or job that cannot be run here, by name.
  absl::Status Check(const EngineJob& job, const IslandPlan& plan) const;
  // Takes on a plan: validates it, takes all memory that steps will need, and joins the groups.
  // Layers that a device of this worker already holds, cut alike, are kept with their moments and
  // steps, from any earlier plan of the same job; those no longer wanted stay readable until
  // DropSurplus. INVALID_ARGUMENT, before anything changed: a plan or job that cannot be run, by
  // name. RESOURCE_EXHAUSTED: a device's memory. Both pointers must stay valid until the next
  // Configure or the end. Interrupts of what went on before are over with it, unless `cancelled`
  // says that they meant this call.
  absl::Status Configure(const EngineJob& job, const IslandPlan& plan, Transport* transport,
                         CommunicatorFactory* communicators,
                         const std::atomic<bool>* cancelled = nullptr);
  const IslandPlan& plan() const { return plan_; }

  std::vector<HeldLayer> Held() const;
  void DropSurplus();

  // These elements of one part of a shard, in as many floats, from any local copy that has them
  // all: of moments and gradients, an owner's. NOT_FOUND: no local device holds them.
  absl::Status GetLayer(const LayerShard& shard, LayerPart part, Range range, std::span<float> out);
  // All elements of one part, of which every local copy takes those that it has. NOT_FOUND: there
  // is none.
  absl::Status SetLayer(const LayerShard& shard, LayerPart part, std::span<const float> values);
  // Writes one layer's state at this step: all parts of all elements, but for moments that are
  // owned elsewhere. It counts as written only when it is whole.
  absl::Status SetState(const LayerShard& shard, int64_t optimizer_step,
                        const std::map<LayerPart, std::span<const float>>& parts);

  // The shards in the plan whose frozen tensors are not here yet, by layer; to be set before a
  // step, from the whole layer's. Later plans keep them with the layer.
  std::vector<LayerShard> ListLackingFrozen() const;
  absl::Status SetFrozen(const LayerShard& shard, const FrozenWeights& weights);

  // ---- What crosses the bus during steps. A snapshot or an addition, each in place of what was
  // there before; they go with the next Configure. False, and there is neither: the host can touch
  // a device's memory, so that GetLayer and SetLayer are as quick, or a device has no room besides
  // what it may need otherwise. ----
  // Copies the parameters of all layers in the plan, as they are now, on the devices: returns
  // before that is done, and what follows does not change the copy.
  absl::StatusOr<bool> TakeSnapshot();
  // One shard of it. For any thread: a Step may go on meanwhile, and is not delayed. NOT_FOUND:
  // there is no snapshot, or this is not in it.
  absl::StatusOr<int64_t> SnapshotElements(const LayerShard& shard);
  absl::Status GetSnapshot(const LayerShard& shard, Range range, std::span<float> out);
  // Something shall be added to the parameters of all layers in the plan, at once.
  absl::StatusOr<bool> PrepareAddition();
  // One shard of it, on all devices that hold the shard. For any thread: a Step may go on.
  // NOT_FOUND: nothing was prepared, or no device holds it.
  absl::Status SetAddition(const LayerShard& shard, std::span<const float> values);
  // Parameters += addition, as part of the devices' work. FAILED_PRECONDITION, and nothing has
  // changed: there is none, or not all of its shards were set.
  absl::Status Add();

  // Sets the number of optimizer steps of all layers in the plan; 0 also zeroes their moments.
  absl::Status SetOptimizerSteps(int64_t steps);
  int64_t optimizer_steps() const;  // of the layers in the plan; -1 if they differ

  // One optimizer step. REQUIRES: every held layer is written, and all have the same step.
  absl::StatusOr<StepOutcome> Step(const StepRequest& request, const SequenceReader& read);
  // The loss alone, over up to batch_sequences sequences; `learning_rate` is not looked at.
  absl::StatusOr<LossSum> Evaluate(const StepRequest& request, const SequenceReader& read);
  // How much the log-probability of each pair's chosen answer is above that of the rejected one,
  // in nats, by the model without its adapter. The same on all workers; none where the plan has no
  // device of this one. REQUIRES: a job of pairs.
  absl::StatusOr<std::vector<double>> FindReferences(const StepRequest& request,
                                                     const SequenceReader& read);

  // Returns the commit state of a step that has ended in an error, and of the one before.
  CommitState Committed() const;
  // Devices that wait for these sums take the step, though it has been interrupted; OK if none
  // does.
  absl::Status TakeStep(const StepSums& step);
  bool has_skipped() const;  // the newest step that its devices have taken (StepOutcome::skipped)

  // Ends the Step, Evaluate or Configure that goes on, if any, with ABORTED and this reason, on all
  // devices that it can reach (through transport and communicators).
  void Interrupt(const std::string& reason) { interrupt_.Raise(absl::AbortedError(reason)); }

  std::vector<DeviceMemory> Memory() const;
  // All of them, whatever the plan gives them.
  int devices() const { return static_cast<int>(runs_.size()); }

 private:
  LocalRun* Find(const std::string& device) const;
  void Stop();
  // Until the newest step's parameters are here, if they are on their way from their owners.
  absl::Status FinishSpread() const;
  // Takes from the copies of all devices, or of none.
  absl::StatusOr<bool> OnCopies(const std::function<absl::StatusOr<bool>(Device&)>& take);
  void DropCopies();
  absl::Status NoSnapshot(const LayerShard& shard) const;
  absl::Status MakeDevices();
  absl::Status ShareLayers();
  absl::Status Copy(LocalRun& from, const HeldState& source, LocalRun& to, HeldState& target);
  absl::Status Join(CommunicatorFactory& communicators);
  absl::Status JoinGroups(LocalRun& run, CommunicatorFactory& communicators);
  void NoteTaken();
  absl::Status CheckReady(const StepRequest& request) const;
  absl::Status ReadTokens(const StepRequest& request, const SequenceReader& read, bool train);
  void FillTokens(LocalRun& run, std::span<const int32_t> tokens, int64_t rows, bool train);
  absl::StatusOr<StepOutcome> Run(const StepRequest& request, const SequenceReader& read,
                                  bool train, bool references = false);
  // Runs it on every device that the plan names, each on its thread, and waits.
  template <typename Function>
  absl::Status OnDevices(const Function& function);

  const NodeId worker_;
  const EngineOptions options_;
  std::vector<std::unique_ptr<LocalRun>> runs_;
  worker::Interrupt interrupt_;

  std::optional<EngineJob> job_;
  IslandPlan plan_;
  EngineOptions in_force_;  // options_, with the plan's deadlines
  std::unique_ptr<CommitTable> table_;
  Transport* transport_ = nullptr;
  bool ready_ = false;
  int64_t last_number_ = 0;
  StepSums taken_;
  std::vector<int32_t> tokens_;
  std::mutex copies_mutex_;  // of what the devices have besides their layers
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_ENGINE_H_
