// What a user requests: one training job. The job file (TOML) maps onto the protobuf message
// atl.v1.JobSpec, and that onto this struct; defaults and limits stand here and nowhere else.
//
// Rates and sizes are per island unless said otherwise. "Tokens" are training tokens.

#ifndef ATOLL_COMMON_PROTOCOL_JOB_SPEC_H_
#define ATOLL_COMMON_PROTOCOL_JOB_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"

namespace atl {

enum class ModelFamily {
  kLlama,
  kGpt2,
  kMistral,
  kQwen2,
  kQwen3,
  kOlmo2,
  kGemma2,
  kPhi3,
  kBert,
  kResNet,
  kEfficientNet,
};

// Shape of the model. Either these numbers, or `config_path` names a Hugging Face config.json on
// every worker that holds them.
struct ModelSpec {
  ModelFamily family = ModelFamily::kLlama;
  std::string config_path;
  std::string config_json;  // or its text
  int64_t vocabulary = 256;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t key_value_heads = 0;  // 0: as many as heads
  int64_t feed_forward = 0;     // 0: the family's usual multiple of hidden
  bool tied_head = false;

  // Folder with config.json and safetensors on every worker; empty: random by `seed`.
  std::string initial_weights_path;
  uint64_t seed = 1;

  bool operator==(const ModelSpec&) const = default;
};

enum class DataFormat {
  kText,
  kTokens16,
  kMegatron,
  kTokens32,
  kJsonl,
  kShards,
  kChat,
  kCifar10,
  kCifar100,
  kIdx,
  kImageFolder = 389,  // one less than on the wire, as all
};
constexpr bool IsImages(DataFormat format) {
  return format == DataFormat::kCifar10 || format == DataFormat::kCifar100 ||
         format == DataFormat::kIdx || format == DataFormat::kImageFolder;
}

inline constexpr int64_t kImageSideMax = 4096;  // pixels

// Data to evaluate on beside what is held out.
struct ValidationSet {
  std::string name;
  std::string path;

  bool operator==(const ValidationSet&) const = default;
};

// One of the data sets of a mixture.
struct DataSource {
  std::string path;
  double weight = 1;  // of the sequences that are trained on, relative to the others

  bool operator==(const DataSource&) const = default;
};

// Data that workers of one site have, and no others.
struct SiteData {
  std::string site;
  std::string path;
  std::string validation_path;  // empty: the end of `path` is held out

  bool operator==(const SiteData&) const = default;
};

inline constexpr int kValidationSetsMax = 16;
inline constexpr int kDataSourcesMax = 64;
inline constexpr int kDataSitesMax = 256;

struct DataSpec {
  DataFormat format = DataFormat::kText;
  std::string path;             // a file that every worker can read; a glob names several
  std::string validation_path;  // empty: the last `validation_fraction` of `path`
  double validation_fraction = 0.05;
  int64_t sequence_length = 256;  // tokens
  uint64_t shuffle_seed = 1;      // order of the sequences within each epoch
  std::string tokenizer_path;     // of kText, kJsonl and kChat; empty: bytes are tokens
  std::string field = "text";     // of a JSONL object, that holds the text
  int64_t crop_padding = 0;       // of images that are trained on: pixels on every side
  bool flip = false;              // and whether half of them are mirrored
  int64_t image_size = 0;         // of kImageFolder: pixels of a side
  std::vector<ValidationSet> validation = {};
  // Instead of `path`: a mixture, or sites that hold different data.
  std::vector<DataSource> sources = {};
  std::vector<SiteData> sites = {};
  bool pad_documents = false;  // a sequence is one document alone, and padding

  bool operator==(const DataSpec&) const = default;
};

enum class InnerOptimizer { kAdamW, kSgd, kLamb, kRmsProp, kMuon };

// The optimizer inside an island. The learning rate rises linearly over the first `warmup_fraction`
// of the job's tokens and then follows a cosine down to learning_rate * final_learning_rate_ratio.
struct InnerSpec {
  double learning_rate = 1e-3;
  double final_learning_rate_ratio = 0.1;
  double warmup_fraction = 0.02;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // global L2 norm of the gradient; 0: no clipping
  InnerOptimizer optimizer = InnerOptimizer::kAdamW;
  double momentum = 0.9;              // of SGD, RMSprop and Muon
  int64_t batch_sequences = 8;        // sequences of one inner step
  int64_t micro_batch_sequences = 0;  // 0: the whole batch at once

  bool operator==(const InnerSpec&) const = default;
};

// What an island does between its push and its pull.
enum class Overlap {
  kNone,   // waits
  kCarry,  // trains on: theta <- theta_v + (theta_now - theta_push) when version v arrives
};

inline constexpr int64_t kFragmentsMax = 4096;

// Parameter servers of a site under the job's: see docs/decisions/site-servers.md.
struct SiteServersSpec {
  int64_t rounds = 0;  // of the site, between two exchanges with the job's servers; 0: none has any
  std::string optimizer = "sgd";  // of a round of the site, as those of OuterSpec; by default the
  std::string parameters = {};    // mean of the site's islands
  double learning_rate = 1;
  double momentum = 0;

  bool operator==(const SiteServersSpec&) const = default;
};

// Outer rounds; docs/decisions/penalty.md has the rules of the penalty.
struct OuterSpec {
  int64_t steps_per_round = 64;  // H of the fastest island
  bool balance_steps = true;     // slower islands make proportionally fewer steps a round
  int64_t steps_min = 1;         // and not fewer than these, or all
  // Averaging. outer_optimizer.h has what a job that names a part of these has of the others.
  double learning_rate = 1;
  double momentum = 0;
  // Of the averaged pseudo-gradient (phi); 0: no clipping. Its norm grows with the model and with
  // H, so that no limit suits all: penalty.md.
  double clip_norm = 0;
  double grace_seconds = 10;    // from the first complete arrival of a round
  bool adaptive_grace = false;  // as long as no island idles, at most grace_seconds
  bool wait_for_all = false;    // synchronous: the grace time does not end a round
  Overlap overlap = Overlap::kCarry;
  Encoding push_encoding = Encoding::kFloat32;
  Encoding pull_encoding = Encoding::kFloat32;  // of a version's step; fp32: versions in full
  bool reject_outliers = true;
  int64_t min_islands = 1;  // the job starts, and goes on, with at least so many
  int64_t max_islands = 64;
  int64_t min_servers = 1;           // the model is placed, for good, once so many are attached
  std::string optimizer = "sgd";     // outer_optimizer.h has the tables of both and of their
  std::string merge = "mean";        // parameters
  std::string parameters = {};       // NAME=VALUE, comma separated; others keep their defaults
  int64_t shard_copies = 1;          // parameter servers that hold each shard: 1 or 2
  int64_t fragments = 1;             // see fragments.h
  int64_t fragment_delay_steps = 0;  // from a push to its adoption; 0: when the version is there
  double fragment_blend = 1;         // share of a version that an island takes over
  bool eager = false;                // see docs/decisions/eager-updates.md
  SiteServersSpec site = {};
  // Not empty: the job of a site's servers, which contribute to this one. Set by the coordinator.
  std::string contributes_to = {};

  bool operator==(const OuterSpec&) const = default;
};

struct ScheduleSpec {
  int64_t train_tokens = 0;             // of all islands together; required
  int64_t validate_every_rounds = 4;    // 0: only at start and end
  int64_t validation_sequences = 64;    // evaluated each time; 0: all
  int64_t checkpoint_every_steps = 32;  // local checkpoint of each worker; 0: none
  int64_t snapshot_every_rounds = 8;    // of each parameter server

  bool operator==(const ScheduleSpec&) const = default;
};

// Which workers make an island together.
enum class IslandScope {
  kWorker,  // each is one by itself
  kSite,    // those of one site
  kAll,     // all of the job
  kAuto,    // as the planner says
};

// Blocks that keep only their input from the forward to the backward pass, and run forward again.
enum class Recompute {
  kAuto,  // as few as memory requires
  kNone,
  kAll,
};

// What a plan is chosen for: a short step, or a cheap one.
enum class PlanObjective { kTime, kCost };

// How devices are mapped to the stages of a pipeline (coordinator/planner/layout.h, Search).
enum class PlanSearch { kLocal, kBranchAndBound };

// What a job may send from one site to another in a day.
struct LinkLimit {
  std::string from;
  std::string to;
  double bytes_per_day = 0;

  bool operator==(const LinkLimit&) const = default;
};

inline constexpr int kExcludedMax = 1024;     // workers and devices
inline constexpr int kLayoutSitesMax = 256;   // of layout.sites
inline constexpr int kLinkLimitsMax = 65536;  // all pairs of as many sites

// How an island lies on its devices. 0 and empty: the planner decides.
struct LayoutSpec {
  IslandScope island = IslandScope::kWorker;
  int64_t workers_per_island = 0;  // 0: all of the site, or all
  int64_t stages = 0;              // of each replica's pipeline
  int64_t replicas = 0;            // of each island
  int64_t tensor_parallel = 0;     // devices that share each layer
  std::string schedule;            // a family of the simulator, such as "1f1b" or "compact-zb"
  Recompute recompute = Recompute::kAuto;
  // Into at most so many chunks (a power of two) a message between stages is split where its link
  // is slow. 1: never, and runs on one plan repeat bit for bit.
  int64_t pieces_max = 8;
  // What each of the devices that share a layer holds of it, relatively; the faster the device, the
  // larger the share it gets of these. Whole heads, with tensor_parallel numbers. Empty: by speed,
  // where that is measured to be unequal, else even.
  std::vector<int64_t> tensor_shares = {};
  // Replicas that keep the optimizer's state of each element, at least; 0: 2, or 1 where memory
  // does not allow it.
  int64_t optimizer_copies = 0;
  // A plan to keep to, as JSON (coordinator/plan_io/plan_message.h); in a job file its path.
  std::string plan = {};
  PlanObjective objective = PlanObjective::kTime;
  // For schedule.train_tokens; 0: no limit. The budget is in the currency of the devices' prices.
  double deadline_hours = 0;
  double budget = 0;
  PlanSearch search = PlanSearch::kBranchAndBound;
  // What takes no part: workers, and single devices of theirs ("worker-4/1").
  std::vector<std::string> exclude = {};
  std::vector<std::string> sites = {};  // only their workers take part; empty: those of all
  int64_t memory_reserve_bytes = 0;     // of each device, that the job leaves free
  std::vector<LinkLimit> link_limits = {};

  bool operator==(const LayoutSpec&) const = default;
};

// Where an island's state is kept beside its owners' memory.
struct CheckpointSpec {
  // In the memory of other workers of the island, where it has others and they have room.
  int64_t peer_copies = 1;
  int64_t peer_every_steps = 0;  // 0: the shortest interval that costs at most 2%
  std::string remote = {};       // s3://bucket/prefix or a shared folder; empty: none

  bool operator==(const CheckpointSpec&) const = default;
};

struct JobSpec {
  std::string name;
  ModelSpec model;
  DataSpec data;
  InnerSpec inner;
  OuterSpec outer;
  ScheduleSpec schedule;
  LayoutSpec layout;
  CheckpointSpec checkpoint = {};

  bool operator==(const JobSpec&) const = default;
};

// Why a worker with so many devices takes no part in the job: layout.exclude names it or all of its
// devices, or layout.sites does not name its site. Empty: it may take part.
std::string WhyNoPart(const LayoutSpec& layout, const std::string& worker, const std::string& site,
                      size_t devices);
// What a job may use of a device's memory, at least 1 of what is known.
int64_t BytesForJob(const LayoutSpec& layout, int64_t memory_bytes);

// Whether so many heads can be cut by shares into whole ones, at least one each. The error names
// the field. REQUIRES: shares of 1 or more.
absl::Status CheckTensorShares(const std::vector<int64_t>& shares, int64_t heads);

// Every limit of every field of a job that a user submits. The message names the field as the job
// file spells it ("outer.momentum = 1.5: must be at least 0 and below 1").
absl::Status Validate(const JobSpec& spec);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_JOB_SPEC_H_
