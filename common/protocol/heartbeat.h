// What workers say again and again: how their island, their devices and their links are doing.
// Nothing here is an answer to anything, and the newest one counts.

#ifndef ATOLL_COMMON_PROTOCOL_HEARTBEAT_H_
#define ATOLL_COMMON_PROTOCOL_HEARTBEAT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/protocol/saved_state.h"

namespace atl {

// How messages travel from one device of an island to another: to print, and to correct what was
// measured of the link.
struct BoundaryState {
  std::string from;
  std::string to;
  int32_t pieces = 1;                // that a micro-batch is cut into
  double message_seconds = 0;        // mean of the newest window, from the send to the last byte
  double bandwidth_bytes_per_s = 0;  // the same; 0: not seen yet
  bool saturated = false;            // smaller chunks cannot help: only another plan can
  std::string reason;                // of the newest change
  // Of the largest messages of the newest window the quickest: others may have waited for a busy
  // machine or for other messages.
  int64_t window = 0;  // its number, larger than those before in the sender's process; 0: none
  int64_t quickest_bytes = 0;
  double quickest_seconds = 0;
  std::string way;  // how messages go, and why so: "NCCL: GPUs of one site"; empty: not said

  bool operator==(const BoundaryState&) const = default;
};

// What a device did in a step, the middle one of a window of steps: how fast it is while it trains.
struct DeviceWork {
  std::string device;
  int64_t window = 0;  // its number, larger than those before in the worker's process; 0: none
  uint64_t model_digest = 0;
  int32_t micro_batch_sequences = 0;
  // Layers of each kind times micro-batches.
  int32_t embeddings = 0;
  int32_t blocks = 0;
  int32_t heads = 0;
  int32_t recomputed_blocks = 0;  // of `blocks`, those whose F runs again before B
  double forward_seconds = 0;     // F of all of them
  double backward_seconds = 0;    // B and W of all of them
  // Devices that share each layer. Of several the times are without waiting for the slower ones.
  int32_t tensor_parallel = 1;

  bool operator==(const DeviceWork&) const = default;
};

// All-reduces of gradients in a group of devices of several workers, as one of them sees them:
// their time shows the speed of the links between.
struct GroupSums {
  std::string device;                // whose view it is
  std::vector<std::string> devices;  // of the group, by rank
  int64_t plan_number = 0;           // under which they were made
  int64_t window = 0;                // its number, as in BoundaryState
  int64_t bytes = 0;                 // of the window's largest tensors
  double quickest_seconds = 0;       // of these, from the call until the result was there

  bool operator==(const GroupSums&) const = default;
};

// To another worker and back, without anything to carry: the quickest of the last pings.
struct RoundTrip {
  NodeId to;
  double seconds = 0;

  bool operator==(const RoundTrip&) const = default;
};

// How fast pulls from a parameter server come in, by its tensor endpoint.
struct ServerRate {
  std::string endpoint;
  double bytes_per_s = 0;

  bool operator==(const ServerRate&) const = default;
};

// Another worker's peer link that this one could not reach, and why.
struct LinkFailure {
  NodeId to;
  std::string reason;

  bool operator==(const LinkFailure&) const = default;
};

// A device's memory under the plan that it is set up for.
struct DeviceMemoryState {
  std::string device;
  int64_t predicted_bytes = 0;  // peak, as the plan has it; 0: it does not say
  int64_t peak_bytes = 0;       // measured, since the plan was set up
  int64_t limit_bytes = 0;      // that it may take; 0: no limit

  bool operator==(const DeviceMemoryState&) const = default;
};

// Progress of the island that the worker runs, in every heartbeat.
struct IslandProgress {
  JobId job;
  IslandId island = 0;
  Generation generation = 0;
  int64_t seen_sequence = 0;  // newest IslandOrder carried out
  Version base_version = kNoVersion;
  bool ready = false;  // holds base_version's parameters and can train
  std::string doing;   // "training", "waiting for version 7", ...: human-readable
  int64_t inner_step = 0;
  int64_t tokens = 0;     // trained on by this island since the job began, counted or not
  double train_loss = 0;  // nats a token, mean of the last steps
  double learning_rate = 0;
  double tokens_per_s = 0;          // while training, the last steps
  double step_seconds_quiet = 0;    // mean step time with no transfer going on
  double step_seconds_overlap = 0;  // mean step time while a push or pull was going on
  int64_t pushed_bytes = 0;
  int64_t pulled_bytes = 0;
  int64_t plan_number = 0;  // of the plan that the island is set up for; 0: none
  // Of the ordered plan, once nothing of the one before goes on any more; 0: it does, or is it.
  int64_t setting_up = 0;
  int64_t unpushed_steps = 0;     // in no captured contribution: lost with this worker
  int64_t steps_interrupted = 0;  // abandoned in flight, since this worker leads
  int64_t steps_redone = 0;       // finished, lost and replayed, since this worker leads
  // Why the island wants a new plan ("link w1/0 > w2/0 saturated"); empty: it does not.
  std::string plan_wanted;
  std::vector<BoundaryState> boundaries;
  std::vector<DeviceMemoryState> memory;  // of the island's devices, once they have made a step
  // Whole states of the island that are kept, newest first; said when they change, and once on
  // every connection: absent is no change.
  std::vector<SavedState> saved = {};
};

// Of a worker that follows another island's leader.
struct MemberProgress {
  JobId job;
  IslandId island = 0;
  Generation generation = 0;
  int64_t plan_number = 0;    // of the plan that it serves; 0: none yet
  int64_t seen_sequence = 0;  // newest MemberOrder carried out
  std::string doing;          // human-readable
  bool holds = false;         // it may hold layers of the island's state
};

struct WorkerHeartbeat {
  std::optional<IslandProgress> progress;  // it leads an island, or is one alone
  std::optional<MemberProgress> member;    // it follows
  std::vector<DeviceWork> devices;         // its own, while they train under a plan
  std::vector<LinkFailure> unreachable;    // members of its plan that it does not reach
  std::string measuring;        // "measures the line to w3 (2 of 5)"; empty: it measures nothing
  std::vector<GroupSums> sums;  // of its devices, with others' of its plan
  std::vector<RoundTrip> round_trips;       // to the members of its plan
  std::vector<ServerRate> pull_rates = {};  // as measured by the newest pulls
};

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_HEARTBEAT_H_
