// Large transfers in segments: ranges of elements that are pushed and pulled by themselves, over
// whichever connection has the fewest. A segment that was staged is not sent again, whatever
// happens to its connection, to the server or to the transfer: its next attempt is cut at the same
// elements.

#include <algorithm>

#include "common/net/tensor/tensor_client.h"

namespace atl {
namespace {

// The size of a segment, as encoded: so few bytes that the last ones of a transfer do not keep one
// connection busy for long, so many that the round trip of each, and its place in the server's log,
// cost nothing beside them.
constexpr int64_t kSegmentBytes = int64_t{8} << 20;
// Segments of a connection of which bytes are still to come: one moves while the next one's opening
// is answered. More would wait for a slow connection when the others are done.
constexpr int kMovingAConnection = 2;
// With those that only wait for their acknowledgement, which comes when the server's disk has them;
// of one server's connections on average.
constexpr size_t kOpenAConnection = 8;

}  // namespace

// In a shard cuts are at multiples of this.
int64_t TensorClient::SegmentElements(const Transfer& transfer) const {
  if (!transfer.is_push) return kSegmentBytes / BytesPerElement(transfer.encoding);
  const int64_t block = PartBlock(transfer.encoding);
  return kSegmentBytes / EncodedBytes(transfer.encoding, block) * block;
}

// The newest version may be another one from segment to segment.
bool TensorClient::IsSplit(const Transfer& transfer) const {
  return transfer.elements() > SegmentElements(transfer) &&
         (transfer.is_push || transfer.request.version != kNoVersion);
}

void TensorClient::StartSegments() {
  for (const auto& [server, connections] : connections_) {
    for (const auto& connection : connections) connection->moving = 0;
  }
  for (const auto& [id, transfer] : transfers_) {
    const bool sent = transfer->outgoing && transfer->outgoing->done();
    if (!sent) ++transfer->connection->moving;
  }
  std::map<ServerAddress, size_t> open;
  for (const auto& [id, split] : splits_) open[split.whole->server] += split.open.size();
  for (auto it = splits_.begin(); it != splits_.end();) {
    const TransferId id = it->first;
    Split& split = (it++)->second;  // a segment that cannot begin ends it
    if (now_ >= split.whole->deadline) {
      FailSplit(id, {absl::DeadlineExceededError("not done in its time")});
      continue;
    }
    const ServerAddress server = split.whole->server;
    while (splits_.contains(id) && !split.failure && split.next < split.whole->elements() &&
           HasRoom(server, open[server])) {
      ++open[server];
      StartSegment(id, split);
    }
  }
}

// Returns whether one more segment may begin where so many are open.
bool TensorClient::HasRoom(const ServerAddress& server, size_t open) {
  const auto& connections = connections_[server];
  if (open < kMovingAConnection) return true;  // perhaps no connection is up yet
  return open < kOpenAConnection * connections.size() &&
         std::any_of(connections.begin(), connections.end(), [](const auto& connection) {
           return connection->link->up() && connection->moving < kMovingAConnection;
         });
}

void TensorClient::StartSegment(TransferId id, Split& split) {
  const Transfer& whole = *split.whole;
  auto segment = std::make_unique<Transfer>();
  segment->id = next_id_++;
  segment->server = whole.server;
  segment->is_push = whole.is_push;
  segment->encoding = whole.encoding;
  segment->owner = whole.owner;
  segment->opened = now_;
  segment->deadline = whole.deadline;
  const int64_t step = SegmentElements(whole);
  const int64_t first = whole.is_push ? whole.push_id.begin : whole.request.begin;
  const int64_t begin = split.next;
  const int64_t end = std::min(whole.elements(), ((first + begin) / step + 1) * step - first);
  split.next = end;
  const auto from = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
  if (whole.is_push) {
    segment->push_id = whole.push_id;
    segment->push_id.begin = first + begin;
    segment->push_id.elements = segment->element_count = end - begin;
    if (whole.source_bytes.empty()) {
      segment->source = whole.source.subspan(from, count);
    } else {
      const auto offset = static_cast<size_t>(EncodedBytes(whole.encoding, begin));
      const auto bytes = static_cast<size_t>(EncodedBytes(whole.encoding, end - begin));
      segment->source_bytes = whole.source_bytes.subspan(offset, bytes);
    }
  } else {
    segment->request = whole.request;
    segment->request.begin = first + begin;
    segment->request.elements = end - begin;
    segment->destination = whole.destination.subspan(from, count);
  }
  segment->done = [this, id, number = segment->id](TransferResult result) {
    SegmentDone(id, number, std::move(result));
  };
  split.open.insert(segment->id);
  Transfer& added = *segment;
  transfers_[added.id] = std::move(segment);
  Connect(added);
}

void TensorClient::SegmentDone(TransferId id, TransferId segment, TransferResult result) {
  const auto it = splits_.find(id);
  if (it == splits_.end()) return;
  Split& split = it->second;
  split.open.erase(segment);
  if (!result.status.ok()) return FailSplit(id, std::move(result));
  split.version = result.version;
  if (result.push_status == PushStatus::kStaged) split.staged = true;
  const bool over = split.failure || split.next >= split.whole->elements();
  if (over && split.open.empty()) EndSplit(id);
}

// Ends a split transfer, whose open segments are of no use any more. Its end waits for theirs: they
// write to its memory.
void TensorClient::FailSplit(TransferId id, TransferResult failure) {
  Split& split = splits_.at(id);
  if (!split.failure) {
    split.failure = std::move(failure);
    // Not now: who calls may be going through the transfers.
    for (const TransferId segment : split.open) Cancel(segment);
  }
  if (split.open.empty()) EndSplit(id);
}

void TensorClient::EndSplit(TransferId id) {
  const Split split = std::move(splits_.extract(id).mapped());
  TransferResult result{absl::OkStatus(),
                        split.staged ? PushStatus::kStaged : PushStatus::kDuplicate, split.version};
  split.whole->done(split.failure ? *split.failure : result);
}

}  // namespace atl
