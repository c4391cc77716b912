// The blocks of one member of a group: what it sends to the others and takes from them, call by
// call of the group's collectives, and the failure that ends them. One thread makes calls; Fail and
// failure are thread-safe.

#ifndef ATOLL_WORKER_COLLECTIVES_BLOCK_EXCHANGE_H_
#define ATOLL_WORKER_COLLECTIVES_BLOCK_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/event_loop.h"
#include "common/net/chunks.h"
#include "common/status.h"
#include "worker/collectives/peer.h"
#include "worker/collectives/peer_blocks.h"

namespace atl::worker {

class BlockExchange {
 public:
  // Bytes that the link may still be reading: each is written anew only when it does not. Of the
  // last call's, some often are when the next begins, so there are two in turn.
  struct Memory {
    std::shared_ptr<std::vector<std::byte>> now, before;
  };

  BlockExchange(PeerBlocks* blocks, PeerGroup group);
  // Lets the others know, where nothing has failed.
  ~BlockExchange();
  BlockExchange(const BlockExchange&) = delete;
  BlockExchange& operator=(const BlockExchange&) = delete;

  int rank() const { return group_.rank; }
  int size() const { return static_cast<int>(group_.workers.size()); }
  PeerBlocks& blocks() { return blocks_; }
  Duration timeout() const { return group_.timeout; }

  // The next collective begins: blocks of the ones before are none of it.
  void BeginCall() { ++call_; }

  static std::byte* Fresh(Memory& memory, int64_t size);

  // Sends elements [at, at + count) of `memory`; to ourselves nothing is sent.
  template <typename T>
  absl::Status Send(int to, BlockKind kind, const Memory& memory, int64_t at, int64_t count,
                    int64_t offset) {
    if (to == rank()) return absl::OkStatus();
    const std::span<const std::byte> all = *memory.now;
    return blocks_.Send(group_.workers[to], Name(rank(), to, kind, offset),
                        all.subspan(at * sizeof(T), count * sizeof(T)), memory.now);
  }
  // Sends bytes that `owner` keeps, with the checksum that Copy has returned.
  absl::Status SendCopy(int to, BlockKind kind, int64_t offset, std::span<const std::byte> bytes,
                        std::shared_ptr<const void> owner, std::optional<uint64_t> checksum);

  // A checked block.
  template <typename T>
  absl::StatusOr<PeerBlocks::Block> Take(int from, BlockKind kind, int64_t offset, int64_t count) {
    ATOLL_ASSIGN_OR_RETURN(PeerBlocks::Block block, TakeUnchecked<T>(from, kind, offset, count));
    ATOLL_RETURN_IF_ERROR(Check(from, block));
    return block;
  }
  template <typename T>
  absl::StatusOr<PeerBlocks::Block> TakeUnchecked(int from, BlockKind kind, int64_t offset,
                                                  int64_t count) {
    return blocks_.Take(group_.workers[from], Name(from, rank(), kind, offset),
                        count * static_cast<int64_t>(sizeof(T)), SteadyNow() + group_.timeout);
  }
  // Nothing, if `ends` is true before the block has come. Unchecked.
  template <typename T>
  absl::StatusOr<std::optional<PeerBlocks::Block>> TakeUnless(int from, BlockKind kind,
                                                              int64_t offset, int64_t count,
                                                              Instant deadline,
                                                              const std::function<bool()>& ends) {
    return blocks_.TakeUnless(group_.workers[from], Name(from, rank(), kind, offset),
                              count * static_cast<int64_t>(sizeof(T)), deadline, ends);
  }

  // Copies as many bytes as `to` has; returns their checksum, where they are sent with it.
  std::optional<uint64_t> Copy(const void* from, Payload& to) const;
  // Copies a block's bytes and checks them.
  absl::Status CopyBlock(int from, const PeerBlocks::Block& block, void* to);
  absl::Status Check(int from, const PeerBlocks::Block& block);
  absl::Status CheckHash(int from, const PeerBlocks::Block& block, uint64_t hash);

  absl::Status failure() const;
  // The first failure stays, and the other members do not wait for us any more. Returns it.
  absl::Status Fail(const absl::Status& status);

 private:
  BlockName Name(int from, int to, BlockKind kind, int64_t offset) const {
    return {group_.name, from, to, call_, kind, offset};
  }
  // A member that cannot be reached detects the failure otherwise.
  void NotifyPeers(BlockKind kind, const std::string& why);

  PeerBlocks& blocks_;
  const PeerGroup group_;
  int64_t call_ = 0;

  mutable std::mutex mutex_;
  absl::Status failure_;  // guarded by mutex_
};

// Makes the count of the bytes of parts to one member that libzmq has not passed to the kernel yet:
// two blocks at most. More would fill no gap, and a copy leaves the processor's cache before the
// kernel reads it. When there is room again, a TakeUnless that waits is woken.
std::shared_ptr<SendAccount> NewUnsent(PeerBlocks* blocks);

// A copy of what is sent, since it must outlive a call that fails. It counts as unsent for as long
// as the link reads it.
struct PartCopy {
  PartCopy(Payload bytes, std::shared_ptr<SendAccount> account)
      : payload(std::move(bytes)), unsent(std::move(account)) {
    unsent->Add(payload.size());
  }
  ~PartCopy() {
    const int64_t bytes = payload.size();
    payload = Payload();  // first: the woken thread takes it
    unsent->Release(bytes);
  }
  PartCopy(const PartCopy&) = delete;
  PartCopy& operator=(const PartCopy&) = delete;

  Payload payload;
  const std::shared_ptr<SendAccount> unsent;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_BLOCK_EXCHANGE_H_
