// While the adapter cuts messages as it finds best, and finds otherwise in the middle of the run,
// layouts train as one device does.

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "tests/island/exactness.h"

namespace atl::worker {
namespace {

constexpr int kLongSteps = 32, kChangeAt = 18;
constexpr int64_t kRows = 4;            // of a micro-batch
constexpr double kFixedSeconds = 3e-3;  // what a stage's F takes for any chunk
constexpr double kRowsSeconds = 3e-3;   // and for the rows of a micro-batch

// Chunks of the messages that a device has sent to another one in a step.
struct StageLink {
  std::string from, to;
  bool gradient = false;
  auto operator<=>(const StageLink&) const = default;
};
using SeenCuts = std::map<StageLink, std::map<int64_t, std::set<int>>>;  // by step

// Says that messages take as long as four F for some steps, and then as good as nothing.
class ScriptedTimingTransport final : public LocalTransport {
 public:
  ScriptedTimingTransport(SeenCuts* cuts, int64_t message_bytes)
      : LocalTransport(int64_t{64} << 20), cuts_(cuts), message_bytes_(message_bytes) {}

  absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                    Backend& backend, Stream& stream, const Tensor& payload) override {
    {
      const int64_t bytes = payload.size() * GetElementSize(payload.dtype);
      const std::lock_guard lock(mutex_);
      (*cuts_)[{from, to, tag.gradient}][tag.step].insert(tag.chunks);
      sent_[{from, to}].push_back({tag.gradient, bytes, GetTransferSeconds(tag, bytes)});
    }
    return LocalTransport::Send(from, to, tag, backend, stream, payload);
  }
  std::vector<Transfer> TakeTransfers(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    return std::exchange(sent_[{from, to}], {});
  }

 private:
  // The second device of a group sees a link that is always quick.
  double GetTransferSeconds(const MessageTag& tag, int64_t bytes) const {
    const bool slow = tag.step <= kChangeAt && tag.rank == 0;
    const double whole = (slow ? 8 : 0.3) * kRowsSeconds;
    return whole * static_cast<double>(bytes) / static_cast<double>(message_bytes_);
  }

  SeenCuts* const cuts_;
  const int64_t message_bytes_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::vector<Transfer>> sent_;  // guarded by mutex_
};

class ScriptedTimingNetwork final : public IslandNetwork {
 public:
  ScriptedTimingNetwork(SeenCuts* cuts, int64_t message_bytes)
      : transport_(cuts, message_bytes), local_(&transport_) {}
  void Begin(const IslandPlan& plan) override { local_.Begin(plan); }
  Transport& transport(const NodeId& worker) override { return local_.transport(worker); }
  CommunicatorFactory& communicators(const NodeId& worker) override {
    return local_.communicators(worker);
  }

 private:
  ScriptedTimingTransport transport_;
  LocalNetwork local_;
};

// It was in several chunks while the link was slow, and later in fewer.
bool Changed(const std::map<int64_t, std::set<int>>& steps) {
  int slow = 1;
  for (const auto& [step, chunks] : steps) {
    if (step <= kChangeAt) slow = std::max(slow, *chunks.rbegin());
    if (step > kChangeAt && *chunks.rbegin() < slow) return true;
  }
  return false;
}

// In one step its messages go in different numbers of chunks: fill and steady state differ.
bool InOneStepUnlike(const std::map<int64_t, std::set<int>>& steps) {
  return std::any_of(steps.begin(), steps.end(),
                     [](const auto& step) { return step.second.size() > 1; });
}

// Devices of one group cut alike: their all-reduces are of one chunk's size.
void CheckGroupsAlike(const IslandPlan& plan, const SeenCuts& cuts) {
  for (const PlanReplica& replica : plan.replicas) {
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      for (const bool gradient : {false, true}) {
        const PlanStage& from = replica.stages[gradient ? s + 1 : s];
        const PlanStage& to = replica.stages[gradient ? s : s + 1];
        for (size_t r = 1; r < from.devices.size(); ++r) {
          CAPTURE(s, gradient, r);
          CHECK(cuts.at({from.devices[r], to.devices[r], gradient}) ==
                cuts.at({from.devices[0], to.devices[0], gradient}));
        }
      }
    }
  }
}

void CheckWhileAdapting(Kind kind, const IslandLayout& layout) {
  CAPTURE(layout.name);
  Trial trial;
  trial.job = MakeJob(kind);
  trial.job.batch_sequences = 0;
  for (const ReplicaSpec& replica : layout.replicas) {
    trial.job.batch_sequences += replica.micro_batches * replica.micro_batch_sequences;
  }
  const Reference reference(trial.job, kLongSteps);
  trial.job.max_chunks = 4;
  trial.plan = MakePlan(layout);
  // The same for every stage, however many blocks it has.
  std::map<std::string, int32_t> layers;
  for (const PlanReplica& replica : trial.plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& device : stage.devices) layers[device] = stage.layers;
    }
  }
  trial.options.emulation.duration = [layers](const std::string& device, LayerKind, PlanOpKind op,
                                              int64_t rows) {
    if (op == PlanOpKind::kWeightGradient) return Duration(0);
    const double seconds =
        kFixedSeconds + kRowsSeconds * static_cast<double>(rows) / static_cast<double>(kRows);
    return FromSeconds(seconds / layers.at(device));
  };
  SeenCuts cuts;
  const int64_t message_bytes = kRows * trial.job.sequence_length * trial.job.model.d_model *
                                GetElementSize(trial.job.compute);
  trial.network = [&](const IslandPlan&) {
    cuts.clear();
    return std::make_unique<ScriptedTimingNetwork>(&cuts, message_bytes);
  };
  for (const bool gradients : {false, true}) {
    if (gradients) CheckGradients(trial, reference);
    if (!gradients) CheckCurve(trial, reference);
    CAPTURE(gradients);
    CheckGroupsAlike(trial.plan, cuts);
    int unlike = 0, changed = 0;
    for (const auto& [stage_link, steps] : cuts) {
      unlike += InOneStepUnlike(steps) ? 1 : 0;
      changed += Changed(steps) ? 1 : 0;
    }
    CHECK(unlike > 0);
    CHECK(changed > 0);
  }
}

TEST_CASE("a pipeline whose messages are cut differently all the time trains as one device does") {
  const IslandLayout layout{.name = "1f1b", .replicas = {{{3, 3}, 6, kRows}}, .workers = 2};
  for (const Kind kind : kFamilies) CheckWhileAdapting(kind, layout);
}

TEST_CASE("and so do three stages and a replica of one") {
  CheckWhileAdapting(Kind::kLlama, {.name = "zb-h1 and a replica",
                                    .replicas = {{{2, 2, 2}, 6, kRows}, {{6}, 2, 2}},
                                    .schedule = "zb-h1"});
}

TEST_CASE("and stages of two devices that see different lines") {
  CheckWhileAdapting(
      Kind::kGpt2,
      {.name = "TP 2", .replicas = {{{3, 3}, 6, kRows}}, .tensor_parallel = 2, .workers = 2});
}

}  // namespace
}  // namespace atl::worker
