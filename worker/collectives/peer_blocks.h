// Blocks of collectives that come to one worker and leave it, over the link that the workers of an
// island have anyway (common/net/peer/peer_link.h): authenticated and encrypted where there are
// keys.
//
// A block is a chunk of a tensor that one member of a group sends to another. Those of one kind
// from one member to another are taken in the order in which they were sent. What has come waits
// here until its member takes it, and counts against its sender's credit meanwhile, so memory stays
// bounded. Blocks for other than members here are not taken at all.

#ifndef ATOLL_WORKER_COLLECTIVES_PEER_BLOCKS_H_
#define ATOLL_WORKER_COLLECTIVES_PEER_BLOCKS_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/ids.h"
#include "common/net/peer/peer_link.h"
#include "common/status.h"
#include "common/time.h"

namespace atl::worker {

inline constexpr int64_t kBlockBytesMax = int64_t{1} << 20;

enum class BlockKind {
  kPart,    // the sender's numbers
  kResult,  // reduced ones
  kLeft,    // the sender leaves in good order: nothing follows
  kFailed,  // it has failed, and with it the group; the payload says why
};

struct BlockName {
  std::string group;
  int32_t from = 0;  // ranks
  int32_t to = 0;
  int64_t call = 0;  // number of the collective, from 1
  BlockKind kind = BlockKind::kPart;
  int64_t offset = 0;  // of its first element

  bool operator==(const BlockName&) const = default;
};

// Thread-safe.
class PeerBlocks {
 public:
  // `link`: made later, before the first block, and outlives the last.
  PeerBlocks(NodeId self, const std::unique_ptr<PeerLink>* link);

  // ---- For the link's handler, on its thread. ----
  absl::Status Admit(absl::string_view header, int64_t payload_bytes);
  void OnMessage(PeerDelivery delivery);
  void OnPeerLost() { Wake(); }  // the link says which

  // Forgets blocks and members of all groups whose names do not begin so.
  void BeginScope(const std::string& prefix);

  // ---- For members of groups. ----
  // From now on numbers that come for this member are kept for it, until Close or another scope.
  void Open(const std::string& group, int32_t rank);
  struct Block {
    Payload payload;
    std::shared_ptr<const void> credit;
    std::optional<uint64_t> checksum = std::nullopt;  // of the payload, still to be checked
  };
  // `bytes` stay unchanged while `owner` exists here.
  // `checksum`: where it is known, and the link needs one.
  absl::Status Send(const NodeId& to, const BlockName& name, std::span<const std::byte> bytes,
                    std::shared_ptr<const void> owner,
                    std::optional<uint64_t> checksum = std::nullopt);
  bool has_checksums() const { return (*link_)->has_checksums(); }
  // Waits for the next block from this member, which has this name and size, or the group is
  // broken. Unavailable: the member has failed or the group has ended. DeadlineExceeded. Aborted:
  // see End.
  absl::StatusOr<Block> Take(const NodeId& worker, const BlockName& name, int64_t bytes,
                             Instant deadline);
  // The same, but without a block where none has come and `ends` says not to wait any longer. It is
  // called under a lock, at first and after each Wake.
  absl::StatusOr<std::optional<Block>> TakeUnless(const NodeId& worker, const BlockName& name,
                                                  int64_t bytes, Instant deadline,
                                                  const std::function<bool()>& ends);
  // REQUIRES: the block has a checksum. DataLoss: `hash` is another one, so the block was changed
  // in flight from this worker, which is lost with that.
  absl::Status Check(const NodeId& worker, const Block& block, uint64_t hash);
  // Every TakeUnless that waits calls its `ends` again.
  void Wake();
  // Returns the pool for what members send: buffers that were returned last are handed out first.
  BufferPool& buffers() { return *pool_; }
  // Ends every Take of this member, now and later, with `why`.
  void End(const std::string& group, int32_t rank, const absl::Status& why);
  // The member is no more: what comes for it is dropped.
  void Close(const std::string& group, int32_t rank);

 private:
  struct Arrived {
    NodeId worker;
    BlockName name;
    Block block;
  };
  // The blocks that have come for one member of a group. Parts and results of one sender wait for
  // each other nowhere, so a member may take them in any order of the kinds.
  struct Box {
    std::map<std::pair<int32_t, BlockKind>, std::deque<Arrived>> from;
    std::map<int32_t, bool> left;
    absl::Status ended;
    bool open = false;  // for numbers; notices that others leave or fail may come before
  };

  bool IsOpen(const BlockName& name) const;  // REQUIRES: mutex_ is held
  bool IsLost(const NodeId& worker) const;
  void Deliver(const NodeId& worker, BlockName name, Block block);

  const NodeId self_;
  const std::unique_ptr<PeerLink>* const link_;
  const std::shared_ptr<BufferPool> pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::string, int32_t>, Box> boxes_;  // guarded by mutex_; by group and rank
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_PEER_BLOCKS_H_
