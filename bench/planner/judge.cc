#include "bench/planner/judge.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/measure.h"
#include "common/thread_pool.h"
#include "coordinator/planner/planner.h"

namespace atl::bench {
namespace {

// Figures of github.com/eth-easl/sailor, commit cf2c8e3, under sailor/: Planner/simulations/
// profiles_tmp.json, Planner/llm_info.json and providers/multizone_bandwidths_het.json.

constexpr int kLayers = 26;
constexpr int kPerNode = 4;
constexpr double kOutBytes = 2'097'152 * 4.0;

// Microseconds of forward and backward by kind of layer: embedding, first block, block, head.
struct TimedRow {
  int sharing = 1, sequences = 1;
  double us[8] = {};
};
struct GpuType {
  const char* name;
  double memory_gib;
  std::vector<TimedRow> rows;
  // Gbyte/s of one, two and four pairs of devices at once, as polynomials of log2(Mbyte).
  double link[3][3];
};

const std::vector<GpuType>& Gpus() {
  static const auto* gpus =
      new std::vector<GpuType>{{"a100-40",
                                40,
                                {{1, 1, {400, 3, 2786, 5906, 2314, 5909, 4508, 3989}},
                                 {1, 2, {426, 3, 4599, 11627, 4169, 11628, 8140, 7615}},
                                 {1, 4, {508, 3, 8593, 22721, 8204, 22715, 16123, 14861}},
                                 {1, 8, {685, 3, 16615, 44968, 16207, 44958, 32208, 29778}},
                                 {2, 1, {824, 4, 1853, 3388, 1908, 3398, 2604, 2319}},
                                 {2, 2, {880, 3, 2845, 6309, 2624, 6325, 4538, 4282}},
                                 {2, 4, {1019, 3, 5044, 12261, 4744, 12288, 8236, 8097}},
                                 {2, 8, {1438, 3, 9532, 23938, 9277, 23888, 16380, 15521}},
                                 {4, 1, {962, 3, 2057, 2280, 2134, 2278, 2211, 2078}},
                                 {4, 2, {985, 3, 2314, 4003, 2394, 4023, 2918, 3069}},
                                 {4, 4, {1046, 3, 3321, 6848, 3001, 6854, 4449, 4769}},
                                 {4, 8, {1559, 4, 5914, 13353, 5634, 13383, 8446, 8591}}},
                                {{-0.00244142, 0.14086273, 1.11682276},
                                 {-0.00719651, 0.2316853, 2.1127138},
                                 {-0.03667895, 0.4773282, 4.5592610}}},
                               {"v100",
                                16,
                                {{1, 1, {445, 3, 7790, 17197, 7321, 17195, 18638, 30124}},
                                 {1, 2, {527, 3, 14626, 34048, 14086, 33946, 36702, 59358}},
                                 {1, 4, {518, 3, 29296, 70262, 28839, 71714, 74796, 122149}},
                                 {2, 1, {860, 3, 4728, 9520, 4224, 9510, 9378, 15446}},
                                 {2, 2, {1149, 3, 8573, 18727, 8285, 18651, 19210, 31325}},
                                 {2, 4, {1603, 3, 16347, 35791, 16014, 35784, 37029, 60235}},
                                 {2, 8, {2569, 3, 31563, 74554, 30993, 75162, 75150, 129319}},
                                 {4, 1, {934, 3, 3133, 5897, 2968, 5963, 4787, 8250}},
                                 {4, 2, {1167, 3, 5471, 10172, 5193, 10241, 9580, 16181}},
                                 {4, 4, {1743, 3, 9751, 19784, 9555, 19837, 18957, 31639}},
                                 {4, 8, {3173, 3, 19026, 39414, 19003, 39492, 37792, 63490}}},
                                {{0.00440838, 0.04657993, 0.87935747},
                                 {-0.01153211, 0.10561767, 1.77580341},
                                 {-0.0084509, 0.32345408, 3.44693718}}}};
  return *gpus;
}

struct Bytes {
  double parameters = 0, kept = 0;  // floats on each of the devices that share a layer
};
// Embedding, block, head.
const std::map<int, std::vector<Bytes>>& LayerBytes() {
  static const auto* bytes = new std::map<int, std::vector<Bytes>>{
      {1, {{53'608'448, 2'097'152}, {12'596'224, 90'181'632}, {51'513'344, 208'673'536}}},
      {2, {{27'918'336, 2'101'760}, {6'301'184, 48'238'592}, {25'823'232, 105'913'088}}},
      {4, {{15'073'280, 2'101'760}, {3'153'664, 27'398'144}, {12'978'176, 54'532'864}}}};
  return *bytes;
}
const Bytes& OfLayer(int sharing, int l) {
  return LayerBytes().at(sharing)[l == 0 ? 0 : l + 1 == kLayers ? 2 : 1];
}

// Between devices of unlike types the slower one's holds.
double LinkSeconds(double bytes, const GpuType& a, const GpuType& b, int pairs) {
  const GpuType& slower = a.link[0][2] < b.link[0][2] ? a : b;
  const double* c = slower.link[pairs == 1 ? 0 : pairs == 2 ? 1 : 2];
  const double size = std::log2(bytes / 1e6);
  return bytes / 1e9 / ((c[0] * size + c[1]) * size + c[2]);
}

const TimedRow& FindRow(const GpuType& gpu, int sharing, int sequences) {
  return *std::find_if(gpu.rows.begin(), gpu.rows.end(), [&](const TimedRow& row) {
    return row.sharing == sharing && row.sequences == sequences;
  });
}
std::pair<double, double> LayerSeconds(const TimedRow& row, int l) {
  const double* us = row.us + (l == 0 ? 0 : l + 1 == kLayers ? 6 : l == 1 ? 2 : 4);
  return {1e-6 * us[0], 1e-6 * us[1]};
}

plan::Cluster MakeCluster(const std::vector<int>& counts) {
  plan::Cluster cluster;
  for (size_t g = 0; g < counts.size(); ++g) {
    const GpuType& gpu = Gpus()[g];
    plan::DeviceType type = *plan::FindDeviceType(gpu.name);
    type.memory_bytes = static_cast<int64_t>(gpu.memory_gib * 0x1p30);
    cluster.types.push_back(type);
    for (int d = 0; d < counts[g]; ++d) {
      const std::string node = absl::StrCat(gpu.name, "-", d / kPerNode);
      cluster.devices.push_back(
          {absl::StrCat(node, "-", d % kPerNode), node, "site", static_cast<int>(g)});
    }
  }
  // A node's card carries four messages at once; one alone goes at its own rate.
  constexpr double kSize = 32e6;
  const GpuType& slowest = Gpus()[counts.size() - 1];
  cluster.site_to_site[{"site", "site"}] = {0, kSize / LinkSeconds(kSize, slowest, slowest, 4)};
  const int count = static_cast<int>(cluster.devices.size());
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      const plan::Device &from = cluster.devices[a], &to = cluster.devices[b];
      if (from.node == to.node) continue;
      const double seconds = LinkSeconds(kSize, Gpus()[from.type], Gpus()[to.type], 1);
      cluster.measured[{a, b}] = {0, kSize / seconds};
    }
  }
  return cluster;
}

plan::Costs MakeCosts() {
  plan::Model model;
  model.name = "OPT-350M";
  plan::ProfileTable times;
  plan::MemoryTable memory;
  for (int l = 0; l < kLayers; ++l) {
    plan::Layer layer;
    layer.name = std::to_string(l);
    layer.parameters = std::llround(OfLayer(1, l).parameters);
    layer.forward_flops = 2 * OfLayer(1, l).parameters * 2048;
    layer.stash_bytes = std::llround(4 * OfLayer(1, l).kept);
    layer.out_bytes = l + 1 == kLayers ? 0 : std::llround(kOutBytes);
    model.layers.push_back(layer);
    for (const auto& [sharing, bytes] : LayerBytes()) {
      memory[sharing].layers.push_back({OfLayer(sharing, l).parameters / OfLayer(1, l).parameters,
                                        OfLayer(sharing, l).kept / OfLayer(1, l).kept});
    }
  }
  for (const GpuType& gpu : Gpus()) {
    for (const TimedRow& row : gpu.rows) {
      std::vector<plan::LayerTimes>& layers = times[{gpu.name, row.sharing, row.sequences}];
      for (int l = 0; l < kLayers; ++l) {
        const auto [forward_s, backward_s] = LayerSeconds(row, l);
        layers.push_back({forward_s, backward_s, 0, 0});
      }
    }
  }
  plan::CostOptions options{.state_bytes_per_parameter = 24,
                            .reserve = 0,
                            .split_backward = false,
                            .weight_share = 1,
                            .fixed_slots = true};
  options.runtime = {.blocking_messages = true, .context_bytes = 3e9};
  return plan::Costs(model, times, options, memory);
}

// Times a pipeline as Sailor's simulator does: all stages' work and messages once, and those of the
// slowest stage for every further micro-batch. Every message goes over the network.
double PipelineSeconds(const plan::Cluster& cluster, const plan::Replica& replica,
                       int micro_batch) {
  double sum_s = 0, slowest_s = 0;
  const size_t stages = replica.stages.size();
  const auto gpu = [&](size_t s) -> const GpuType& {
    return Gpus()[cluster.devices[replica.stages[s].devices[0]].type];
  };
  const auto message_s = [&](size_t from, size_t to) {
    return LinkSeconds(kOutBytes * micro_batch, gpu(from), gpu(to),
                       static_cast<int>(replica.stages[from].devices.size()));
  };
  for (size_t s = 0; s < stages; ++s) {
    const plan::Stage& stage = replica.stages[s];
    const TimedRow& row = FindRow(gpu(s), static_cast<int>(stage.devices.size()), micro_batch);
    double own_s = 0;
    for (int l = stage.first_layer; l < stage.last_layer; ++l) {
      const auto [forward_s, backward_s] = LayerSeconds(row, l);
      own_s += forward_s + backward_s;
    }
    const double on_s = s + 1 < stages ? message_s(s, s + 1) : 0;
    const double back_s = s > 0 ? message_s(s, s - 1) : 0;
    const bool end = s == 0 || s + 1 == stages;
    own_s += (end && !(s == 0 && stages <= 3) ? 2 : 1) * (on_s + back_s);
    sum_s += own_s;
    slowest_s = std::max(slowest_s, own_s);
  }
  return sum_s + (replica.micro_batches - 1) * slowest_s;
}

// The longest ring over all replicas of a stage's gradients, one message at a time.
double ReduceSeconds(const plan::Cluster& cluster, const plan::Layout& layout) {
  const auto replicas = static_cast<double>(layout.replicas.size());
  if (replicas < 2) return 0;
  double longest_s = 0;
  for (const plan::Replica& replica : layout.replicas) {
    for (const plan::Stage& stage : replica.stages) {
      const GpuType& gpu = Gpus()[cluster.devices[stage.devices[0]].type];
      double bytes = 0;
      for (int l = stage.first_layer; l < stage.last_layer; ++l) {
        bytes += 4 * OfLayer(1, l).parameters / static_cast<double>(stage.devices.size());
      }
      double ring_s = 0;
      for (; bytes > 0; bytes -= 5e8) {
        ring_s += 2 * (replicas - 1) * LinkSeconds(std::min(bytes, 5e8) / replicas, gpu, gpu, 1);
      }
      longest_s = std::max(longest_s, ring_s);
    }
  }
  return longest_s;
}

}  // namespace

void PrintJudged() {
  std::printf("\nOPT-350M, batch 1,024, by Sailor's cost function\n");
  struct Case {
    const char* name;
    std::vector<int> counts;
    double best_s;
  };
  const Case cases[] = {{"32_a100", {32}, 7.71},
                        {"32_a100_32_v100", {32, 32}, 6.93},
                        {"80_a100_240_v100", {80, 240}, 2.75}};
  const plan::Costs costs = MakeCosts();
  ThreadPool pool(2);
  for (const Case& of : cases) {
    const plan::Cluster cluster = MakeCluster(of.counts);
    plan::Job job{
        .global_batch = 1024, .micro_batches = {1, 2, 4, 8}, .tensor_parallel = {1, 2, 4}};
    job.fixed.schedule = "1f1b";
    plan::Options options;
    options.pool = &pool;
    const auto plan = plan::PlanJob(cluster, costs, job, options);
    if (!plan.ok()) {
      std::printf("  %s: %s\n", of.name, plan.status().ToString().c_str());
      continue;
    }
    double longest_s = 0;
    size_t stages = 0;
    for (const plan::Replica& replica : plan->layout.replicas) {
      longest_s = std::max(longest_s, PipelineSeconds(cluster, replica, plan->layout.micro_batch));
      stages = std::max(stages, replica.stages.size());
    }
    const double judged_s = longest_s + ReduceSeconds(cluster, plan->layout);
    std::printf(
        "  %-17s %zu replicas, at most %zu stages, tensor parallel %d, micro-batch %d: %.2f s, "
        "predicted %.2f, best known %.2f\n",
        of.name, plan->layout.replicas.size(), stages, plan->layout.tensor_parallel,
        plan->layout.micro_batch, judged_s, plan->outcome.step_s, of.best_s);
    PrintFigureAtMost(absl::StrCat("judged_", of.name), judged_s / of.best_s, "ratio", 1);
  }
}

}  // namespace atl::bench
