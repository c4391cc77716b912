#include "bench/servers/pusher.h"

#include <cstdio>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/event_loop.h"
#include "worker/outer/transfer_limits.h"

namespace atl::bench {
namespace {

constexpr int64_t kElementsMax = int64_t{16} << 20;  // of a shard: the coordinator's bound

double NowS() { return Seconds(SteadyNow().time_since_epoch()); }

int64_t CountElements(const ShardPlacement& at, const PushId& push) {
  return push.elements == 0 ? at.elements : push.elements;
}

}  // namespace

Pusher::Pusher(IslandId island, TensorClientOptions options)
    : island_(island), client_(TensorClient::Create(std::move(options)).value()) {
  values_->resize(kElementsMax);
  pulled_.resize(kElementsMax);
  uint32_t state = 1;
  for (float& value : *values_) {
    state = state * 1664525 + 1013904223;
    value = (static_cast<float>(state >> 8) / (1 << 24) - 0.5f) * 0.02f;
  }
}

// Blocks of 256 elements of a small scale, with codes from 1 to 15; the bytes of a shorter tensor
// are a beginning of them.
std::span<const std::byte> Pusher::Encoded(Encoding encoding, int64_t elements) {
  if (encoded_->empty()) {
    encoded_->resize(static_cast<size_t>(EncodedBytes(encoding, kElementsMax)));
    const auto block = static_cast<size_t>(EncodedBytes(encoding, kQuantBlock));
    const float scale = 1e-3f;
    uint32_t state = 1;
    for (size_t at = 0; at < encoded_->size(); at += block) {
      std::memcpy(encoded_->data() + at, &scale, sizeof scale);
      for (size_t i = at + sizeof scale; i < at + block; ++i) {
        state = state * 1664525 + 1013904223;
        const uint32_t low = 1 + (state >> 16) % 15, high = 1 + (state >> 24) % 15;
        (*encoded_)[i] = static_cast<std::byte>(low | high << 4);
      }
    }
  }
  return std::span(*encoded_).first(static_cast<size_t>(EncodedBytes(encoding, elements)));
}

void Pusher::Push(const ShardPlacement& at, const PushId& push, Encoding encoding) {
  const std::lock_guard lock(mutex_);
  shards_[at.shard] = at;
  if (!known_.insert(push).second) return;
  waiting_.push_back({at, push, encoding});
  StartSome();
}

void Pusher::Pull(Version version) {
  const std::lock_guard lock(mutex_);
  for (const auto& [shard, at] : shards_) {
    PushId id;
    id.job = known_.begin()->job;
    id.base_version = version;
    waiting_.push_back({at, id, Encoding::kFloat32, /*is_pull=*/true});
  }
  StartSome();
}

void Pusher::StartSome() {
  while (!waiting_.empty() && running_ < worker::kShardsAtOnce) {
    const Transfer transfer = waiting_.front();
    waiting_.pop_front();
    if (running_ == 0 && batch_.begin_s == 0) batch_ = {NowS(), 0};
    ++running_;
    Start(transfer);
  }
}

void Pusher::Start(const Transfer& transfer) {
  const ServerAddress server{transfer.at.endpoint, transfer.at.public_key};
  const int64_t elements = CountElements(transfer.at, transfer.push);
  ATOLL_CHECK(elements <= kElementsMax);
  const Duration limit = worker::TransferTimeout(EncodedBytes(transfer.encoding, elements));
  const double begin_s = NowS();
  if (transfer.is_pull) {
    PullRequest request{transfer.push.job, transfer.push.base_version, transfer.at.shard};
    client_->Pull(server, request, std::span(pulled_).first(static_cast<size_t>(elements)), limit,
                  [this, transfer, begin_s](const PullResult& result) {
                    Ended(transfer, begin_s, result.status);
                  });
    return;
  }
  const auto done = [this, transfer, begin_s](const PushResult& result) {
    Ended(transfer, begin_s, result.status);
  };
  if (IsQuantized(transfer.encoding)) {
    client_->Push(server, transfer.push, transfer.encoding, elements,
                  Encoded(transfer.encoding, elements), encoded_, limit, done);
  } else {
    client_->Push(server, transfer.push, transfer.encoding,
                  std::span<const float>(*values_).first(static_cast<size_t>(elements)), values_,
                  limit, done);
  }
}

void Pusher::Ended(const Transfer& transfer, double begin_s, const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  const double end_s = NowS();
  const int64_t bytes = EncodedBytes(transfer.encoding, CountElements(transfer.at, transfer.push));
  if (!status.ok()) {
    known_.erase(transfer.push);
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  } else {
    batch_.bytes += bytes;
    if (!transfer.is_pull) {
      std::printf("push %.4f %.4f %lld\n", begin_s, end_s, static_cast<long long>(bytes));
    }
  }
  --running_;
  StartSome();
  if (running_ == 0) {
    std::printf("%s %d %.4f %.4f %lld\n", transfer.is_pull ? "pulled" : "pushed", island_,
                batch_.begin_s, end_s, static_cast<long long>(batch_.bytes));
    batch_ = {};
  }
  std::fflush(stdout);
}

}  // namespace atl::bench
