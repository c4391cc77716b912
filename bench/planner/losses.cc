#include "bench/planner/losses.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "bench/measure.h"
#include "common/event_loop.h"
#include "coordinator/island_planner.h"

namespace atl::bench {
namespace {

constexpr int kWorkers = 64;
constexpr int kDevices = 8;  // of each
constexpr size_t kPrepared = 4;

// 64 nodes of eight GPUs of three speeds, and GPT-2 of 24 blocks.
MakePlan MakePlanQuery() {
  MakePlan query;
  query.job = "lm-1";
  query.request = query.number = 1;
  query.busy = true;
  query.spec.name = "lm";
  query.spec.model = {ModelFamily::kGpt2, "", "", 50'257, 1024, 24, 16, 0, 4096};
  query.spec.data.sequence_length = 1024;
  query.spec.inner.batch_sequences = 512;
  query.spec.layout.island = IslandScope::kAll;
  query.facts.model = query.spec.model;
  query.facts.model.key_value_heads = 16;
  query.facts.layers.push_back({"embedding", int64_t{51'281} * 1024});
  for (int b = 0; b < 24; ++b) {
    query.facts.layers.push_back(
        {absl::StrCat("block.", b), int64_t{12} * 1024 * 1024 + 13 * 1024});
  }
  query.facts.layers.push_back({"head", int64_t{50'257} * 1024 + 2048});
  query.facts.train_sequences = query.facts.validation_sequences = 1000;
  const std::string kinds[] = {"fast", "middle", "slow"};
  for (int w = 1; w <= kWorkers; ++w) {
    const std::string name = absl::StrCat("w", w);
    PlanMember& worker = query.members.emplace_back();
    worker.member = {name, 1, absl::StrCat("tcp://", name, ":1"), ""};
    worker.site = "one";
    worker.devices.resize(kDevices, {kinds[w % 3], int64_t{40} << 30, 1});
  }
  return query;
}

DeviceProfile Profile(const MakePlan& query, const std::string& device, int speed) {
  DeviceProfile profile{device,
                        "gpu",
                        "1",
                        ComputeModelDigest(query.facts.model, query.spec.data.sequence_length),
                        {}};
  for (int rows = 1; rows <= 4; rows *= 2) {
    for (const LayerKind kind : {LayerKind::kEmbedding, LayerKind::kBlock, LayerKind::kHead}) {
      LayerCost cost;
      cost.kind = kind;
      cost.micro_batch_sequences = rows;
      const int64_t ns = int64_t{400'000} * (2 + speed) * rows;
      cost.forward_ns = cost.weight_gradient_ns = kind == LayerKind::kEmbedding ? ns / 10 : ns;
      cost.input_gradient_ns = kind == LayerKind::kEmbedding ? 0 : cost.forward_ns;
      cost.optimizer_ns = 100'000;
      cost.stash_bytes = int64_t{20} * 1024 * 1024 * rows;
      cost.output_bytes = int64_t{2} * 1024 * 1024 * rows;
      profile.layers.push_back(cost);
    }
  }
  return profile;
}

void Measure(const MakePlan& query, IslandPlanner& planner) {
  for (int w = 1; w <= kWorkers; ++w) {
    const NodeId& name = query.members[w - 1].member.worker;
    JobPrepared prepared;
    prepared.job = query.job;
    for (int d = 0; d < kDevices; ++d) {
      prepared.profiles.push_back(Profile(query, absl::StrCat(name, "/", d), w % 3));
    }
    planner.OnWorkerMessage(SteadyNow(), {name, 1, prepared});
    LinksMeasured links;
    links.request = 1;
    for (const PlanMember& other : query.members) {
      if (other.member.worker == name) continue;
      links.links.push_back({name, other.member.worker, 20'000, 25e9, 0.01, 20});
    }
    planner.OnWorkerMessage(SteadyNow(), {name, 1, links});
  }
}

// The newest plan that the planner has posted.
class Inbox {
 public:
  void Post(CoordinatorEvent event) {
    const std::lock_guard lock(mutex_);
    at_ = SteadyNow();
    newest_ = std::get<PlanMade>(std::move(event));
    filled_.notify_one();
  }
  // When it was posted.
  Instant Await(int64_t request, PlanMade* made) {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return newest_.request == request; });
    *made = newest_;
    return at_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  PlanMade newest_;
  Instant at_{};
};

double AnswerSeconds(IslandPlanner& planner, Inbox& inbox, const MakePlan& query, PlanMade* made) {
  const Instant begun = SteadyNow();
  planner.Want(begun, query);
  planner.Advance(begun);
  return Seconds(inbox.Await(query.request, made) - begun);
}

}  // namespace

void PrintLosses() {
  std::printf("\nA node of %d is lost, %d devices each\n", kWorkers, kDevices);
  Inbox inbox;
  IslandPlanner planner([&](CoordinatorEvent event) { inbox.Post(std::move(event)); });
  MakePlan query = MakePlanQuery();
  Measure(query, planner);
  PlanMade made;
  const double first_s = AnswerSeconds(planner, inbox, query, &made);
  if (!made.plan.ok()) {
    std::printf("no plan: %s\n", std::string(made.plan.status().message()).c_str());
    return;
  }
  const Instant begun = SteadyNow();
  while (planner.Prepared().first < kPrepared) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const double each_s = Seconds(SteadyNow() - begun) / kPrepared;
  query.members.pop_back();
  ++query.request;
  ++query.number;
  const double prepared_s = AnswerSeconds(planner, inbox, query, &made);
  const double prepared_step_ns = static_cast<double>(made.plan->step_ns);
  query.current = *made.plan;  // beside it there is time for a search
  ++query.request;
  const double full_s = AnswerSeconds(planner, inbox, query, &made);
  std::printf(
      "first plan %.2f s, each prepared one %.2f s, prepared plan there in %.2f ms, "
      "full search %.2f s\n",
      first_s, each_s, 1e3 * prepared_s, full_s);
  PrintFigureAtMost("lost_node_plan_512_devices", 1e3 * prepared_s, "ms", 50);
  PrintFigureAtMost("lost_node_step_over_full_search",
                    prepared_step_ns / static_cast<double>(made.plan->step_ns), "ratio", 1.05);
}

}  // namespace atl::bench
