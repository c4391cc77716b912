// Facts about common devices before anything is measured, a model as the planner sees it, and
// published transformers by their names, as `atoll plan --model` takes them.
//
// Devices: datasheet figures. Dense half-precision matrix throughput (tensor cores where there are
// any), memory bandwidth and size, and the bandwidth of one direction of the device's fastest link
// to its neighbours in a node. A layer's time is estimated by the roofline
//   max(FLOPs / (efficiency * flops_per_s), bytes touched / (efficiency * memory bandwidth))
// with an efficiency that every plan states and a user may override.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_CATALOGUE_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_CATALOGUE_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atl::plan {

// The slowest link around a group of devices.
struct RingLink {
  double latency_s = 0;
  double bytes_per_s = 0;

  auto operator<=>(const RingLink&) const = default;
};

struct DeviceType {
  std::string name;
  double flops_per_s = 0;
  double memory_bytes_per_s = 0;
  int64_t memory_bytes = 0;
  double link_bytes_per_s = 0;  // one direction, to a neighbour in the node
  double price_per_hour = 0;    // of one device, in the operator's currency
  // Links of tensor-parallel groups by the groups' size, where links between their devices are
  // described; other sizes have link_bytes_per_s.
  std::map<int, RingLink> ring_links = {};

  // The all-reduce of `bytes` over so many of these devices.
  double AllReduceSeconds(int devices, double bytes) const;
};

// Finds a type by name, without regard to case. The error lists them all, and the one that may be
// meant.
absl::StatusOr<DeviceType> FindDeviceType(absl::string_view name);
// Finds a type by what a driver calls a device, such as "NVIDIA A100-SXM4-80GB". Nothing: it is not
// known.
std::optional<DeviceType> FindDeviceTypeByKind(absl::string_view kind);
std::vector<std::string> DeviceTypeNames();

struct Layer {
  std::string name;
  int64_t parameters = 0;    // that are trained
  double forward_flops = 0;  // per sample; B takes as much, and so does W but for the next ones
  int64_t stash_bytes = 0;   // per sample, kept from F to B (and its share to W)
  int64_t out_bytes = 0;     // per sample, sent to the next layer
  // Parts of the stash, per sample: what B adds, which is there once where W follows its B at once;
  // and what need not be kept if F is run again before B. 0: unknown, or it cannot be.
  int64_t backward_bytes = 0;
  int64_t again_bytes = 0;
  // The part of its operations that is cut by heads among the devices that share it; the rest is
  // cut evenly. Its parameters are taken to be cut alike.
  double head_share = 0;
  // The same by experts, where each goes as one to a device.
  double expert_share = 0;
  // The part of the stash, per sample, that has a row for each choice of an expert: a device has as
  // many rows as choices may be of its experts.
  int64_t expert_stash_bytes = 0;
  // Weights that are not trained: their bytes, and the part of forward_flops that is theirs.
  int64_t frozen_bytes = 0;
  int64_t coded_bytes = 0;  // of these, of codes, whatever the devices compute in
  double frozen_flops = 0;
  bool loss = false;  // the head: its B and W are parts of its F
};

struct Model {
  std::string name;
  std::vector<Layer> layers;
  bool tied_head = false;  // the last layer has a table of the first one's
  int64_t head_groups =
      0;  // heads that go as one to a device; 0: any number of devices share evenly
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  // By mixture and expert, tokens as measured: the busiest device's work follows from them. Empty:
  // all experts are chosen equally often.
  std::vector<int64_t> expert_tokens = {};

  int64_t parameters() const;
};

// `layers` blocks between an embedding and a head.
struct TransformerShape {
  std::string name;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // 0: as heads
  int64_t ffn = 0;       // 0: 4 * hidden
  int64_t vocabulary = 0;
  int64_t sequence = 0;
  bool gated = false;     // LLaMA's MLP of three matrices, no biases, RMS norms
  bool tied_head = true;  // the head shares the embedding's parameters
  bool positions = true;  // learnt positions
};

// gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-1.3b, gpt3-2.7b, gpt3-6.7b, gpt3-13b, gpt3-22b,
// gpt3-175b, llama-1b, llama-7b, llama-8b, llama-13b, llama-70b, bert-small, bert-base, bert-large.
const std::vector<TransformerShape>& TransformerShapes();

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_CATALOGUE_H_
