#include "worker/collectives/block_exchange.h"

#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/codec.h"

namespace atl::worker {

BlockExchange::BlockExchange(PeerBlocks* blocks, PeerGroup group)
    : blocks_(*blocks), group_(std::move(group)) {
  blocks_.Open(group_.name, group_.rank);
}

BlockExchange::~BlockExchange() {
  if (failure().ok()) NotifyPeers(BlockKind::kLeft, "");
  blocks_.Close(group_.name, group_.rank);
}

std::byte* BlockExchange::Fresh(Memory& memory, int64_t size) {
  std::swap(memory.now, memory.before);
  if (memory.now == nullptr || memory.now.use_count() > 1) {
    memory.now = std::make_shared<std::vector<std::byte>>();
  }
  memory.now->resize(static_cast<size_t>(size));
  return memory.now->data();
}

absl::Status BlockExchange::SendCopy(int to, BlockKind kind, int64_t offset,
                                     std::span<const std::byte> bytes,
                                     std::shared_ptr<const void> owner,
                                     std::optional<uint64_t> checksum) {
  return blocks_.Send(group_.workers[to], Name(rank(), to, kind, offset), bytes, std::move(owner),
                      checksum);
}

std::optional<uint64_t> BlockExchange::Copy(const void* from, Payload& to) const {
  const auto size = static_cast<size_t>(to.size());
  if (blocks_.has_checksums()) {
    return CopyAndHash({static_cast<const std::byte*>(from), size}, {to.data(), size});
  }
  std::memcpy(to.data(), from, size);
  return std::nullopt;
}

absl::Status BlockExchange::CopyBlock(int from, const PeerBlocks::Block& block, void* to) {
  const std::span<const std::byte> bytes = block.payload.bytes();
  auto* const out = static_cast<std::byte*>(to);
  if (block.checksum) return CheckHash(from, block, CopyAndHash(bytes, {out, bytes.size()}));
  std::memcpy(out, bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status BlockExchange::Check(int from, const PeerBlocks::Block& block) {
  if (!block.checksum) return absl::OkStatus();
  return CheckHash(from, block, Hash(block.payload.bytes()));
}

absl::Status BlockExchange::CheckHash(int from, const PeerBlocks::Block& block, uint64_t hash) {
  return blocks_.Check(group_.workers[from], block, hash);
}

absl::Status BlockExchange::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

absl::Status BlockExchange::Fail(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    failure_ =
        Annotate(status, absl::StrCat("rank ", rank(), " of ", size(), " in group ", group_.name));
  }
  blocks_.End(group_.name, group_.rank, status);
  NotifyPeers(BlockKind::kFailed, std::string(status.message()));
  return failure();
}

void BlockExchange::NotifyPeers(BlockKind kind, const std::string& why) {
  const auto text = std::make_shared<const std::string>(why.substr(0, 400));
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    (void)blocks_.Send(group_.workers[other], {group_.name, rank(), other, 0, kind, 0},
                       std::as_bytes(std::span(*text)), text);
  }
}

std::shared_ptr<SendAccount> NewUnsent(PeerBlocks* blocks) {
  return std::make_shared<SendAccount>(
      std::make_shared<SendAccount::Total>(0), std::numeric_limits<int64_t>::max(),
      [blocks] { blocks->Wake(); }, 2 * kBlockBytesMax);
}

}  // namespace atl::worker
