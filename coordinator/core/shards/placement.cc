#include "coordinator/core/shards/placement.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/same_model.h"
#include "common/protocol/limits.h"
#include "coordinator/core/shards/move_plan.h"
#include "coordinator/core/shards/replicas.h"

namespace atl {
namespace {
constexpr int64_t kMaxModelNumber = int64_t{1} << 32;

absl::Status TooLittle(const std::vector<ShardDescriptor>& shards,
                       const std::vector<PlacementServer>& servers, int64_t bytes_per_element,
                       int64_t replicas) {
  int64_t needed = 0;
  int64_t free = 0;
  for (const ShardDescriptor& s : shards) needed += replicas * s.elements * bytes_per_element;
  for (const PlacementServer& s : servers) free += s.free_bytes;
  return absl::ResourceExhaustedError(
      absl::StrCat("parameter servers have too little memory: ", needed,
                   " bytes for parameters, outer optimizer state and one staged pseudo-gradient",
                   replicas == 2 ? ", each on two servers" : "", ", ", free, " free on ",
                   servers.size(), " of them"));
}

// Elements of a layer that no shard reaches out of.
struct Span {
  size_t layer = 0;
  int64_t begin = 0, elements = 0;
  int32_t expert = -1;  // as in ShardDescriptor
};

std::vector<Span> ListSpans(const std::vector<LayerSize>& layers, bool by_expert) {
  std::vector<Span> spans;
  int32_t experts = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerSize& layer = layers[l];
    // Statistics have shards of their own: they are stepped by another rule.
    const int64_t trained = layer.elements - layer.statistics;
    int64_t begin = 0;
    for (int32_t e = 0; by_expert && e < layer.experts; ++e) {
      if (e == 0 && layer.experts_begin > 0) spans.push_back({l, 0, layer.experts_begin});
      begin = layer.experts_begin + e * layer.expert_elements;
      spans.push_back({l, begin, layer.expert_elements, experts++});
      begin += layer.expert_elements;
    }
    if (begin < trained) spans.push_back({l, begin, trained - begin});
    if (layer.statistics > 0) spans.push_back({l, trained, layer.statistics});
  }
  return spans;
}

}  // namespace

absl::Status Validate(const JobFacts& facts) {
  if (facts.layers.empty() || static_cast<int64_t>(facts.layers.size()) > kPlacedLayersMax) {
    return absl::InvalidArgumentError(absl::StrCat("the model has ", facts.layers.size(),
                                                   " layers; 1 to ", kPlacedLayersMax, " fit"));
  }
  int64_t elements = 0, experts = 0;
  for (const LayerSize& layer : facts.layers) {
    // A layer that an adapter has no part in has none.
    if (layer.elements < 0 || layer.elements > kPlacedElementsMax - elements) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer.name, " has ", layer.elements,
                                                     " elements; the model may have 1 to ",
                                                     kPlacedElementsMax, " in all"));
    }
    if (layer.statistics != 0 && (layer.statistics < 0 || layer.statistics >= layer.elements)) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer.name, " has ",
                                                     layer.statistics, " running statistics in ",
                                                     layer.elements, " elements"));
    }
    // No product of the three overflows: each is within limits.h.
    const int64_t width = layer.elements - layer.statistics - layer.experts_begin;
    if (layer.experts != 0 &&
        (layer.experts > kMaxExpertsOfModel - experts || width <= 0 || layer.expert_elements <= 0 ||
         layer.expert_elements > width / layer.experts)) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer.name, " has ", layer.experts,
                                                     " experts of ", layer.expert_elements,
                                                     " elements in ", layer.elements));
    }
    experts += layer.experts;
    elements += layer.elements;
  }
  if (elements == 0) return absl::InvalidArgumentError("no layer of the model has elements");
  const ModelSpec& model = facts.model;
  for (const auto& [name, value] :
       {std::pair("vocabulary", model.vocabulary), std::pair("hidden", model.hidden),
        std::pair("layers", model.layers), std::pair("heads", model.heads),
        std::pair("key_value_heads", model.key_value_heads),
        std::pair("feed_forward", model.feed_forward)}) {
    if (value < 0 || value > kMaxModelNumber) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model's ", name, " = ", value, " is not in 0 .. ", kMaxModelNumber));
    }
  }
  if (facts.train_sequences <= 0 || facts.validation_sequences <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("the data set has ", facts.train_sequences,
                                                   " training and ", facts.validation_sequences,
                                                   " validation sequences; it needs some of both"));
  }
  return absl::OkStatus();
}

std::string Difference(const JobFacts& ours, const JobFacts& theirs,
                       const std::vector<EvaluationSpec>& tasks) {
  const auto differ = [](absl::string_view what, const absl::AlphaNum& a, const absl::AlphaNum& b) {
    return absl::StrCat(what, ": ", b, " here, ", a, " on the others");
  };
  if (ours.layers.size() != theirs.layers.size()) {
    return differ("number of layers", ours.layers.size(), theirs.layers.size());
  }
  for (size_t i = 0; i < ours.layers.size(); ++i) {
    const LayerSize& a = ours.layers[i];
    const LayerSize& b = theirs.layers[i];
    if (a.name != b.name) return differ(absl::StrCat("name of layer ", i), a.name, b.name);
    if (a.elements != b.elements) {
      return differ(absl::StrCat("elements of layer ", a.name), a.elements, b.elements);
    }
  }
  if (!IsSameModel(ours.model, theirs.model)) return "the model's numbers (config.json)";
  if (ours.train_sequences != theirs.train_sequences) {
    return differ("training sequences", ours.train_sequences, theirs.train_sequences);
  }
  if (ours.validation_sequences != theirs.validation_sequences) {
    return differ("validation sequences", ours.validation_sequences, theirs.validation_sequences);
  }
  if (ours.data_digest != theirs.data_digest) {
    std::string what = "digest of the data";
    for (const EvaluationSpec& task : tasks) {
      absl::StrAppend(&what, &task == &tasks.front() ? " and of the evaluations " : ", ",
                      task.name);
    }
    return differ(what, absl::Hex(ours.data_digest), absl::Hex(theirs.data_digest));
  }
  if (ours.base_digest != theirs.base_digest) {
    return differ("digest of the weights of the base or reference", absl::Hex(ours.base_digest),
                  absl::Hex(theirs.base_digest));
  }
  return "";
}

absl::StatusOr<std::vector<ShardDescriptor>> CutShards(const std::vector<LayerSize>& layers,
                                                       int64_t max_shard_bytes, bool by_expert) {
  const int64_t most = std::max<int64_t>(1, max_shard_bytes / 4);
  const std::vector<Span> spans = ListSpans(layers, by_expert);
  int64_t count = 0;
  for (const Span& span : spans) count += (span.elements + most - 1) / most;
  if (count > kPlacedShardsMax) {
    return absl::InvalidArgumentError(absl::StrCat("the model makes ", count, " shards of at most ",
                                                   max_shard_bytes, " bytes; ", kPlacedShardsMax,
                                                   " are allowed: allow larger shards"));
  }
  std::vector<ShardDescriptor> shards;
  shards.reserve(count);
  for (const Span& span : spans) {
    const int64_t parts = (span.elements + most - 1) / most;
    int64_t begin = span.begin;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t size = span.elements / parts + (part < span.elements % parts ? 1 : 0);
      ShardDescriptor shard;
      shard.shard = static_cast<ShardId>(shards.size());
      shard.layer = static_cast<int32_t>(span.layer);
      shard.begin = begin;
      shard.elements = size;
      shard.expert = span.expert;
      shards.push_back(shard);
      begin += size;
    }
  }
  return shards;
}

absl::StatusOr<std::vector<ShardDescriptor>> PlaceShards(
    std::vector<ShardDescriptor> shards, const std::vector<PlacementServer>& servers,
    int64_t bytes_per_element, int64_t replicas) {
  for (ShardDescriptor& shard : shards) shard.replicas.clear();
  std::vector<PlacementServer> left = servers;
  // All active ones first.
  for (int64_t count = 1; count <= replicas; ++count) {
    const MovePlan plan = PlanShardMoves(shards, count, left, bytes_per_element);
    if (!plan.trouble.empty()) return TooLittle(shards, servers, bytes_per_element, replicas);
    for (const ReplicaMove& move : plan.moves) {
      ShardDescriptor& shard = shards[static_cast<size_t>(move.shard)];
      shard.replicas.push_back(
          {.server = move.to, .role = count == 1 ? ReplicaRole::kActive : ReplicaRole::kStandby});
      for (PlacementServer& server : left) {
        if (server.name == move.to) server.free_bytes -= shard.elements * bytes_per_element;
      }
    }
  }
  return shards;
}

double MaxOverMean(const std::vector<ShardDescriptor>& shards) {
  std::map<NodeId, int64_t> held;
  int64_t total = 0;
  int64_t most = 0;
  for (const ShardDescriptor& shard : shards) {
    total += shard.elements;
    most = std::max(most, held[GetActiveServer(shard)] += shard.elements);
  }
  if (total == 0) return 1;
  return static_cast<double>(most) * static_cast<double>(held.size()) / static_cast<double>(total);
}

}  // namespace atl
