// Shards that a parameter server has lost: theta_base fills them.

#include "worker/core/impl.h"

namespace atl::worker {

// Stateless: the coordinator repeats its request for what has not arrived.
void WorkerCore::Impl::OnMessage(const FillShards& fill) {
  const bool base_changes = command_ == Command::kAdopt || command_ == Command::kPrepare ||
                            command_ == Command::kReconfigure;
  if (!order_ || fill.job != order_->job || fill.island != order_->island ||
      fill.generation != order_->generation || !adopted_ || base_version_ != fill.version ||
      base_changes) {
    return;
  }
  PushShards push{fill.job,
                  {fill.island, fill.generation, order_->author, FillBase(fill.version)},
                  Encoding::kFloat32,
                  {}};
  for (const ShardPlacement& shard : fill.shards) push.shards.push_back({shard, 0, 0, {}});
  Log(absl::StrCat(push.shards.size(), " lost shards are filled from theta_base of version ",
                   fill.version));
  Emit(std::move(push));
}

}  // namespace atl::worker
