// Figures of the plans that others ran, with their sources.

#include <algorithm>
#include <cmath>
#include <utility>

#include "bench/planner/measured.h"

namespace atl::bench {
namespace {

// A layer on each of the devices that share it, as floats.
struct Floats {
  double parameters = 0, kept = 0, sent = 0;  // kept: by F, its result included
};
struct Times {
  double forward_us = 0, backward_us = 0;
};
// Times of a micro-batch by kind of layer: blocks but for the first are alike.
struct TimedSize {
  int sequences = 1;
  Times embedding, first, block, head;
  double update_us = 0;  // the optimizer's, of a model with one block
};

constexpr double kFloatBytes = 4;
constexpr int kSharing = 4;  // devices of a node, by tensor parallelism
// Single precision: weight, gradient, two moments, and the buffer in which the gradient is reduced.
constexpr double kStateBytes = 20;

const Floats& OfLayer(const std::vector<Floats>& kinds, int l, int layers) {
  return kinds[l == 0 ? 0 : l + 1 == layers ? 2 : 1];
}

void AddMemory(const std::vector<Floats>& kinds, int layers, int sharing, MeasuredSet& set) {
  for (int l = 0; l < layers; ++l) {
    const Floats& floats = OfLayer(kinds, l, layers);
    const bool head = l + 1 == layers;
    v1::LayerMemory& row = *set.profile.add_memory();
    row.set_layer(l);
    row.set_tensor_parallel(sharing);
    row.set_micro_batch_sequences(1);
    row.set_parameter_bytes(std::llround(floats.parameters * kStateBytes));
    // The row's reader adds a layer's input and its gradient, of the size of its output.
    const double beside = head ? 0 : 2 * floats.sent;
    row.set_stash_bytes(std::llround(std::max(0.0, floats.kept - beside) * kFloatBytes));
    row.set_output_bytes(head ? 0 : std::llround(floats.sent * kFloatBytes));
  }
}

void AddTimes(const TimedSize& size, const std::vector<Floats>& alone, int layers,
              MeasuredSet& set) {
  const double timed = alone[0].parameters + alone[1].parameters + alone[2].parameters;
  for (int l = 0; l < layers; ++l) {
    const Times& times = l == 0            ? size.embedding
                         : l + 1 == layers ? size.head
                         : l == 1          ? size.first
                                           : size.block;
    v1::LayerTime& row = *set.profile.add_times();
    row.set_type("gh200");
    row.set_tensor_parallel(kSharing);
    row.set_micro_batch_sequences(size.sequences);
    row.set_layer(l);
    row.set_forward_ns(std::llround(1e3 * times.forward_us));
    row.set_input_gradient_ns(std::llround(1e3 * times.backward_us));
    row.set_optimizer_ns(
        std::llround(1e3 * size.update_us * OfLayer(alone, l, layers).parameters / timed));
  }
}

MeasuredSet MakeSet(const std::string& name, int layers, double tokens,
                    const std::vector<Floats>& alone, const std::vector<Floats>& shared,
                    const std::vector<TimedSize>& sizes) {
  MeasuredSet set;
  set.name = name;
  set.devices_per_node = kSharing;
  set.model.name = name;
  for (int l = 0; l < layers; ++l) {
    const Floats& floats = OfLayer(alone, l, layers);
    plan::Layer layer;
    layer.name = std::to_string(l);
    layer.parameters = std::llround(floats.parameters);
    layer.forward_flops = 2 * floats.parameters * tokens;
    set.model.layers.push_back(layer);
  }
  for (const TimedSize& size : sizes) AddTimes(size, alone, layers, set);
  AddMemory(alone, layers, 1, set);
  AddMemory(shared, layers, kSharing, set);
  v1::Runtime& runtime = *set.profile.mutable_runtime();
  runtime.set_name("deepspeed");
  runtime.set_blocking_messages(true);
  runtime.set_whole_messages(true);
  runtime.set_context_bytes(5'060'000'000);
  // The median of the 19 reductions of both sets that were measured by themselves (red_grads).
  runtime.set_all_reduce_ratio(2.1);
  // Microseconds for so many megabytes over the four cards of a node.
  constexpr std::pair<double, double> kLink[] = {
      {0.25, 12.6}, {0.5, 15.1}, {1, 22.1},   {2, 35.7},     {4, 61.1},     {8, 108.6},
      {16, 198.8},  {32, 371.9}, {64, 708.9}, {128, 1373.3}, {256, 2699.6}, {512, 5381.2}};
  for (const auto& [megabytes, microseconds] : kLink) {
    v1::MessageTime& time = set.link.emplace_back();
    time.set_bytes(std::llround(1e6 * megabytes));
    time.set_time_ns(std::llround(1e3 * microseconds));
  }
  return set;
}

}  // namespace

// All from github.com/eth-easl/sailor, commit cf2c8e3, under sailor/: times, Planner/simulations/
// profiles_tmp.json (GH-96); floats, Planner/llm_info.json; links, providers/
// multizone_bandwidths_het.json, evaluated at these sizes; the context, runtime_simulator.py; plans
// and what was measured, Planner/simulations/validation/clariden.
MeasuredSet SailorOpt() {
  MeasuredSet set = MakeSet("OPT-350M", 26, 2048,
                            {{53'608'448, 2'097'152, 2'097'152},
                             {12'596'224, 90'181'632, 2'097'152},
                             {51'513'344, 208'673'536, 103'022'593}},
                            {{15'073'280, 2'101'760, 2'097'152},
                             {3'153'664, 27'398'144, 2'097'152},
                             {12'978'176, 54'532'864, 25'952'257}},
                            {{1, {967, 2}, {1500, 1938}, {1500, 1719}, {2405, 1663}, 447},
                             {2, {456, 2}, {1700, 1821}, {1700, 1846}, {1632, 1493}, 429},
                             {4, {630, 2}, {1800, 3312}, {1700, 3320}, {2424, 2579}, 472},
                             {8, {922, 1}, {3021, 6469}, {2683, 6470}, {4014, 5944}, 479}});
  set.plans = {
      {"N1 D1 M4 G1", 1, {26}, 1, 1, 0.07359, 9.5515e9},
      {"N1 D1 M4 G32", 1, {26}, 1, 32, 2.28123, 9.8052e9},
      {"N2 D1", 1, {12, 14}, 8, 32, 0.65705, 26.9421e9},
      {"N2 D2", 2, {26}, 2, 32, 0.8048, 12.541e9},
      {"N4 D1", 1, {5, 7, 7, 7}, 1, 64, 1.60196, 7.3589e9},
      {"N4 D2", 2, {12, 14}, 1, 64, 1.44523, 7.9765e9},
      {"N4 D4", 4, {26}, 4, 128, 1.23516, 19.2445e9},
      {"N8 D2", 2, {5, 7, 7, 7}, 8, 512, 2.69795, 25.2487e9},
      {"N8 D4", 4, {12, 14}, 8, 512, 2.2988, 26.8509e9},
      {"N16 D4", 4, {5, 7, 7, 7}, 8, 1024, 2.72578, 25.1407e9},
      {"N16 D8", 8, {12, 14}, 8, 1024, 2.31116, 26.9411e9},
      {"N16 D16", 16, {26}, 8, 1024, 1.92557, 32.5604e9},
      {"N32 D8", 8, {5, 7, 7, 7}, 8, 1024, 1.47485, 25.2183e9},
      {"N32 D16", 16, {12, 14}, 8, 1024, 1.22476, 26.961e9},
      {"N32 D32", 32, {26}, 8, 1024, 1.02594, 32.9966e9},
  };
  return set;
}

// Without GPT-NEO/N4/plan_config_N4_D4.json, which is of a model of 26 layers.
MeasuredSet SailorNeo() {
  MeasuredSet set = MakeSet("GPT-Neo-2.7B", 34, 2048,
                            {{134'021'120, 6'553'600, 5'242'880},
                             {78'676'480, 170'401'792, 5'242'880},
                             {5'120, 10'492'672, 5'242'881}},
                            {{37'683'200, 6'558'208, 5'242'880},
                             {19'680'640, 61'087'744, 5'242'880},
                             {5'120, 10'492'672, 5'242'881}},
                            {{1, {550, 1}, {1584, 2099}, {1505, 2316}, {984, 406}, 876},
                             {4, {1099, 2}, {3356, 7141}, {3206, 7259}, {445, 548}, 858}});
  set.plans = {
      {"N2 D1", 1, {16, 18}, 1, 1, 0.2079, 16.2582e9},
      {"N4 D1", 1, {7, 9, 9, 9}, 1, 64, 2.50204, 15.8178e9},
      {"N4 D2", 2, {16, 18}, 1, 64, 2.29028, 20.011e9},
      {"N8 D2", 2, {7, 9, 9, 9}, 4, 1024, 13.86466, 28.5412e9},
      {"N8 D4", 4, {16, 18}, 4, 1024, 12.66101, 43.8147e9},
      {"N16 D4", 4, {7, 9, 9, 9}, 4, 1024, 7.03897, 37.2811e9},
      {"N16 D8", 8, {16, 18}, 4, 1024, 6.4286, 44.0339e9},
      {"N32 D8", 8, {7, 9, 9, 9}, 4, 1024, 3.69588, 37.4939e9},
      {"N32 D16", 16, {16, 18}, 4, 1024, 3.42667, 44.7763e9},
      {"N64 D8", 8, {3, 5, 5, 5, 4, 4, 4, 4}, 4, 1024, 2.25506, 43.0105e9},
      {"N64 D16", 16, {7, 9, 9, 9}, 4, 1024, 2.00042, 37.3817e9},
  };
  return set;
}

}  // namespace atl::bench
