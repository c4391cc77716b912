#include "worker/outer/transfers.h"

#include <utility>

#include "common/protocol/fragments.h"
#include "kernels/add_delta.h"
#include "kernels/codecs/moments.h"
#include "worker/outer/transfer_limits.h"

namespace atl::worker {
namespace {

// The encoded bytes of the part; none: the pseudo-gradient has not all of them in this encoding.
std::span<const std::byte> FindEncodedBytes(const Delta& delta, Encoding encoding,
                                            const ShardPart& shard) {
  const auto bytes = delta.encoded.find(shard.shard);
  if (delta.encoding != encoding || bytes == delta.encoded.end() ||
      static_cast<int64_t>(bytes->second.size()) != EncodedBytes(encoding, shard.elements)) {
    return {};
  }
  const ElementRange part = shard.part();
  const auto begin = static_cast<size_t>(EncodedBytes(encoding, part.begin));
  const auto end = static_cast<size_t>(EncodedBytes(encoding, part.end));
  return std::span(bytes->second).subspan(begin, end - begin);
}

// In the shard's layer; elements of the shard alone.
ElementRange ComputeElementRange(const ShardPart& shard) {
  const ElementRange part = shard.part();
  if (part.begin < 0 || part.end > shard.elements) return {};
  return {shard.begin + part.begin, shard.begin + part.end};
}

std::string About(const ShardPlacement& shard, absl::string_view reason) {
  return absl::StrCat("shard ", shard.shard, " at ", shard.server, ": ", reason);
}

}  // namespace

Transfers::Transfers(TensorClient* client, std::function<void(Event)> post)
    : client_(client), post_(std::move(post)) {}

Transfers::~Transfers() { CancelAll(); }

int64_t Transfers::started() const {
  const std::lock_guard lock(mutex_);
  return started_;
}

int64_t Transfers::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

void Transfers::Pull(const StartPull& order, Parts parts, std::shared_ptr<LayerBuffers> into,
                     std::shared_ptr<const LayerBuffers> base, Version base_version,
                     std::shared_ptr<PulledMoments> moments) {
  Add({.is_pull = true,
       .pull = order,
       .parts = std::move(parts),
       .into = std::move(into),
       .base = std::move(base),
       .base_version = base_version,
       .moments = std::move(moments)});
}

void Transfers::Push(const PushShards& order, Parts parts, std::shared_ptr<const Delta> delta) {
  Add({.push = order, .parts = std::move(parts), .delta = std::move(delta)});
}

void Transfers::PushBase(const PushShards& order, Parts parts,
                         std::shared_ptr<const LayerBuffers> base) {
  Add({.push = order, .parts = std::move(parts), .base = std::move(base)});
}

void Transfers::Add(Batch batch) {
  const std::lock_guard lock(mutex_);
  batches_.push_back(std::move(batch));
  const auto last = std::prev(batches_.end());
  // The batch ends when its last shard does; this extra one keeps it alive until all are started.
  ++last->running;
  StartMore(last);
  AfterShard(last, SIZE_MAX);
}

void Transfers::StartMore(Batches::iterator batch) {
  int64_t elements = 0;
  for (const auto& [index, id] : batch->ids) elements += batch->shard(index).part().size();
  while (!cancelling_ && !batch->failed && batch->next < batch->count() &&
         MayMoveOneMore(batch->ids.size(), elements)) {
    elements += batch->shard(batch->next).part().size();
    StartShard(batch, batch->next++);
  }
}

void Transfers::StartShard(Batches::iterator batch, size_t index) {
  const ShardPart& shard = batch->shard(index);
  if (batch->is_pull) {
    const bool moments = index >= batch->shards().size();
    if (!(moments ? BeginMoments(batch, index) : BeginPull(batch, index, /*full=*/false))) {
      return FailPull(*batch, PullFailure::kError, kNoVersion, About(shard, "bad bounds"));
    }
  } else if (!StartPush(batch, index)) {
    return post_(
        PushShardDone{MakePushId(batch->push, shard), ShardPushStatus::kRefused, "bad bounds", 0});
  }
  ++batch->running;
  ++started_;
  ++running_;
}

bool Transfers::BeginPull(Batches::iterator batch, size_t index, bool full) {
  const ShardPart& shard = batch->pull.shards[index];
  const std::span<float> to =
      FindElements(*batch->into, *batch->parts, shard.layer, ComputeElementRange(shard));
  if (to.empty()) return false;
  if (!full && BeginStep(batch, index)) return true;
  PullRequest request;
  request.job = batch->pull.job;
  request.version = batch->pull.version;
  request.shard = shard.shard;
  request.begin = shard.part_begin;
  request.elements = shard.part_elements;
  batch->ids[index] = client_->Pull(
      {shard.endpoint, shard.public_key}, request, to, TransferTimeout(shard.part().size() * 4),
      [this, batch, index, bytes = shard.part().size() * 4](const PullResult& result) {
        ShardPulled(batch, index, result, bytes);
      });
  return true;
}

// Whole blocks of the shard, whose bytes are words.
bool Transfers::BeginStep(Batches::iterator batch, size_t index) {
  const Encoding encoding = batch->pull.encoding;
  const ShardPart& shard = batch->pull.shards[index];
  const ElementRange part = shard.part();
  const bool blocks =
      part.begin % kQuantBlock == 0 && (part.end % kQuantBlock == 0 || part.end == shard.elements);
  const bool one_turn =
      batch->base_version != kNoVersion &&
      CountTurnsSince(batch->base_version, batch->pull.version, shard,
                      Fragments{batch->pull.fragments, batch->pull.expert_fragments}) == 1;
  if (!IsQuantized(encoding) || batch->base == nullptr || !one_turn || !blocks) return false;
  PullWords(batch, index, kPullStep, encoding);
  return true;
}

bool Transfers::BeginMoments(Batches::iterator batch, size_t index) {
  const ShardPart& shard = batch->shard(index);
  const ElementRange part = shard.part();
  const bool blocks =
      part.begin % kQuantBlock == 0 && (part.end % kQuantBlock == 0 || part.end == shard.elements);
  if (batch->moments == nullptr || !blocks ||
      FindElements(batch->moments->first, *batch->parts, shard.layer, ComputeElementRange(shard))
          .empty()) {
    return false;
  }
  PullWords(batch, index, kPullMoments, Encoding::kMomentsAlone);
  return true;
}

void Transfers::PullWords(Batches::iterator batch, size_t index, int32_t slot, Encoding encoding) {
  const ShardPart& shard = batch->shard(index);
  const ElementRange part = shard.part();
  PullRequest request;
  request.job = batch->pull.job;
  request.version = batch->pull.version;
  request.shard = shard.shard;
  request.slot = slot;
  request.begin = EncodedWords(encoding, part.begin);
  request.elements = EncodedWords(encoding, part.end) - request.begin;
  const auto words = std::make_shared<std::vector<float>>(static_cast<size_t>(request.elements));
  batch->ids[index] = client_->Pull({shard.endpoint, shard.public_key}, request, *words,
                                    TransferTimeout(request.elements * 4),
                                    [this, batch, index, words](const PullResult& result) {
                                      StepPulled(batch, index, words, result);
                                    });
}

// A shard may have gigabytes: the network's thread goes on with others meanwhile.
void Transfers::StepPulled(Batches::iterator batch, size_t index,
                           std::shared_ptr<const std::vector<float>> words,
                           const PullResult& result) {
  const bool moments = index >= batch->shards().size();
  if (result.refusal == PullRefusal::kUnknown && !moments) {
    // The server has not made this version itself, or has started again since.
    const std::lock_guard lock(mutex_);
    if (!cancelling_ && !batch->failed && BeginPull(batch, index, /*full=*/true)) return;
  }
  const bool added =
      result.status.ok() && adding_.Add([this, batch, index, words, result, moments] {
        moments ? TakeMoments(batch, index, *words, result) : AddStep(batch, index, *words, result);
      });
  if (added) return;
  PullResult failed = result;
  if (result.status.ok()) failed.status = absl::ResourceExhaustedError("too many steps to add");
  ShardPulled(batch, index, failed, 0);
}

void Transfers::AddStep(Batches::iterator batch, size_t index, std::span<const float> words,
                        PullResult result) {
  const ShardPart& shard = batch->pull.shards[index];
  const DeltaView step{words.data(), batch->pull.encoding, shard.part().size()};
  const auto at = [&](auto& buffers) {
    return FindElements(buffers, *batch->parts, shard.layer, ComputeElementRange(shard));
  };
  result.status = CheckDelta(step);
  if (result.status.ok()) AddDelta(step, at(*batch->base), at(*batch->into), pool_);
  ShardPulled(batch, index, result, static_cast<int64_t>(words.size_bytes()));
}

void Transfers::TakeMoments(Batches::iterator batch, size_t index, std::span<const float> words,
                            PullResult result) {
  const ShardPart& shard = batch->shard(index);
  const int64_t elements = shard.part().size();
  const auto bytes = std::as_bytes(words).first(
      static_cast<size_t>(EncodedBytes(Encoding::kMomentsAlone, elements)));
  const auto at = [&](LayerBuffers& buffers) {
    return FindElements(buffers, *batch->parts, shard.layer, ComputeElementRange(shard));
  };
  result.status = CheckMoments(Encoding::kMomentsAlone, bytes, elements);
  if (result.status.ok()) {
    const std::span<float> first = at(batch->moments->first), second = at(batch->moments->second);
    DecodeRatios(Encoding::kMomentsAlone, bytes, first, second);
    FirstFromRatios(first, second);
  }
  ShardPulled(batch, index, result, static_cast<int64_t>(words.size_bytes()));
}

bool Transfers::StartPush(Batches::iterator batch, size_t index) {
  const ShardPart& shard = batch->push.shards[index];
  const PushId id = MakePushId(batch->push, shard);
  const ElementRange range = ComputeElementRange(shard);
  // This memory is what is sent, and it stays as it is.
  const LayerBuffers& values = batch->base != nullptr ? *batch->base : batch->delta->values;
  const std::shared_ptr<const void> owner =
      batch->base != nullptr ? std::shared_ptr<const void>(batch->base) : batch->delta;
  const std::span<const float> from = FindElements(values, *batch->parts, shard.layer, range);
  if (from.empty()) return false;
  const ServerAddress server{shard.endpoint, shard.public_key};
  const Encoding encoding = batch->push.encoding;
  const Duration timeout = TransferTimeout(EncodedBytes(encoding, range.size()));
  const auto done = [this, batch, index](const PushResult& result) {
    ShardPushed(batch, index, result);
  };
  if (!IsQuantized(encoding)) {
    batch->ids[index] = client_->Push(server, id, encoding, from, owner, timeout, done);
    return true;
  }
  const std::span<const std::byte> bytes = FindEncodedBytes(*batch->delta, encoding, shard);
  if (bytes.empty()) return false;
  batch->ids[index] =
      client_->Push(server, id, encoding, range.size(), bytes, batch->delta, timeout, done);
  return true;
}

void Transfers::ShardPulled(Batches::iterator batch, size_t index, const PullResult& result,
                            int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const ShardPart& shard = batch->shard(index);
  if (result.status.ok()) {
    batch->bytes += bytes;
  } else {
    PullFailure failure = PullFailure::kError;
    if (result.refusal == PullRefusal::kNotYet) failure = PullFailure::kNotYet;
    if (result.refusal == PullRefusal::kSuperseded) failure = PullFailure::kSuperseded;
    FailPull(*batch, failure, result.version, About(shard, result.status.message()));
  }
  --running_;
  AfterShard(batch, index);
}

// The other shards are of no use any more.
void Transfers::FailPull(Batch& batch, PullFailure failure, Version newer, std::string reason) {
  if (batch.failed) return;
  batch.failed = true;
  batch.failure = {batch.pull.pull, failure, newer, std::move(reason)};
  for (const auto& [index, id] : batch.ids) client_->Cancel(id);
}

void Transfers::ShardPushed(Batches::iterator batch, size_t index, const PushResult& result) {
  const std::lock_guard lock(mutex_);
  const ShardPart& shard = batch->push.shards[index];
  PushShardDone done{MakePushId(batch->push, shard)};
  if (result.status.ok()) {
    done.bytes = EncodedBytes(batch->push.encoding, shard.part().size());
  } else {
    done.status = absl::IsFailedPrecondition(result.status) ? ShardPushStatus::kRefused
                                                            : ShardPushStatus::kFailed;
    done.reason = About(shard, result.status.message());
  }
  if (!cancelling_) post_(std::move(done));
  --running_;
  AfterShard(batch, index);
}

void Transfers::AfterShard(Batches::iterator batch, size_t index) {
  batch->ids.erase(index);
  StartMore(batch);
  if (--batch->running > 0) return;
  if (batch->is_pull && !cancelling_) {
    if (batch->failed) {
      post_(batch->failure);
    } else {
      post_(PullDone{batch->pull.pull, batch->bytes});
    }
  }
  batches_.erase(batch);
  ended_.notify_all();
}

void Transfers::CancelAll() {
  std::unique_lock lock(mutex_);
  cancelling_ = true;
  for (const Batch& batch : batches_) {
    for (const auto& [index, id] : batch.ids) client_->Cancel(id);
  }
  ended_.wait(lock, [this] { return batches_.empty(); });
  cancelling_ = false;
}

}  // namespace atl::worker
