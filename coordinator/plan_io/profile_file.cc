#include "coordinator/plan_io/profile_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/proto_json.h"
#include "common/status.h"
#include "coordinator/plan_io/cluster_file.h"
#include "coordinator/plan_io/links.h"

namespace atl {
namespace {

// Sets the devices' speeds on the timed model, so that those that are alike are known by it.
void SetSpeeds(const plan::ProfileTable& table, plan::Cluster* cluster) {
  for (const auto& [key, times] : table) {
    const auto& [name, tensor_parallel, micro_batch] = key;
    double seconds = 0;
    for (const plan::LayerTimes& t : times) seconds += t.forward_s + t.backward_s + t.weight_s;
    for (plan::DeviceType& type : cluster->types) {  // larger micro-batches come later
      if (type.name == name && tensor_parallel == 1 && seconds > 0) {
        type.flops_per_s = 1e9 * micro_batch / seconds;
      }
    }
  }
}

// No layer takes longer: what is read can be added up.
constexpr int64_t kLayerNanosMax = int64_t{3600} * 1'000'000'000;

absl::Status CheckTimes(const v1::LayerTime& time, int layers) {
  const std::string where = absl::StrCat("times of layer ", time.layer(), " on \"",
                                         absl::CHexEscape(time.type()), "\": ");
  for (const auto& [name, size] :
       {std::pair("tensor_parallel", time.tensor_parallel()),
        std::pair("micro_batch_sequences", time.micro_batch_sequences())}) {
    if (size >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(where, name, " = ", size, ": must be at least 1"));
  }
  // The first layer has no input to compute a gradient for, and the head's B and W are part of its
  // F; W may be part of B.
  const int least_b = time.layer() > 0 && time.layer() + 1 < layers ? 1 : 0;
  for (const auto& [name, ns, least] :
       {std::tuple("forward_ns", time.forward_ns(), 1),
        std::tuple("input_gradient_ns", time.input_gradient_ns(), least_b),
        std::tuple("weight_gradient_ns", time.weight_gradient_ns(), 0),
        std::tuple("optimizer_ns", time.optimizer_ns(), 0)}) {
    if (ns >= least && ns <= kLayerNanosMax) continue;
    return absl::InvalidArgumentError(absl::StrCat(where, name, " = ", ns, ": must be ", least,
                                                   " to ", kLayerNanosMax,
                                                   ", an hour: measure it again"));
  }
  return absl::OkStatus();
}

// All layers of one type, sharing and size are there, or the profile is damaged.
absl::Status ReadTimes(const v1::ClusterProfile& profile, const plan::Model& model,
                       plan::ProfileTable* table) {
  const int layers = static_cast<int>(model.layers.size());
  std::map<std::tuple<std::string, int, int>, std::set<int>> seen;
  for (const v1::LayerTime& time : profile.times()) {
    if (time.layer() < 0 || time.layer() >= layers) {
      return absl::InvalidArgumentError(absl::StrCat("the profile has times of layer ",
                                                     time.layer(), ", the model has ", layers,
                                                     " layers: it is of another model"));
    }
    ATOLL_RETURN_IF_ERROR(CheckTimes(time, layers));
    const std::tuple key(time.type(), time.tensor_parallel(), time.micro_batch_sequences());
    if (!seen[key].insert(time.layer()).second) {
      return absl::InvalidArgumentError(absl::StrCat("times of layer ", time.layer(), " on ",
                                                     absl::CHexEscape(time.type()),
                                                     " appear twice for one size"));
    }
    std::vector<plan::LayerTimes>& entry = (*table)[key];
    entry.resize(layers);
    entry[time.layer()] = {
        static_cast<double>(time.forward_ns()) * 1e-9,
        static_cast<double>(time.input_gradient_ns()) * 1e-9,
        static_cast<double>(std::max<int64_t>(1, time.weight_gradient_ns())) * 1e-9,
        static_cast<double>(time.optimizer_ns()) * 1e-9};
  }
  for (const auto& [key, times] : *table) {
    const size_t count = seen[key].size();
    if (static_cast<int>(count) == layers) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the profile has ", count, " layers' times on ", absl::CHexEscape(std::get<0>(key)),
        ", the model has ", layers, " layers: it is of another model"));
  }
  return absl::OkStatus();
}

// No layer takes more: sums and products of what is read stay far within 64 bits.
constexpr int64_t kLayerBytesMax = int64_t{1} << 50;

// Checks that the entry is of one layer, degree and size, and of a layer that the model has.
absl::Status CheckMemory(const v1::LayerMemory& memory, int layers) {
  const auto in_range = [](int64_t bytes) { return bytes >= 0 && bytes <= kLayerBytesMax; };
  if (memory.layer() < 0 || memory.layer() >= layers) {
    return absl::InvalidArgumentError(absl::StrCat("the profile has memory of layer ",
                                                   memory.layer(), ", the model has ", layers,
                                                   " layers: it is of another model"));
  }
  if (memory.tensor_parallel() >= 1 && memory.micro_batch_sequences() >= 1 &&
      in_range(memory.parameter_bytes()) && in_range(memory.stash_bytes()) &&
      in_range(memory.output_bytes()) && in_range(memory.workspace_bytes())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("memory of layer ", memory.layer(), ": tensor_parallel and ",
                   "micro_batch_sequences must be at least 1, bytes 0 to ", kLayerBytesMax));
}

// Builds the table of what was measured for each layer and degree of the largest micro-batch that
// has been measured alone, too.
plan::MemoryTable BuildMemoryTable(const v1::ClusterProfile& profile, size_t layers) {
  using Key = std::tuple<int, int, int>;  // degree, layer, micro-batch
  std::map<Key, const v1::LayerMemory*> rows;
  for (const v1::LayerMemory& memory : profile.memory()) {
    rows[{memory.tensor_parallel(), memory.layer(), memory.micro_batch_sequences()}] = &memory;
  }
  const auto share = [](int64_t part, int64_t whole, double even) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : even;
  };
  // The stash counts all of a layer's input and of its gradient on every device.
  const auto stash = [&](const v1::LayerMemory& m) {
    const bool head = m.layer() + 1 == static_cast<int>(layers);
    return m.stash_bytes() + (head ? 1 : 2) * m.output_bytes();
  };
  plan::MemoryTable table;
  for (const auto& [key, memory] : rows) {  // micro-batches ascend
    const auto& [degree, layer, micro_batch] = key;
    plan::DegreeMemory& of_degree = table[degree];
    const double even = 1.0 / degree;
    if (of_degree.layers.empty()) of_degree.layers.assign(layers, {even, even});
    of_degree.workspace_bytes = std::max(
        of_degree.workspace_bytes, static_cast<double>(memory->workspace_bytes()) / micro_batch);
    const auto alone = rows.find({1, layer, micro_batch});
    if (alone == rows.end()) continue;
    of_degree.layers[static_cast<size_t>(layer)] = {
        share(memory->parameter_bytes(), alone->second->parameter_bytes(), even),
        share(stash(*memory), stash(*alone->second), even)};
  }
  return table;
}

absl::Status ReadRuntime(const v1::Runtime& runtime, plan::CostOptions* options) {
  const auto ratio = [](double said) { return said == 0 ? 1 : said; };
  const double allocator = ratio(runtime.allocator_ratio());
  const double all_reduce = ratio(runtime.all_reduce_ratio());
  if (runtime.context_bytes() < 0 || runtime.context_bytes() > kLayerBytesMax ||
      !(allocator >= 1 && allocator <= 4) || !(all_reduce >= 1 && all_reduce <= 16)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "runtime \"", absl::CHexEscape(runtime.name()), "\": context_bytes must be 0 to ",
        kLayerBytesMax, ", allocator_ratio 1 to 4, all_reduce_ratio 1 to 16, or left out"));
  }
  options->runtime = {.blocking_messages = runtime.blocking_messages(),
                      .whole_messages = runtime.whole_messages(),
                      .context_bytes = static_cast<double>(runtime.context_bytes()),
                      .allocator_ratio = allocator,
                      .all_reduce_ratio = all_reduce};
  return absl::OkStatus();
}

// Frozen weights are of the type of the devices that were measured, which may be another than the
// model has: layers with nothing else say how many bytes each takes there.
// REQUIRES: checked rows.
void ScaleFrozen(const v1::ClusterProfile& profile, plan::Model* model) {
  double measured = 0, assumed = 0;
  for (const v1::LayerMemory& memory : profile.memory()) {
    const auto l = static_cast<size_t>(memory.layer());
    // A tied head's table is measured elsewhere.
    if (l + 1 >= model->layers.size() || memory.tensor_parallel() != 1) continue;
    const plan::Layer& layer = model->layers[l];
    if (layer.parameters > 0 || layer.frozen_bytes == 0) continue;
    measured += static_cast<double>(memory.parameter_bytes());
    assumed += static_cast<double>(layer.frozen_bytes);
  }
  if (measured <= 0) return;
  for (plan::Layer& layer : model->layers) {
    const auto numbers = static_cast<double>(layer.frozen_bytes - layer.coded_bytes);
    layer.frozen_bytes = layer.coded_bytes + std::llround(numbers * measured / assumed);
  }
}

absl::Status ReadMemory(const v1::ClusterProfile& profile, plan::Model* model,
                        plan::CostOptions* options, plan::MemoryTable* table) {
  ATOLL_RETURN_IF_ERROR(ReadRuntime(profile.runtime(), options));
  for (const v1::LayerMemory& memory : profile.memory()) {
    ATOLL_RETURN_IF_ERROR(CheckMemory(memory, static_cast<int>(model->layers.size())));
  }
  ScaleFrozen(profile, model);
  double parameters = 0;
  double bytes = 0;
  std::map<int, int64_t> rows_of_layer;
  std::set<std::tuple<int, int, int>> seen;
  for (const v1::LayerMemory& memory : profile.memory()) {
    const int l = memory.layer();
    if (!seen.emplace(l, memory.tensor_parallel(), memory.micro_batch_sequences()).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "memory of layer ", l, " appears twice for tensor_parallel = ", memory.tensor_parallel(),
          " and micro_batch_sequences = ", memory.micro_batch_sequences()));
    }
    if (memory.tensor_parallel() != 1) continue;
    const int64_t rows = memory.micro_batch_sequences();
    int64_t& largest = rows_of_layer[l];  // fixed parts weigh least
    if (rows <= largest) continue;
    const bool head = l + 1 == static_cast<int>(model->layers.size());
    plan::Layer& layer = model->layers[l];
    // The head's is one slice of the loss, which is not measured.
    const int64_t measured = memory.stash_bytes() + (head ? 1 : 2) * memory.output_bytes();
    if (measured > 0) layer.stash_bytes = (measured + rows - 1) / rows;
    // The stash is at most what was measured without the layer's input: the gradient that B hands
    // on, which counts with the stash, what B adds, and what F run again gives.
    const int64_t input = l > 0 ? model->layers[l - 1].out_bytes : 0;
    const int64_t rest = std::max<int64_t>(0, layer.stash_bytes - input);
    layer.backward_bytes = std::min(layer.backward_bytes, rest);
    layer.again_bytes = std::min(layer.again_bytes, rest - layer.backward_bytes);
    if (!head) layer.out_bytes = memory.output_bytes() / rows;
    if (largest == 0 && layer.parameters > 0) {
      parameters += static_cast<double>(layer.parameters);
      bytes +=
          static_cast<double>(std::max<int64_t>(0, memory.parameter_bytes() - layer.frozen_bytes));
    }
    largest = rows;
  }
  if (parameters > 0 && bytes > 0) {
    const double measured = bytes / parameters;
    options->sharded_bytes_per_parameter *= measured / options->state_bytes_per_parameter;
    options->state_bytes_per_parameter = measured;
  }
  if (!rows_of_layer.empty()) {
    options->weight_share = 1;  // the runtime keeps all until W is done
    options->fixed_slots = true;
  }
  *table = BuildMemoryTable(profile, model->layers.size());
  return absl::OkStatus();
}

// Devices of one name this near in memory are of one type.
constexpr double kSameMemory = 1.10;

absl::Status ReadLinks(const v1::ClusterSpec& spec, const DeviceIndex& index,
                       plan::Cluster* cluster) {
  for (const v1::Link& link : spec.links()) {
    const std::string what =
        absl::StrCat("link ", absl::CHexEscape(link.from()), " > ", absl::CHexEscape(link.to()));
    const auto from = index.find(link.from());
    const auto to = index.find(link.to());
    if (from == index.end() || to == index.end() || from == to) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": a measured link joins two devices of the profile"));
    }
    const auto read = LinkFromMessage(*cluster, link);
    if (!read.ok()) return Annotate(read.status(), what);
    const plan::Link& plan_link = *read;
    const plan::Device& a = cluster->devices[from->second];
    const plan::Device& b = cluster->devices[to->second];
    const bool inside = a.node == b.node;  // such a link says nothing of the node's card
    const bool added =
        inside ? cluster->measured.try_emplace({from->second, to->second}, plan_link).second
               : cluster->node_to_node.try_emplace({a.node, b.node}, plan_link).second;
    if (!added) return absl::InvalidArgumentError(absl::StrCat(what, " appears twice"));
    if (inside) continue;
    const auto [known, first] = cluster->site_to_site.try_emplace({a.site, b.site}, plan_link);
    if (!first && plan_link.bytes_per_s > known->second.bytes_per_s) known->second = plan_link;
  }
  // A measurement in one direction holds for both.
  const auto measured = cluster->site_to_site;
  for (const auto& [sites, plan_link] : measured) {
    cluster->site_to_site.try_emplace({sites.second, sites.first}, plan_link);
  }
  return CheckSitesJoined(*cluster, "measure it, or describe it in a file for --cluster");
}

}  // namespace

absl::StatusOr<v1::ClusterProfile> ParseProfileJson(absl::string_view text,
                                                    absl::string_view name) {
  v1::ClusterProfile profile;
  ATOLL_RETURN_IF_ERROR(
      Annotate(ReadJson(text, &profile),
               absl::StrCat(name, ": is no profile as `atoll profile --json` prints it")));
  return profile;
}

absl::StatusOr<Profiled> ToProfiled(const v1::ClusterProfile& profile, plan::Model* model,
                                    plan::CostOptions* options) {
  Profiled profiled;
  profiled.cluster.node_latency_s = 50e-6;
  profiled.cluster.site_link.latency_s = 200e-6;
  profiled.cluster.site_link.bytes_per_s = 1.25e9;
  DeviceIndex index;
  ATOLL_RETURN_IF_ERROR(ReadTimes(profile, *model, &profiled.table));
  ATOLL_RETURN_IF_ERROR(CheckTypes(profile.cluster()));
  ATOLL_RETURN_IF_ERROR(ReadDevices(profile.cluster(), {.times = profiled.table}, kSameMemory,
                                    profiled.cluster, index));
  ATOLL_RETURN_IF_ERROR(ReadTrunks(profile.cluster(), profiled.cluster));
  ATOLL_RETURN_IF_ERROR(ReadLinks(profile.cluster(), index, &profiled.cluster));
  ATOLL_RETURN_IF_ERROR(CheckNodeLinks(profiled.cluster));
  ATOLL_RETURN_IF_ERROR(plan::Validate(profiled.cluster));
  plan::SetRingLinks(profiled.cluster);
  SetSpeeds(profiled.table, &profiled.cluster);
  ATOLL_RETURN_IF_ERROR(ReadMemory(profile, model, options, &profiled.memory));
  return profiled;
}

absl::StatusOr<Profiled> ToProfiled(const v1::ClusterSpec& described,
                                    const v1::ClusterProfile& profile, plan::Model* model,
                                    plan::CostOptions* options) {
  Profiled profiled;
  ATOLL_RETURN_IF_ERROR(ReadTimes(profile, *model, &profiled.table));
  ATOLL_ASSIGN_OR_RETURN(profiled.cluster,
                         ToCluster(described, {profile.cluster(), profiled.table}));
  SetSpeeds(profiled.table, &profiled.cluster);
  ATOLL_RETURN_IF_ERROR(ReadMemory(profile, model, options, &profiled.memory));
  return profiled;
}

}  // namespace atl
