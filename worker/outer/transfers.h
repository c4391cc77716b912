// Pushes and pulls of whole models over a TensorClient, a few shards at a time in the ordered
// order.
//
// Threads: Push, Pull and CancelAll are for the event loop's thread; `post` runs on that, on the
// network thread, or on the one that adds steps to the version before. started() and running() are
// for any thread.

#ifndef ATOLL_WORKER_OUTER_TRANSFERS_H_
#define ATOLL_WORKER_OUTER_TRANSFERS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/net/tensor/tensor_client.h"
#include "worker/core/actions.h"
#include "worker/outer/delta.h"
#include "worker/work_queue.h"

namespace atl::worker {

class Transfers {
 public:
  // `post` must not wait for the event loop's thread (EventLoop::PostAnswer does not): it is called
  // with a lock that Push, Pull and CancelAll take. The client outlives this.
  Transfers(TensorClient* client, std::function<void(Event)> post);
  ~Transfers();  // CancelAll

  // Buffers are of these parts of layers. What does not lie within them fails. Nothing else touches
  // `into` before its event. `base`: those parts of `base_version`. Of a layer that has had one
  // turn since, what this has added is pulled, in the order's encoding, where a server has it.
  // `moments`: for those of an order that wants them.
  using Parts = std::shared_ptr<const LayerParts>;
  void Pull(const StartPull& order, Parts parts, std::shared_ptr<LayerBuffers> into,
            std::shared_ptr<const LayerBuffers> base = nullptr, Version base_version = kNoVersion,
            std::shared_ptr<PulledMoments> moments = nullptr);
  void Push(const PushShards& order, Parts parts, std::shared_ptr<const Delta> delta);
  // The same of theta_base, in fp32.
  void PushBase(const PushShards& order, Parts parts, std::shared_ptr<const LayerBuffers> base);
  // Returns when no transfer touches any buffer any more. Those that were going on post nothing.
  void CancelAll();

  int64_t started() const;
  int64_t running() const;

 private:
  // One Push or Pull.
  struct Batch {
    bool is_pull = false;
    PushShards push;
    StartPull pull;
    Parts parts;
    std::shared_ptr<LayerBuffers> into;
    std::shared_ptr<const Delta> delta;
    // A push's: sent instead of the pseudo-gradient. A pull's: what steps are added to.
    std::shared_ptr<const LayerBuffers> base;
    Version base_version = kNoVersion;
    std::shared_ptr<PulledMoments> moments;
    size_t next = 0;  // shard to start; behind a pull's, their moments

    const std::vector<ShardPart>& shards() const { return is_pull ? pull.shards : push.shards; }
    const ShardPart& shard(size_t index) const { return shards()[index % shards().size()]; }
    size_t count() const { return shards().size() * (is_pull && pull.moments ? 2 : 1); }
    int running = 0;
    bool failed = false;  // a pull's shard failed: start no more
    PullFailed failure;
    int64_t bytes = 0;
    std::map<size_t, TransferId> ids;  // of running shards
  };
  using Batches = std::list<Batch>;

  void Add(Batch batch);
  void StartMore(Batches::iterator batch);
  void StartShard(Batches::iterator batch, size_t index);
  bool StartPush(Batches::iterator batch, size_t index);             // false: it does not fit
  bool BeginPull(Batches::iterator batch, size_t index, bool full);  // likewise
  bool BeginStep(Batches::iterator batch, size_t index);             // false: it comes in full
  void StepPulled(Batches::iterator batch, size_t index,
                  std::shared_ptr<const std::vector<float>> words, const PullResult& result);
  void AddStep(Batches::iterator batch, size_t index, std::span<const float> words,
               PullResult result);
  bool BeginMoments(Batches::iterator batch, size_t index);  // false: they do not fit
  void PullWords(Batches::iterator batch, size_t index, int32_t slot, Encoding encoding);
  void TakeMoments(Batches::iterator batch, size_t index, std::span<const float> words,
                   PullResult result);
  void ShardPulled(Batches::iterator batch, size_t index, const PullResult& result, int64_t bytes);
  void ShardPushed(Batches::iterator batch, size_t index, const PushResult& result);
  void FailPull(Batch& batch, PullFailure failure, Version newer, std::string reason);
  void AfterShard(Batches::iterator batch, size_t index);

  TensorClient* const client_;
  ThreadPool pool_{1};  // decodes, on adding_'s thread alone
  const std::function<void(Event)> post_;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  Batches batches_;  // guarded by mutex_, as all below
  bool cancelling_ = false;
  int64_t started_ = 0;
  int64_t running_ = 0;

  WorkQueue adding_;  // last: it uses the others. As many a batch as MayMoveOneMore says
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_OUTER_TRANSFERS_H_
