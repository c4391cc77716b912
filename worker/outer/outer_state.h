// The state that a worker keeps for the exchange with the parameter servers: theta_base, the
// pseudo-gradient that is pushed, the version that is pulled, and what quantised pushes owe, of the
// elements that it owns (common/model/outer_cut.h). A worker alone owns all: its parts are the
// layers.
//
// Threads: Read, and what says so, is for any thread. Everything else is for one thread at a time,
// in the order that the core prescribes. Buffers are shared: transfers that end late keep theirs
// alive.

#ifndef ATOLL_WORKER_OUTER_OUTER_STATE_H_
#define ATOLL_WORKER_OUTER_OUTER_STATE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/element_ranges.h"
#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/protocol/island_plan.h"
#include "common/protocol/state_stamp.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "proto/group.plain.h"
#include "worker/core/actions.h"
#include "worker/outer/delta.h"

namespace atl::worker {

// The layout of all workers of an island: all elements of each layer, in order.
using OuterLayout = std::vector<OuterRange>;

// Makes the layout with copies as common/model/outer_copies.h says; `block` as in CutByOwners.
OuterLayout LayoutByOwners(const IslandPlan& plan, const std::vector<ShardPlacement>& shards,
                           int32_t copies, int64_t block);
// Returns the layout of a worker that keeps all.
OuterLayout LayoutOfOne(const NodeId& worker, const std::vector<LayerSize>& layers);

inline constexpr OuterKind kLastOuterKind = OuterKind::kPulledSecond;
// Derived from the pulled version, which only the first holder of a part has before the adoption.
inline bool IsOfPulled(OuterKind kind) {
  return kind == OuterKind::kPulled || kind == OuterKind::kAddition;
}
// Pulled moments, which no other holder ever has.
inline bool IsOfMoments(OuterKind kind) {
  return kind == OuterKind::kPulledFirst || kind == OuterKind::kPulledSecond;
}

class OuterState {
 public:
  // Creates the state of these parts for a job with these outer rounds; nothing is held yet.
  OuterState(NodeId worker, OuterLayout layout, const OuterSpec& outer);

  const OuterLayout& layout() const { return layout_; }
  const std::shared_ptr<const LayerParts>& parts() const { return parts_; }  // own ones
  // Own parts that another worker pulls.
  const std::vector<OuterRange>& copies() const { return copies_; }
  bool quantized() const { return residual_ != nullptr; }
  const OuterSpec& spec() const { return spec_; }
  // Kinds that a new holder of these parts fetches: of theta_base and of the captured contribution.
  std::vector<OuterKind> ListHeldKinds() const;

  OuterTag tag() const;  // for any thread
  void set_tag(OuterTag tag);

  // ---- Pushes: first the parameters as they are at the capture, then the pseudo-gradient. ----
  // Fills `out` with the parameters of these elements of a layer.
  using ReadParameters = std::function<absl::Status(int32_t, ElementRange, std::span<float>)>;
  // Reads the layers that the shards concern (Concern).
  absl::Status ReadAll(const std::vector<ShardPlacement>& shards, const ReadParameters& read);
  // Then, of a contribution that has them, moments of these elements.
  using ReadMoments =
      std::function<absl::Status(int32_t, ElementRange, std::span<float>, std::span<float>)>;
  absl::Status ReadAllMoments(const std::vector<ShardPlacement>& shards, const ReadMoments& read);
  // InvalidArgument: a shard does not lie within the model.
  absl::Status CheckShards(const CaptureDelta& command) const;
  // InvalidArgument: a shard does not lie within the parts; Aborted: `cancelled` said so (it is
  // called often, and may be null). Then there is no pseudo-gradient, and residuals are as before.
  absl::Status MakeDelta(const CaptureDelta& command,
                         const std::function<bool()>& cancelled = nullptr);
  // Digests of what this worker owns of the newest pseudo-gradient, where its command wants them.
  std::vector<PartDigest> digests() const;  // for any thread
  void DropDelta();
  std::shared_ptr<Delta> delta() const;  // for any thread

  // theta_base. A pull must not begin while it is being sent: its buffer becomes the next one's.
  std::shared_ptr<const LayerBuffers> base() const { return base_; }

  // ---- Pulls. ----
  const std::shared_ptr<LayerBuffers>& pulled() const { return pulled_; }
  // Null where moments are not averaged.
  const std::shared_ptr<PulledMoments>& pulled_moments() const { return pulled_moments_; }
  // The pulled version is theta_base now. All but `since` as in AdoptPulled.
  void Finish(Version version, StateStamp since, bool keep_residual,
              const std::vector<ShardPlacement>& shards = {});

  // ---- Elements of one own part. ----
  absl::Status Read(OuterKind kind, int32_t layer, ElementRange range, std::span<float> out) const;
  absl::Status Write(OuterKind kind, int32_t layer, ElementRange range,
                     std::span<const float> values);
  // Returns the floats that these elements take as kEncoded. They are whole blocks of these shards.
  int64_t EncodedFloats(int32_t layer, ElementRange range) const;
  // Says, before a pseudo-gradient is written, how it was captured, and its shards as in
  // CaptureDelta.
  void ExpectDelta(Encoding encoding, std::vector<ShardPlacement> shards);
  std::vector<ShardPlacement> shards() const;  // for any thread

 private:
  absl::StatusOr<std::vector<PartDigest>> DigestDelta(const CaptureDelta& command,
                                                      const std::function<bool()>& cancelled);
  const LayerBuffers* FindBuffers(OuterKind kind) const;
  absl::Status CopyEncoded(int32_t layer, ElementRange range, std::span<std::byte> bytes,
                           bool write);

  const OuterLayout layout_;
  const OuterSpec spec_;
  std::shared_ptr<const LayerParts> parts_;
  std::vector<OuterRange> copies_;
  std::vector<OuterRange> owned_;  // those of the layout that this worker pushes
  // Held while something is read, and while buffers or what names them are replaced.
  mutable std::mutex mutex_;
  OuterTag tag_;
  // Residuals are null where pushes are not quantised.
  std::shared_ptr<LayerBuffers> base_, pulled_, residual_, residual_after_;
  std::shared_ptr<PulledMoments> pulled_moments_;
  std::shared_ptr<Delta> delta_;
  std::vector<ShardPlacement> shards_;  // of delta_, as in CaptureDelta
  std::vector<PartDigest> digests_;     // likewise
  ThreadPool pool_{1};
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_OUTER_OUTER_STATE_H_
