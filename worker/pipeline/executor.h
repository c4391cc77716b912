// Runs one device's program, step by step, on the device's thread.
//
// Gradients of the step's micro-batches add up (gradient accumulation) before they are reduced.
//
// Operations run in the program's order. Receives wait only where F or B needs what they bring, and
// while they wait, W that the program has later are done, one layer at a time, in the order of
// micro-batches: that never needs more memory, and never changes a result. What leaves for another
// device is sent as soon as it is there. All-reduces run on the device's second thread.
//
// A device may run behind its host (a GPU): then an operation's time says how long it took to hand
// it over, and nothing is made of it. In every 16th step the device notes when it passes the ends
// of operations, and the adapters get work and waiting of these steps. In those that are traced the
// end of each operation is waited for. And W are done early only when the device has come to the
// end of what it was given.
//
// The host waits for its device once a step: at the commit point, for loss and norms. Of pairs,
// where the head is, it waits in each F, too.

#ifndef ATOLL_WORKER_PIPELINE_EXECUTOR_H_
#define ATOLL_WORKER_PIPELINE_EXECUTOR_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/commit_exchange.h"
#include "worker/model/host_reals.h"
#include "worker/pipeline/adapter.h"
#include "worker/pipeline/device.h"
#include "worker/pipeline/gradient_sync.h"
#include "worker/pipeline/group_clock.h"
#include "worker/pipeline/interrupt.h"
#include "worker/pipeline/stream_clock.h"

namespace atl::worker {

struct StepInput {
  StepRequest step;
  bool train = true;                          // else F and loss alone
  bool references = false;                    // F of pairs without the adapter
  int64_t counted_tokens = 0;                 // of the whole island, by the loss
  std::vector<MicroBatchRows> micro_batches;  // of the device's replica
};

struct StepResult {
  DeviceStep device;
  LossSum loss;  // of the whole island
  double gradient_norm = 0;
  bool skipped = false;
  std::vector<double> references;  // of each sequence, where they were to be found
};

// Into how many chunks what leaves a stage is cut: an activation or a gradient, in the fill and the
// drain of a step or between.
struct StageChunks {
  static constexpr int kNumbers = 4;
  int of[kNumbers] = {1, 1, 1, 1};
  static int Index(bool gradient, StepPhase phase) {
    return (gradient ? 2 : 0) + (phase == StepPhase::kSteady ? 1 : 0);
  }
};

// The commit votes that the devices of an island exchange at the commit point: one slot per layer
// and rank (sum of squares), replica (loss, and hits of images) and device (steps taken), each
// written by one device, and of mixtures the routers' totals, to which all stages add. Where
// several devices share a stage, its first one also sets into how many chunks all of them cut its
// messages from the next step on: their collectives are of one chunk's size. An optimizer that
// needs norms of each parameter (UpdateRule::has_norms) has slots for them behind all that, and the
// references of pairs one each behind these, and last the routers' totals.
class CommitTable {
 public:
  static constexpr int kReplicaNumbers = 2;

  // `norm_counts`: by layer, how many norms it has; empty: none. `pairs`: of a full step.
  // `routers`: all their totals.
  CommitTable(const IslandPlan& plan, int32_t layers, const std::vector<int>& norm_counts = {},
              int pairs = 0, int routers = 0);

  int slots() const { return first_router() + routers_; }
  int first_router() const { return first_reference() + pairs_; }
  int first_reference() const { return first_norms_ + parts() * param_norms(layers_); }
  // Returns the index of the norm of what one shard of owners owns of a layer.
  int norm(int32_t layer, int32_t rank, int shard) const {
    return layer * parts() + part(rank, shard);
  }
  // See LossSum.
  int loss(int32_t replica) const { return norms() + kReplicaNumbers * replica; }
  int hits(int32_t replica) const { return loss(replica) + 1; }
  int steps(size_t device) const { return first_device_ + static_cast<int>(device); }
  // The first of StageChunks::kNumbers. REQUIRES: several devices share a stage.
  int chunks(int32_t replica, int32_t stage) const {
    return first_chunks_ + StageChunks::kNumbers * (first_stage_[replica] + stage);
  }
  int norms() const { return layers_ * parts(); }
  // Returns how many norms the layers before this one have.
  int param_norms(int32_t layer) const { return norms_before_.empty() ? 0 : norms_before_[layer]; }
  // Returns the first of the slots of all that add to norm `index` of a layer: parts() of them.
  int first_param_norm(int32_t layer, int index) const {
    return first_norms_ + parts() * (param_norms(layer) + index);
  }
  int part(int32_t rank, int shard) const { return rank * shards_ + shard; }
  int parts() const { return ranks_ * shards_; }
  int replicas() const { return (first_device_ - norms()) / kReplicaNumbers; }
  const std::vector<std::string>& devices() const { return devices_; }
  // Returns the part that a device of devices() has in the exchange.
  const CommitPosition& position(const std::string& device) const;

 private:
  int layers_, ranks_, shards_, first_device_, first_chunks_, first_norms_, pairs_, routers_;
  std::vector<int> norms_before_;  // by layer, and of all at the end
  std::vector<int> first_stage_;   // of each replica among all stages, and how many there are
  std::vector<std::string> devices_;
  std::vector<CommitPosition> positions_;  // by device
};

class Executor {
 public:
  // The device has its role. All outlive the executor.
  Executor(Device& device, const EngineJob& job, const EngineOptions& options,
           const CommitTable& table, Transport& transport,
           const GradientSync::Communicators& communicators, Interrupt& interrupt);

  // An error has been raised as the interrupt, too.
  absl::Status Run(const StepInput& input, StepResult* result);

  // The step that ended when this device had begun to send its part at the commit point and not got
  // the sums of all; 0: none. Until the next Run it can be taken with the sums that others had.
  int64_t waiting_number() const { return waiting_number_; }
  absl::Status TakeStep(const std::vector<double>& sums);
  // The newest step's parameters are on their way from their owners: of what is here, that counts
  // as whole when it is known that they came.
  bool spreads() const { return spreads_; }
  // Waits until they are here, if they are on their way.
  absl::Status FinishSpread();
  // The newest step taken, and with which sums; empty: none yet.
  int64_t taken_number() const { return taken_number_; }
  const std::vector<double>& sums() const { return sums_; }

  // Returns the states of the links by which messages leave this device; they change with every
  // step.
  std::vector<StageLinkState> StageLinks() const;
  std::string PlanWanted() const;

 private:
  // One of the device's stages in the step under way; vectors are by micro-batch.
  struct StageRun {
    const StageRole* role = nullptr;
    Stage* stage = nullptr;
    std::vector<int> slot;              // -1: none
    std::vector<int> weight_layers;     // of W, still to do; -1: B is not done
    std::vector<size_t> weight_op;      // position of W in the program
    int32_t next_weight = 0;            // all before are done
    int32_t forwards_left = 0;          // micro-batches without F
    int32_t forwards_first = 0;         // before the first B; 0: none has begun
    Duration work{0};                   // of this step's F, B and W
    Duration weight_layer{0};           // the last W of one layer that was timed
    std::unique_ptr<GroupClock> group;  // tensor-parallel; null: of one
    // Adapters of what leaves for other devices, by the first of them; null: nothing does.
    std::unique_ptr<Adapter> activations, gradients;
    StageChunks agreed;  // among the devices that share the stage, if there are several
  };
  // A message that is coming, in chunks that its sender chose.
  struct Inbox {
    std::string from;
    MessageTag tag;
    Tensor into;  // of the whole micro-batch
    int64_t rows = 0;
    int chunks = 0;  // 0: not known yet
    int received = 0;
  };
  // A wait that W may fill.
  struct Gap {
    bool begun = false;
    bool patient = true;  // has not waited for a little yet
  };
  // A rank's messages, perhaps to several ranks of the neighbouring stage, or to none.
  struct Outbox {
    std::vector<std::pair<int32_t, std::string>> to;  // rank and device
    MessageTag tag;
    Tensor payload;
    int64_t rows = 0;
    int chunks = 1;
    int sent = 0;
  };

  std::unique_ptr<Adapter> NewAdapter(const StageRole& role, bool gradient) const;
  void Adapt();
  int SelectChunkCount(const StageRun& run, bool gradient) const;
  int32_t FilledMicroBatches() const;
  bool IsSteady() const;
  int Chosen(const StageRun& run, bool gradient, StepPhase phase) const;
  absl::Status EnqueueCommit();
  void NoteSpread();
  void ProposeChunks(std::vector<double>* values) const;
  void AgreeOnChunks(const std::vector<double>& values);
  // A point between operations, as the host saw it, and with points_ of the device's stream.
  struct Moment {
    Instant at;
    int point = -1;
  };
  // A span of result_, whose times the device notes.
  struct Noted {
    size_t span = 0;
    int start = 0, end = 0;     // points of clock_
    std::vector<int> in_group;  // see GroupClock
    bool waited = false;        // before it, for messages in steady state
  };
  void Times();
  Moment Now();
  void Account();
  absl::Status Begin();
  absl::Status BeginRouters();
  absl::Status Do(const PlanOp& op);
  absl::Status Forward(StageRun& run, int32_t m);
  absl::Status ForwardChunk(StageRun& run, int32_t m, int chunk, const Tensor& output);
  absl::Status RunPairs(StageRun& run, int32_t m, int chunk);
  int StartForward(StageRun& run, int32_t m, const Inbox& inbox, int out_chunks, Tensor* output);
  absl::Status Backward(StageRun& run, int32_t m);
  absl::Status BackwardChunk(StageRun& run, int32_t m, int chunk, const Tensor& grad_input);
  void WeightLayer(StageRun& run, int32_t m);
  StageRun* NextWeight();
  void WeightsDone(StageRun& run, int32_t m);
  absl::Status Commit();
  // One exchange of tables under way.
  struct TableExchange {
    bool commits = false;
    Instant deadline;
  };
  // Values <- the sum of all devices', the same bits on each.
  absl::Status ExchangeTable(std::vector<double>* values, bool commits);
  absl::Status ExchangeWithHeads(const TableExchange& exchange, const std::vector<int>& heads,
                                 std::vector<double>* values);
  absl::Status SendTable(const TableExchange& exchange, const std::vector<int>& to,
                         const std::vector<double>& values);
  absl::Status ReceiveTable(const TableExchange& exchange, int from, std::vector<double>* values);
  absl::Status AddNorms(std::vector<double>* values);
  bool IsSkipped(double sum_of_squares) const;
  double SumOfSquares(const std::vector<double>& values) const;
  std::vector<double> SelectPlannedNorms() const;
  absl::Status CheckSteps(const std::vector<double>& values) const;
  void FillTable(const std::vector<double>& sums, std::vector<double>* values) const;
  absl::Status Optimize();
  absl::Status Spread();

  Inbox MakeInbox(const StageRun& run, int32_t m, bool gradient) const;
  Outbox MakeOutbox(const StageRun& run, int32_t m, bool gradient, const Tensor& payload) const;
  MessageTag Tag(int32_t stage, int32_t m, bool gradient) const;
  absl::Status ReceiveUpTo(Inbox& inbox, int64_t row);
  absl::Status Await(Inbox& inbox);
  std::vector<MessageTag> Candidates(const Inbox& inbox) const;
  void WaitFor(const std::vector<MessageTag>& tags, Instant deadline);
  bool FillGap(const std::vector<MessageTag>& tags, Instant deadline, Gap* gap);
  absl::Status SendUpTo(Outbox& outbox, int64_t row);

  StageRun* Local(int32_t stage);
  BatchShape Shape(int32_t m) const;
  int32_t LastMicroBatch() const;
  Tensor StageLink(const Tensor& memory, int32_t layer, int64_t rows) const;
  Tensor Rows(const Tensor& whole, int64_t first, int64_t rows) const;
  const Model& model() const { return device_.model(); }
  Borders GetBorders(int32_t m);
  StageCall Call(const StageRun& run, int32_t m);
  bool computes() const { return !options_.emulation.only; }
  // Ends an operation that began at `start`: waits for the rest of its emulated time. Returns how
  // long it took, or until Account, how long it took to hand it over.
  Duration Done(const Moment& start, const PlanOp& op, int32_t first_layer, int32_t layers,
                int64_t rows);
  void Emulate(int32_t first_layer, int32_t layers, int64_t rows, OpSpan* span);
  void SetChunk(int chunk, int chunks);  // of the newest span

  Device& device_;
  const EngineJob& job_;
  const EngineOptions& options_;
  const CommitTable& table_;
  Transport& transport_;
  const GradientSync::Communicators& communicators_;
  Interrupt& interrupt_;
  GradientSync sync_;

  std::vector<StageRun> runs_;
  const StepInput* input_ = nullptr;
  StepResult* result_ = nullptr;
  HostReals totals_, pair_totals_, router_share_, router_totals_;
  LossSum pairs_;              // of this device's in the step under way
  std::vector<double> leads_;  // references that it has found, by sequence of the step
  Duration waited_{0};         // for messages in this step's steady state
  Duration overslept_{0};      // since the last emulated operation's end, if no wait came after it
  bool gradients_dirty_ = true;
  // In this step an operation's time is the device's; then perhaps by waiting for it, or from
  // points of its stream.
  bool timed_ = true, waits_ = false, points_ = false;
  int64_t trained_ = 0;  // steps begun in which it trains
  StreamClock clock_;
  std::vector<Noted> noted_;
  int received_ = -1;         // the point before the newest message that F or B needs
  bool waited_here_ = false;  // for messages, since the last operation
  bool spreads_ = false;
  std::unique_ptr<Event> reached_;  // the end of what the device had when W were last looked for
  int64_t waiting_number_ = 0, taken_number_ = 0;
  std::vector<double> sums_;  // by the table's slots
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_EXECUTOR_H_
