// Decoders of what users write: TOML, profiles, tokens to join by.

#include "cli/job_file.h"
#include "common/trust/token.h"
#include "coordinator/plan_io/cluster_file.h"
#include "coordinator/plan_io/profile_file.h"
#include "tests/fuzz/decoder.h"

namespace atl::fuzz {
namespace {

absl::string_view Text(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

// ------------------------------------------------------------------------------------- TOML

bool AcceptsJob(std::string_view bytes) { return cli::ParseJob(Text(bytes), "/j/job.toml").ok(); }

std::vector<std::string> JobSeeds() {
  return {R"(name = "tiny"
[model]
family = "llama"
hidden = 64
layers = 2
heads = 4
[data]
path = "corpus.txt"
[outer]
momentum = 0.5
overlap = "carry"
[schedule]
train_tokens = 1_000_000
)"};
}

const Registration kJob({"job_toml", JobSeeds, AcceptsJob});

bool AcceptsCluster(std::string_view bytes) {
  const auto spec = ParseClusterToml(Text(bytes), "cluster.toml");
  return spec.ok() && ToCluster(*spec).ok();
}

std::vector<std::string> ClusterSeeds() {
  return {R"([[devices]]
id = "a0"
type = "a100-80"
node = "n0"
site = "paris"
[[devices]]
id = "b0"
type = "h20"
node = "n1"
site = "oslo"
memory_bytes = 50_000_000_000
[[trunks]]
name = "sea"
bandwidth_bytes_per_s = 1e9
[[links]]
from = "paris"
to = "oslo"
edges = [{ latency_ns = 20_000_000, bandwidth_bytes_per_s = 1.25e9, trunk = "sea" }]
[[links]]
from = "oslo"
to = "paris"
edges = [{ latency_ns = 20_000_000, bandwidth_bytes_per_s = 1.25e9 }]
)"};
}

const Registration kCluster({"cluster_toml", ClusterSeeds, AcceptsCluster});

// ------------------------------------------------------------------------------------- JSON

bool AcceptsProfile(std::string_view bytes) {
  const auto profile = ParseProfileJson(Text(bytes), "p.json");
  if (!profile.ok()) return false;
  plan::Model model;
  model.layers.resize(2);
  plan::CostOptions options;
  return ToProfiled(*profile, &model, &options).ok();
}

std::vector<std::string> ProfileSeeds() {
  return {R"({"cluster": {
    "devices": [{"id": "a/0", "type": "cpu", "node": "a", "site": "s", "memory_bytes": "1000000000"},
                {"id": "b/0", "type": "cpu", "node": "b", "site": "s", "memory_bytes": "950000000"}],
    "links": [{"from": "a/0", "to": "b/0",
               "edges": [{"latency_ns": "1000", "bandwidth_bytes_per_s": 1e8}]}]},
  "times": [{"type": "cpu", "tensor_parallel": 1, "micro_batch_sequences": 1, "layer": 0,
             "forward_ns": "10", "weight_gradient_ns": "20"},
            {"type": "cpu", "tensor_parallel": 1, "micro_batch_sequences": 1, "layer": 1,
             "forward_ns": "1000", "input_gradient_ns": "1000", "weight_gradient_ns": "1000"}]})"};
}

const Registration kProfile({"profile_json", ProfileSeeds, AcceptsProfile});

// --------------------------------------------------------------------------- small words

bool AcceptsToken(std::string_view bytes) { return ParseJoinAddress(Text(bytes)).ok(); }

std::vector<std::string> TokenSeeds() {
  return {ToText({std::string(32, 'f'), std::string(20, 's')}) + "@example.org:7400"};
}

const Registration kToken({"join_token", TokenSeeds, AcceptsToken});

}  // namespace
}  // namespace atl::fuzz
