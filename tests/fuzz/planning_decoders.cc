// Decoders of what plans are made from: requests of islands with what workers reported, layouts
// that jobs bring along, and described clusters. An input's bytes are choices; where they have
// ended, the ordinary one is chosen, so an empty input is planned. Planned, shown and simulated as
// the product does.

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "cli/pictures/plan_tables.h"
#include "common/check.h"
#include "common/model/config.h"
#include "coordinator/plan_io/cluster_file.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/plan_io/profile_file.h"
#include "coordinator/planning/island_scope.h"
#include "coordinator/planning/planning.h"
#include "coordinator/planning/predicted_step.h"
#include "tests/fuzz/decoder.h"

namespace atl::fuzz {
namespace {

constexpr int kRandomInputs = 120;
constexpr int kPollsMax = 10;  // of a search, before it ends with what it has

class Choices {
 public:
  explicit Choices(std::string_view bytes) : input_(bytes) {}

  // Chooses one of so many; the first one where the input has ended.
  size_t Below(size_t count) { return input_.Take<uint8_t>() % count; }
  bool Rarely() { return Below(8) == 7; }
  // The first one is the ordinary one, and as frequent as all others together.
  template <class T>
  T Of(std::initializer_list<T> values) {
    const size_t other = Below(2 * values.size());
    return *(values.begin() + (other < values.size() ? 0 : other - values.size()));
  }
  int64_t Extreme(int64_t ordinary) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    if (!Rarely()) return ordinary;
    return Of<int64_t>({0, 1, -1, kMost, -kMost - 1, int64_t{1} << 50, int64_t{1} << 31});
  }
  double Extreme(double ordinary) {
    if (!Rarely()) return ordinary;
    return Of<double>({0, -1, 1, NAN, INFINITY, -INFINITY, 1e300, 1e-300, 1e18});
  }

 private:
  Input input_;
};

std::function<bool()> StopSoon() {
  return [polls = 0]() mutable { return ++polls > kPollsMax; };
}

// ----------------------------------------------------------------------------------- requests

constexpr int kBlocks = 4;

DeviceProfile MakeProfile(Choices& choices, const std::string& device) {
  DeviceProfile profile{device, "cpu", "1", 7, {}};
  for (const LayerKind kind : {LayerKind::kEmbedding, LayerKind::kBlock, LayerKind::kHead}) {
    if (choices.Rarely()) continue;
    LayerCost& cost = profile.layers.emplace_back();
    cost.kind = kind;
    cost.micro_batch_sequences = static_cast<int32_t>(choices.Extreme(int64_t{1}));
    cost.tensor_parallel = static_cast<int32_t>(choices.Extreme(int64_t{1}));
    cost.forward_ns = choices.Extreme(int64_t{1'000'000});
    cost.input_gradient_ns = choices.Extreme(cost.forward_ns);
    cost.weight_gradient_ns = choices.Extreme(cost.forward_ns);
    cost.optimizer_ns = choices.Extreme(int64_t{10'000});
    cost.stash_bytes = choices.Extreme(int64_t{1} << 20);
    cost.output_bytes = choices.Extreme(int64_t{1} << 16);
    cost.workspace_bytes = choices.Extreme(int64_t{1} << 16);
    cost.parameter_bytes = choices.Extreme(int64_t{1} << 20);
  }
  return profile;
}

std::string WorkerName(size_t number) { return absl::StrCat("w", number); }

PlanMember MakeMember(Choices& choices, size_t number) {
  PlanMember member;
  const std::string name = WorkerName(choices.Rarely() ? choices.Below(3) : number);
  member.member = {name, 1, absl::StrCat("tcp://", name, ":1"), ""};
  member.site = choices.Of<std::string>({"", "a", "b"});
  for (size_t i = choices.Of<size_t>({1, 0, 2, 3, 4}); i > 0; --i) {
    DeviceInfo& device = member.devices.emplace_back();
    device.kind = choices.Of<std::string>({"cpu", "NVIDIA A100-SXM4-80GB", "", "other"});
    device.memory_bytes = choices.Extreme(int64_t{1} << 30);
    device.threads = static_cast<int32_t>(choices.Extreme(int64_t{1}));
    device.price_per_hour = choices.Extreme(0.0);
    device.egress_price_per_gb = choices.Extreme(0.0);
    if (choices.Rarely()) continue;
    member.profiles.push_back(
        MakeProfile(choices, absl::StrCat(name, "/", member.devices.size() - 1)));
  }
  return member;
}

void SetModel(Choices& choices, PlanRequest& request) {
  ModelSpec& model = request.facts.model;
  model.family = ModelFamily::kGpt2;
  model.vocabulary = 256;
  model.hidden = 64;
  model.layers = kBlocks;
  model.heads = model.key_value_heads = choices.Of<int64_t>({4, 1, 2});
  model.feed_forward = 256;
  request.spec.model = model;
  request.facts.layers.push_back({"embedding", 256 * 64 + 64 * 64});
  for (int b = 0; b < kBlocks; ++b) {
    request.facts.layers.push_back({absl::StrCat("block", b), 12 * 64 * 64 + 13 * 64});
  }
  if (!choices.Rarely()) request.facts.layers.push_back({"head", 256 * 64 + 128});
  request.facts.train_sequences = request.facts.validation_sequences = 1000;
}

void SetLayout(Choices& choices, LayoutSpec& layout) {
  layout.stages = choices.Of<int64_t>({0, 1, 2, 3, -1, 1 << 20});
  layout.replicas = choices.Of<int64_t>({0, 1, 2, 3, -1, 1 << 20});
  layout.tensor_parallel = choices.Of<int64_t>({0, 1, 2, 4, -1, 1 << 20});
  layout.schedule = choices.Of<std::string>(
      {"", "1f1b", "interleaved", "zb-v", "v-min", "zb-h2", "gpipe", "compact-zb", "none"});
  layout.memory_reserve_bytes = choices.Extreme(int64_t{0});
  layout.recompute = choices.Of({Recompute::kAuto, Recompute::kAll, Recompute::kNone});
  layout.optimizer_copies = choices.Of<int64_t>({0, 1, 2, -1});
  layout.workers_per_island = choices.Of<int64_t>({0, 1, 2});
  if (choices.Rarely()) layout.exclude = {choices.Of<std::string>({"w0", "w1/0", "none"})};
  if (choices.Rarely()) layout.sites = {choices.Of<std::string>({"a", "none"})};
  if (choices.Rarely()) layout.tensor_split_ratios = {1, choices.Of<int64_t>({2, 0, -1})};
  if (choices.Rarely()) layout.link_limits = {{"a", "b", choices.Extreme(1e12)}};
  layout.deadline_hours = choices.Of<double>({0, 1e-9, 1e9});
  layout.budget = choices.Of<double>({0, 1e-9, 1e9});
}

PlanRequest MakeRequest(Choices& choices) {
  PlanRequest request;
  request.spec.name = "fuzzed";
  request.spec.data.sequence_length = choices.Of<int64_t>({64, 1, 1024});
  request.spec.inner.batch_sequences = choices.Of<int64_t>({8, 1, 7, 64, 0, 1 << 20});
  request.spec.inner.micro_batch_sequences = choices.Of<int64_t>({0, 1, 2, 3});
  SetModel(choices, request);
  SetLayout(choices, request.spec.layout);
  const size_t members = choices.Of<size_t>({2, 1, 3, 4, 0});
  for (size_t m = 0; m < members; ++m) request.members.push_back(MakeMember(choices, m));
  for (size_t a = 0; a < members; ++a) {
    for (size_t b = 0; b < members; ++b) {
      if (a == b || choices.Rarely()) continue;
      LinkProfile link{WorkerName(a),        WorkerName(b), choices.Extreme(int64_t{100'000}),
                       choices.Extreme(1e9), 0.01,          20};
      if (choices.Rarely()) link.times.push_back({choices.Extreme(int64_t{1'000'000}), 2'000'000});
      request.links.push_back(std::move(link));
    }
  }
  request.number = choices.Of<int64_t>({1, 2});
  request.improvements = 1;
  request.stop = StopSoon();
  return request;
}

void Use(const PlanRequest& request, const IslandPlan& plan) {
  const auto layers = static_cast<int32_t>(request.facts.layers.size());
  const absl::Status valid = Validate(plan, layers, request.spec.inner.batch_sequences);
  ATOLL_CHECK(valid.ok(), valid.ToString());
  ATOLL_CHECK(plan.step_ns >= 0 && plan.bound_ns <= plan.step_ns, plan.step_ns);
  ATOLL_CHECK(EstimateStepNs(request, plan) >= 0);
  (void)PredictStep(request, plan);
}

bool AcceptsRequest(std::string_view bytes) {
  Choices choices(bytes);
  PlanRequest request = MakeRequest(choices);
  const auto plan = PlanIsland(request);
  if (plan.ok()) Use(request, *plan);
  request.stop = StopSoon();
  (void)ChooseIslandScope(request);
  (void)ExcludeUnreachable(request);
  return plan.ok();
}

std::vector<std::string> EmptySeed() { return {std::string(64, '\0')}; }

const Registration kRequest({"plan_request", EmptySeed, AcceptsRequest, kRandomInputs});

// ------------------------------------------------------------------------------ pinned layouts

// Stages of a few layers on devices of two workers, sensible or not.
std::string MakeLayout(Choices& choices) {
  std::string replicas;
  const size_t count = choices.Of<size_t>({1, 2, 3});
  const size_t micro_batch = choices.Of<size_t>({2, 1, 0, 3});
  for (size_t r = 0; r < count; ++r) {
    std::string stages;
    int layer = 0;
    const int most = choices.Of<int>({4, 1, 2, 3, 6});
    for (int s = 0; s < most; ++s) {
      const bool last = s + 1 == most;
      const int layers = last ? kBlocks + 2 - layer : choices.Of<int>({1, 2, 0, 3});
      std::string devices;
      for (size_t d = choices.Of<size_t>({1, 2, 0}); d > 0; --d) {
        const size_t worker = (choices.Below(2) + static_cast<size_t>(s)) % 2;
        absl::StrAppend(&devices, devices.empty() ? "" : ", ", "\"", WorkerName(worker), "/",
                        choices.Of<size_t>({r, 0, 1, 2, 9}), "\"");
      }
      absl::StrAppend(&stages, stages.empty() ? "" : ", ", "{\"first_layer\": ", layer,
                      ", \"layers\": ", layers, ", \"devices\": [", devices, "]",
                      choices.Rarely() ? ", \"recomputed_layers\": [1]" : "", "}");
      layer += layers;
    }
    absl::StrAppend(
        &replicas, replicas.empty() ? "" : ", ", "{\"stages\": [", stages,
        "], \"micro_batch_sequences\": ", micro_batch, ", \"micro_batches\": ",
        choices.Of<int64_t>({static_cast<int64_t>(8 / count / std::max<size_t>(1, micro_batch)), 1,
                             3, 0, -1, 1 << 20}),
        "}");
  }
  const std::string ratios = choices.Rarely() ? ", \"tensor_split_ratios\": [1, 2]" : "";
  return absl::StrCat("{\"islands\": [{\"replicas\": [", replicas, "]", ratios, "}]}");
}

bool AcceptsPinned(std::string_view bytes) {
  Choices choices(bytes);
  PlanRequest request;
  request.spec.name = "pinned";
  request.spec.data.sequence_length = 64;
  request.spec.inner.batch_sequences = 8;
  SetModel(choices, request);
  const std::string layout = MakeLayout(choices);
  for (size_t m = 0; m < 2; ++m) {
    PlanMember& member = request.members.emplace_back();
    member.member = {WorkerName(m), 1, absl::StrCat("tcp://", WorkerName(m), ":1"), ""};
    member.devices.assign(3, {"cpu", choices.Of<int64_t>({1 << 30, 1 << 20}), 1});
  }
  const std::vector<std::string> schedules = sim::ScheduleNames();
  const size_t schedule = choices.Below(schedules.size() + 1);
  if (schedule > 0) request.spec.layout.schedule = schedules[schedule - 1];
  const auto pinned = PinnedJson(layout, "plan.json");
  request.spec.layout.plan = pinned.ok() ? *pinned : layout;
  const auto plan = PlanIsland(request);
  if (plan.ok()) Use(request, *plan);
  // Plays the layout as `simulate --layout` does.
  const auto input = MakePlanningInput(request);
  if (!input.ok()) return false;
  const auto scope = PlanScope(request, *input, IslandScope::kAll, ToIslandOptions(request.spec));
  if (scope.ok()) {
    (void)cli::RenderTimes(scope->cluster, scope->choice.first());
    (void)ToJson(ToMessage(scope->cluster, input->costs, scope->choice.islands, 64));
  }
  return plan.ok();
}

std::vector<std::string> PinnedSeeds() { return {std::string(96, '\0')}; }

const Registration kPinned({"pinned_layout", PinnedSeeds, AcceptsPinned, 3 * kRandomInputs});

// -------------------------------------------------------------------------- described clusters

v1::Edge MakeEdge(Choices& choices) {
  v1::Edge edge;
  edge.set_latency_ns(choices.Extreme(int64_t{1'000'000}));
  edge.set_bandwidth_bytes_per_s(choices.Extreme(1e9));
  if (choices.Rarely()) edge.set_trunk(choices.Of<std::string>({"t", "none"}));
  if (choices.Rarely()) edge.set_conflict("c");
  edge.set_price_per_gb(choices.Extreme(0.0));
  for (size_t i = choices.Of<size_t>({0, 1, 2}); i > 0; --i) {
    v1::BandwidthChange* change = edge.add_changes();
    change->set_time_ns(choices.Extreme(static_cast<int64_t>(1'000'000 * (3 - i))));
    change->set_factor(choices.Extreme(0.5));
  }
  for (size_t i = choices.Of<size_t>({0, 1, 3}); i > 0; --i) {
    v1::MessageTime* time = edge.add_times();
    time->set_bytes(choices.Extreme(static_cast<int64_t>(1'000'000 * (4 - i))));
    time->set_time_ns(choices.Extreme(static_cast<int64_t>(3'000'000 * (4 - i))));
  }
  return edge;
}

v1::ClusterSpec MakeCluster(Choices& choices) {
  v1::ClusterSpec spec;
  const size_t devices = choices.Of<size_t>({4, 1, 2, 3, 6, 0});
  for (size_t d = 0; d < devices; ++d) {
    v1::Device* device = spec.add_devices();
    device->set_id(absl::StrCat("d", choices.Rarely() ? choices.Below(2) : d));
    device->set_type(choices.Of<std::string>({"a100-80", "rtx3090", "mine", "t4", "mi250", ""}));
    device->set_node(choices.Of<std::string>({"n0", "n1", "", "n2"}));
    device->set_site(choices.Of<std::string>({"a", "b", "", "a\x01"}));
    device->set_memory_bytes(choices.Extreme(int64_t{0}));
    device->set_price_per_hour(choices.Extreme(0.0));
    device->set_egress_price_per_gb(choices.Extreme(0.0));
  }
  if (choices.Below(2) == 1) {
    v1::DeviceType* type = spec.add_types();
    type->set_name(choices.Of<std::string>({"mine", "a100-80", ""}));
    type->set_memory_bytes(choices.Extreme(int64_t{1} << 34));
    type->set_flops_per_s(choices.Extreme(1e14));
    type->set_memory_bytes_per_s(choices.Extreme(1e12));
    type->set_link_bytes_per_s(choices.Extreme(1e10));
  }
  if (choices.Below(2) == 1) {
    v1::Trunk* trunk = spec.add_trunks();
    trunk->set_name("t");
    trunk->set_bandwidth_bytes_per_s(choices.Extreme(1e9));
  }
  for (const auto& [from, to] : {std::pair("a", "b"), std::pair("b", "a"), std::pair("a", "a"),
                                 std::pair("d0", "d1"), std::pair("d1", "d0")}) {
    if (choices.Of<int>({0, 1}) == 0) continue;
    v1::Link* link = spec.add_links();
    link->set_from(from);
    link->set_to(to);
    link->set_bytes_per_day(choices.Extreme(0.0));
    for (size_t e = choices.Of<size_t>({1, 2, 0, 17}); e > 0; --e) {
      *link->add_edges() = MakeEdge(choices);
    }
  }
  return spec;
}

v1::ClusterProfile MakeClusterProfile(Choices& choices, const v1::ClusterSpec& cluster,
                                      int layers) {
  v1::ClusterProfile profile;
  *profile.mutable_cluster() = cluster;
  for (int l = 0; l < layers; ++l) {
    if (choices.Rarely()) continue;
    v1::LayerTime* time = profile.add_times();
    time->set_type("mine");
    time->set_tensor_parallel(static_cast<int32_t>(choices.Extreme(int64_t{1})));
    time->set_micro_batch_sequences(static_cast<int32_t>(choices.Extreme(int64_t{1})));
    time->set_layer(l);
    time->set_forward_ns(choices.Extreme(int64_t{1'000'000}));
    time->set_input_gradient_ns(choices.Extreme(int64_t{1'000'000}));
    time->set_weight_gradient_ns(choices.Extreme(int64_t{1'000'000}));
    time->set_optimizer_ns(choices.Extreme(int64_t{1'000}));
    v1::LayerMemory* memory = profile.add_memory();
    memory->set_layer(static_cast<int32_t>(choices.Extreme(int64_t{l})));
    memory->set_tensor_parallel(static_cast<int32_t>(choices.Extreme(int64_t{1})));
    memory->set_micro_batch_sequences(static_cast<int32_t>(choices.Extreme(int64_t{1})));
    memory->set_parameter_bytes(choices.Extreme(int64_t{1} << 20));
    memory->set_stash_bytes(choices.Extreme(int64_t{1} << 20));
    memory->set_output_bytes(choices.Extreme(int64_t{1} << 16));
    memory->set_workspace_bytes(choices.Extreme(int64_t{1} << 10));
  }
  return profile;
}

// A small model, or one of sizes at the ends of what is allowed.
JobSpec MakeJob(Choices& choices) {
  JobSpec spec;
  spec.name = "described";
  ModelSpec& model = spec.model;
  model.family = choices.Of({ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kBert});
  model.vocabulary = choices.Of<int64_t>({256, kMaxVocab});
  model.hidden = choices.Of<int64_t>({64, 4096, kMaxWidth});
  model.layers = choices.Of<int64_t>({kBlocks, 1, 40});
  model.heads = choices.Of<int64_t>({4, 1, 16});
  model.key_value_heads = choices.Of<int64_t>({0, 1});
  spec.data.sequence_length = choices.Of<int64_t>({64, 4096, kMaxPositions});
  spec.inner.batch_sequences = choices.Of<int64_t>({8, 1, 7, 1 << 20});
  spec.inner.micro_batch_sequences = choices.Of<int64_t>({0, 1, 7, 1 << 20});
  SetLayout(choices, spec.layout);
  return spec;
}

bool AcceptsDescribed(std::string_view bytes) {
  Choices choices(bytes);
  const JobSpec spec = MakeJob(choices);
  const v1::ClusterSpec cluster = MakeCluster(choices);
  const auto config = ModelConfigFromSpec(spec.model, spec.data.sequence_length);
  if (!config.ok()) return false;
  auto input = MakeJobInput(spec, *config);
  if (!input.ok()) return false;
  plan::Model model = input->costs.model();
  plan::CostOptions options = input->costs.options();
  absl::StatusOr<Profiled> profiled = absl::UnknownError("");
  const auto layers = static_cast<int>(model.layers.size());
  switch (choices.Below(3)) {
    case 0: {
      const auto made = ToCluster(cluster);
      if (!made.ok()) return false;
      profiled = Profiled{*made, {}, {}};
      break;
    }
    case 1:
      profiled =
          ToProfiled(cluster, MakeClusterProfile(choices, cluster, layers), &model, &options);
      break;
    default:
      profiled = ToProfiled(MakeClusterProfile(choices, cluster, layers), &model, &options);
  }
  if (!profiled.ok()) return false;
  if (!SetCluster(spec, profiled->cluster, *input).ok()) return false;
  input->costs = plan::Costs(model, profiled->table, options, profiled->memory);
  PlanRequest request;
  request.spec = spec;
  request.improvements = 1;
  request.stop = StopSoon();
  const auto scope =
      choices.Of({IslandScope::kAuto, IslandScope::kAll, IslandScope::kSite, IslandScope::kWorker});
  const auto plans = PlanScope(request, *input, scope, ToIslandOptions(spec));
  if (!plans.ok()) return false;
  (void)ToJson(ToMessage(plans->cluster, input->costs, plans->choice, 64));
  if (plans->choice.use_islands) return true;
  const plan::Plan& single = plans->choice.first();
  ATOLL_CHECK(std::isfinite(single.outcome.step_s) && single.outcome.step_s >= 0);
  (void)cli::RenderIslands(plans->choice.islands);
  (void)cli::RenderTimes(plans->cluster, single);
  (void)cli::RenderTrace(plans->choice.islands);
  (void)cli::RenderSvg(plans->choice.islands);
  return true;
}

std::vector<std::string> DescribedSeeds() { return {std::string(128, '\0')}; }

const Registration kDescribed({"described_cluster", DescribedSeeds, AcceptsDescribed,
                               kRandomInputs});

}  // namespace
}  // namespace atl::fuzz
