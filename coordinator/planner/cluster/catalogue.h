// What is known about common devices and models before anything is measured.
//
// Devices: datasheet figures. Dense half-precision matrix throughput (tensor cores where there are
// any), memory bandwidth and size, and the bandwidth of one direction of the device's fastest link
// to its neighbours in a node. A layer's time is estimated by the roofline
//   max(FLOPs / (efficiency * flops_per_s), bytes touched / (efficiency * memory bandwidth))
// with an efficiency that every plan states and a user may override.
//
// Models: per layer the parameters, forward FLOPs, bytes stashed for the backward pass and bytes
// sent to the next layer, all but the parameters per sample (a sequence, or an image).
//   transformer layer (h, ffn, s, kv heads): attention 2h^2 + 2h*kv parameters, MLP 2h*ffn (GPT,
//   BERT) or 3h*ffn (LLaMA), biases and norms; forward FLOPs per token 2 * matrix parameters +
//   4*s*h (half of the scores with a causal mask is not assumed); stash 34*h bytes per token (flash
//   attention, half precision; Korthikanti et al. 2022 without the 5*a*s^2 term); sent 2*h bytes
//   per token. convolution k x k, cin -> cout at H x W: k^2*cin*cout/groups parameters, 2*H*W times
//   that FLOPs, stash 2 bytes for input and normalised output.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_CATALOGUE_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_CATALOGUE_H_

#include <compare>
#include <cstdint>
#include <map>
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
  // Of tensor-parallel groups by their size, where links between their devices are described; other
  // sizes have link_bytes_per_s.
  std::map<int, RingLink> ring_links = {};

  // The all-reduce of `bytes` over so many of these devices.
  double AllReduceSeconds(int devices, double bytes) const;
};

// By name, without regard to case: p100, v100, p4, a10, a100-40, a100-80, h100, h800, h200, h20,
// l20, rtx2080ti, rtx3080, rtx3090, rtx4090, rtx4090d. The error lists them.
absl::StatusOr<DeviceType> FindDeviceType(absl::string_view name);
std::vector<std::string> DeviceTypeNames();

struct Layer {
  std::string name;
  int64_t parameters = 0;
  double forward_flops = 0;  // per sample; B and W take as much each
  int64_t stash_bytes = 0;   // per sample, kept from F to B (and its share to W)
  int64_t out_bytes = 0;     // per sample, sent to the next layer
  // Of the stash, per sample: what B adds, which is there once where W follows its B at once; and
  // what need not be kept if F is run again before B. 0: unknown, or it cannot be.
  int64_t backward_bytes = 0;
  int64_t again_bytes = 0;
};

struct Model {
  std::string name;
  std::vector<Layer> layers;
  bool tied_head = false;  // the last layer has a table of the first one's

  int64_t parameters() const;
};

// Transformer by its shape; `layers` blocks between an embedding and a head.
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
// Refuses sizes that are not positive or overflow.
absl::StatusOr<Model> MakeTransformer(const TransformerShape& shape);

// gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-1.3b, gpt3-2.7b, gpt3-6.7b, gpt3-13b, gpt3-22b,
// gpt3-175b, llama-1b, llama-7b, llama-8b, llama-13b, llama-70b, bert-small, bert-base, bert-large,
// resnet50, resnet101, efficientnet-b0. `sequence` overrides the length, or the width and height of
// images (0: the model's own; images: 224).
absl::StatusOr<Model> FindModel(absl::string_view name, int64_t sequence = 0);
std::vector<std::string> ModelNames();

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_CATALOGUE_H_
