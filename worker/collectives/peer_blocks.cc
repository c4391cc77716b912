#include "worker/collectives/peer_blocks.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/event_loop.h"

namespace atl::worker {
namespace {

constexpr absl::string_view kHeaderKeyword = "sum";
// Together they bound what members that only say that they leave can make us remember.
constexpr int32_t kRankMax = 1 << 10;
constexpr size_t kBoxesMax = 1 << 12;
constexpr int64_t kTextBytesMax = 500;  // of why a member has failed

// "sum FROM TO CALL KIND OFFSET GROUP"
std::string MakeHeader(const BlockName& name) {
  return absl::StrCat(kHeaderKeyword, " ", name.from, " ", name.to, " ", name.call, " ",
                      static_cast<int>(name.kind), " ", name.offset, " ", name.group);
}

absl::StatusOr<BlockName> Parse(absl::string_view header) {
  const std::vector<std::string> words = absl::StrSplit(header, absl::MaxSplits(' ', 6));
  BlockName name;
  int kind = 0;
  const bool fits =
      words.size() == 7 && words[0] == kHeaderKeyword && absl::SimpleAtoi(words[1], &name.from) &&
      absl::SimpleAtoi(words[2], &name.to) && absl::SimpleAtoi(words[3], &name.call) &&
      absl::SimpleAtoi(words[4], &kind) && absl::SimpleAtoi(words[5], &name.offset) &&
      name.from >= 0 && name.from < kRankMax && name.to >= 0 && name.to < kRankMax && kind >= 0 &&
      kind <= static_cast<int>(BlockKind::kFailed);
  if (!fits) return absl::InvalidArgumentError("not the header of a collective's block");
  name.kind = static_cast<BlockKind>(kind);
  name.group = words[6];
  return name;
}

bool HasNumbers(BlockKind kind) { return kind == BlockKind::kPart || kind == BlockKind::kResult; }

std::string TextFromPayload(const Payload& payload) {
  return std::string(reinterpret_cast<const char*>(payload.data()),
                     static_cast<size_t>(std::min<int64_t>(payload.size(), kTextBytesMax)));
}

}  // namespace

PeerBlocks::PeerBlocks(NodeId self, const std::unique_ptr<PeerLink>* link)
    : self_(std::move(self)), link_(link), pool_(BufferPool::Create(8 * kBlockBytesMax)) {}

bool PeerBlocks::IsOpen(const BlockName& name) const {
  const auto box = boxes_.find({name.group, name.to});
  return box != boxes_.end() && box->second.open;
}

bool PeerBlocks::IsLost(const NodeId& worker) const {
  return worker != self_ && *link_ != nullptr && (*link_)->IsLost(worker);
}

absl::Status PeerBlocks::Admit(absl::string_view header, int64_t payload_bytes) {
  if (payload_bytes > kBlockBytesMax) {
    return absl::InvalidArgumentError("a collective's block is too long");
  }
  ATOLL_ASSIGN_OR_RETURN(const BlockName name, Parse(header));
  if (!HasNumbers(name.kind)) {
    return payload_bytes <= kTextBytesMax ? absl::OkStatus()
                                          : absl::InvalidArgumentError("a reason is too long");
  }
  const std::lock_guard lock(mutex_);
  if (IsOpen(name)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("rank ", name.to, " of group ", name.group, " is not at ", self_));
}

void PeerBlocks::OnMessage(PeerDelivery delivery) {
  absl::StatusOr<BlockName> name = Parse(delivery.header);
  if (!name.ok()) return;  // Admit has seen to it
  Deliver(delivery.from, *std::move(name),
          {std::move(delivery.payload), std::move(delivery.credit), delivery.checksum});
}

void PeerBlocks::Deliver(const NodeId& worker, BlockName name, Block block) {
  const std::lock_guard lock(mutex_);
  if (HasNumbers(name.kind) && !IsOpen(name)) return;  // its member has ended since it was admitted
  const std::pair key(name.group, name.to);
  if (boxes_.size() >= kBoxesMax && !boxes_.contains(key)) return;  // no worker has so many groups
  Box& box = boxes_[key];
  if (name.kind == BlockKind::kFailed) {
    if (box.ended.ok()) {
      box.ended = absl::UnavailableError(
          absl::StrCat("rank ", name.from, " has failed: ", TextFromPayload(block.payload)));
    }
  } else if (name.kind == BlockKind::kLeft) {
    box.left[name.from] = true;
  } else {
    const std::pair from(name.from, name.kind);
    box.from[from].push_back({worker, std::move(name), std::move(block)});
  }
  changed_.notify_all();
}

void PeerBlocks::Wake() {
  const std::lock_guard lock(mutex_);  // a thread between its check and its wait is notified
  changed_.notify_all();
}

void PeerBlocks::BeginScope(const std::string& prefix) {
  const std::lock_guard lock(mutex_);
  std::erase_if(boxes_,
                [&](const auto& entry) { return !absl::StartsWith(entry.first.first, prefix); });
}

absl::Status PeerBlocks::Send(const NodeId& to, const BlockName& name,
                              std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                              std::optional<uint64_t> checksum) {
  if (to != self_) {
    return (*link_)->Send(to, {.channel = PeerChannel::kCollective,
                               .header = MakeHeader(name),
                               .payload = bytes,
                               .owner = std::move(owner),
                               .checksum = checksum});
  }
  Block block{pool_->Take(static_cast<int64_t>(bytes.size())), nullptr};
  if (!bytes.empty()) std::memcpy(block.payload.data(), bytes.data(), bytes.size());
  Deliver(self_, name, std::move(block));
  return absl::OkStatus();
}

absl::StatusOr<PeerBlocks::Block> PeerBlocks::Take(const NodeId& worker, const BlockName& name,
                                                   int64_t bytes, Instant deadline) {
  const auto never = [] { return false; };
  ATOLL_ASSIGN_OR_RETURN(std::optional<Block> block,
                         TakeUnless(worker, name, bytes, deadline, never));
  ATOLL_CHECK(block.has_value());
  return *std::move(block);
}

absl::StatusOr<std::optional<PeerBlocks::Block>> PeerBlocks::TakeUnless(
    const NodeId& worker, const BlockName& name, int64_t bytes, Instant deadline,
    const std::function<bool()>& ends) {
  std::unique_lock lock(mutex_);
  for (;;) {
    Box& box = boxes_[{name.group, name.to}];  // again: BeginScope may have taken it
    ATOLL_RETURN_IF_ERROR(box.ended);
    std::deque<Arrived>& queue = box.from[{name.from, name.kind}];
    if (!queue.empty()) {
      Arrived arrived = std::move(queue.front());
      queue.pop_front();
      if (arrived.worker == worker && arrived.name == name &&
          arrived.block.payload.size() == bytes) {
        return std::move(arrived.block);
      }
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", name.from, " is out of step: its call ", arrived.name.call, ", ",
                       arrived.block.payload.size(), " bytes, came in place of call ", name.call,
                       ", ", bytes, " bytes"));
    }
    if (box.left[name.from]) {
      return absl::UnavailableError(absl::StrCat("rank ", name.from, " has left"));
    }
    if (IsLost(worker)) {
      return absl::UnavailableError(absl::StrCat(worker, " is lost"));
    }
    if (ends()) return std::nullopt;
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", name.from, " at ", worker, " has not come"));
    }
    changed_.wait_until(lock, ToSteady(deadline));
  }
}

absl::Status PeerBlocks::Check(const NodeId& worker, const Block& block, uint64_t hash) {
  if (hash == block.checksum) return absl::OkStatus();
  const std::string why = "a collective's block has a wrong checksum";
  (*link_)->Lose(worker, why);
  return absl::DataLossError(absl::StrCat(worker, ": ", why));
}

void PeerBlocks::End(const std::string& group, int32_t rank, const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  Box& box = boxes_[{group, rank}];
  if (box.ended.ok()) box.ended = why;
  changed_.notify_all();
}

void PeerBlocks::Open(const std::string& group, int32_t rank) {
  const std::lock_guard lock(mutex_);
  boxes_[{group, rank}].open = true;
}

void PeerBlocks::Close(const std::string& group, int32_t rank) {
  const std::lock_guard lock(mutex_);
  Box& box = boxes_[{group, rank}];
  box.from.clear();
  box.open = false;
}

}  // namespace atl::worker
