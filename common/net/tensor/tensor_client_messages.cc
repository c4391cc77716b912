// The messages of a segment: its opening, chunks, answers.

#include <algorithm>

#include "common/net/tensor/tensor_client.h"

namespace atl {
namespace {

constexpr int kChunksPerTurn = 8;
constexpr Duration kBusyDelay = std::chrono::milliseconds(100);
constexpr Duration kCorruptDelay = std::chrono::milliseconds(10);
constexpr char kTakesNothing[] = "the connection takes nothing";

}  // namespace

bool TensorClient::Pump() {
  int sent = 0;
  for (bool any = true; any && sent < kChunksPerTurn;) {
    any = false;
    for (auto& [id, segment] : segments_) {
      if (!segment.connection->link->up()) MoveToAnother(segment);
      if (!segment.connection->link->up()) continue;
      if (segment.attempt == 0 && now_ >= segment.not_before) Open(segment);
      if (segment.attempt == 0 || !SendChunk(segment)) continue;
      any = true;
      ++sent;
    }
  }
  return sent >= kChunksPerTurn;
}

void TensorClient::Open(Segment& segment) {
  const Transfer& whole = *segment.whole;
  v1::Frame frame = MakeFrame(next_attempt_++);
  segment.attempt = frame.transfer();
  segment_by_attempt_[segment.attempt] = &segment;
  segment.replied = false;
  if (whole.is_push) {
    segment.outgoing.reset();
    PushId id = whole.push_id;
    if (IsSplit(whole)) {
      id.begin += segment.begin;
      id.elements = segment.end - segment.begin;
    }
    v1::PushOpen* open = frame.mutable_push_open();
    SetPushId(id, open);
    open->set_encoding(WireEncoding(whole.encoding));
    open->set_element_count(segment.end - segment.begin);
    open->set_chunk_bytes(options_.chunk_bytes);
    segment.waiting_for = "the server to admit it";
  } else {
    PullRequest request = whole.request;
    if (IsSplit(whole)) {
      request.begin += segment.begin;
      request.elements = segment.end - segment.begin;
    }
    v1::PullOpen* open = frame.mutable_pull_open();
    SetRequest(request, open);
    open->set_chunk_bytes(options_.chunk_bytes);
    open->set_held_version(segment.version);
    open->set_first_chunk(segment.version == kNoVersion ? 0 : segment.incoming->next());
    segment.waiting_for = "the server's reply";
  }
  if (segment.connection->link->Send(frame) != SendOutcome::kSent) {
    return TryAgain(segment, kTakesNothing, kCorruptDelay);
  }
  segment.opened_at = now_;
  if (++segment.attempts > 1) Count(&LinkCounters::restarts);
}

bool TensorClient::SendChunk(Segment& segment) {
  if (!segment.outgoing || segment.outgoing->done() || !pace_.Ready(now_)) return false;
  const int64_t bytes = segment.outgoing->next_bytes();
  Connection& connection = *segment.connection;
  if (!connection.account->Admits(bytes)) return false;
  v1::Frame frame = MakeFrame(segment.attempt);
  Message payload = segment.outgoing->Next(*pool_, connection.account, frame.mutable_chunk(),
                                           /*checksum=*/segment.whole->server.public_key.empty());
  if (connection.link->Send(std::move(frame), &payload) != SendOutcome::kSent) {
    TryAgain(segment, kTakesNothing, kCorruptDelay);
    return false;
  }
  pace_.Spend(bytes, now_);
  Count(&LinkCounters::payload_bytes_sent, bytes);
  segment.waiting_for = segment.outgoing->done() ? "the server to keep it" : "room to send";
  return true;
}

void TensorClient::SendCancel(Segment& segment) {
  if (!segment.connection->link->up()) return;
  v1::Frame frame = MakeFrame(segment.attempt);
  frame.mutable_cancel();
  segment.connection->link->Send(frame);
}

void TensorClient::OnFrame(Connection& connection, LinkFrame& in) {
  if (!in.status.ok()) return Count(&LinkCounters::frames_refused);
  const v1::Frame& frame = in.frame;
  const auto it = segment_by_attempt_.find(frame.transfer());
  if (it == segment_by_attempt_.end()) return;  // of an attempt or a transfer that has ended
  Segment& segment = *it->second;
  const bool is_push = segment.whole->is_push;
  // A server only answers requests.
  if (segment.connection == &connection) {
    if (frame.has_transfer_end()) return OnEnd(segment, frame.transfer_end());
    if (frame.has_chunk() && !is_push) return OnChunk(segment, in);
    if (frame.has_transfer_start() && is_push) return OnPushStart(segment, frame.transfer_start());
    if (frame.has_transfer_start()) return OnPullStart(segment, frame.transfer_start());
  }
  Count(&LinkCounters::frames_refused);
}

void TensorClient::OnPushStart(Segment& segment, const v1::TransferStart& start) {
  if (segment.outgoing) return Count(&LinkCounters::frames_refused);
  const Transfer& whole = *segment.whole;
  const auto begin = segment.begin, count = segment.end - segment.begin;
  PathTo(whole.server).RoundTrip(now_ - segment.opened_at);
  if (whole.source_bytes.empty()) {
    segment.outgoing.emplace(
        whole.encoding,
        whole.source.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), whole.owner,
        options_.chunk_bytes);
  } else {
    const auto from = static_cast<size_t>(EncodedBytes(whole.encoding, begin));
    const auto bytes = static_cast<size_t>(EncodedBytes(whole.encoding, count));
    segment.outgoing.emplace(whole.source_bytes.subspan(from, bytes), whole.owner,
                             options_.chunk_bytes);
  }
  segment.outgoing->SkipTo(std::min(start.first_chunk(), segment.outgoing->chunk_count()));
}

void TensorClient::OnPullStart(Segment& segment, const v1::TransferStart& start) {
  const int64_t elements = segment.end - segment.begin;
  const Version wanted = segment.whole->request.version;
  if (start.element_count() != elements) {
    return End(
        segment,
        {absl::InvalidArgumentError(absl::StrCat("the server's tensor has ", start.element_count(),
                                                 " elements, the destination ", elements))});
  }
  if (segment.replied) return Count(&LinkCounters::frames_refused);
  if (wanted != kNoVersion && start.version() != wanted) {
    return TryAgain(
        segment,
        absl::StrCat("the server sends version ", start.version(), ", not version ", wanted),
        kBusyDelay);
  }
  if (start.version() != segment.version || start.first_chunk() == 0) segment.incoming->Restart();
  if (start.first_chunk() != segment.incoming->next()) {
    return TryAgain(segment, "the server goes on elsewhere than where we stopped", kBusyDelay);
  }
  PathTo(segment.whole->server).RoundTrip(now_ - segment.opened_at);
  segment.version = start.version();
  segment.replied = true;
  segment.waiting_for = "chunks";
  if (segment.incoming->complete()) End(segment, {.version = segment.version});
}

void TensorClient::OnEnd(Segment& segment, const v1::TransferEnd& end) {
  const bool is_push = segment.whole->is_push;
  const v1::TransferEnd::Outcome outcome = end.outcome();
  TransferResult refused{.status = absl::FailedPreconditionError(
                             absl::StrCat("the server refused it: ", end.reason()))};
  const bool of_push = outcome == v1::TransferEnd::STAGED || outcome == v1::TransferEnd::DUPLICATE;
  const bool of_pull = outcome >= v1::TransferEnd::NOT_YET && outcome <= v1::TransferEnd::UNKNOWN;
  if (is_push ? of_pull : of_push) return Count(&LinkCounters::frames_refused);
  if (outcome == v1::TransferEnd::REFUSED) return End(segment, refused);
  if (outcome == v1::TransferEnd::STAGED) {
    PathTo(segment.whole->server)
        .Moved(EncodedBytes(segment.whole->encoding, segment.end - segment.begin), now_);
    return End(segment, {.push_status = PushStatus::kStaged});
  }
  if (of_push) {
    return End(segment, {.push_status = PushStatus::kDuplicate});
  }
  if (of_pull) {
    refused.version = end.current_version();
    refused.refusal = static_cast<PullRefusal>(outcome - v1::TransferEnd::NOT_YET);
    return End(segment, refused);
  }
  TryAgain(segment, end.reason(), kBusyDelay);
}

void TensorClient::OnChunk(Segment& segment, LinkFrame& in) {
  absl::Status status = in.opened;
  if (!segment.replied) status = absl::InvalidArgumentError("a chunk before the reply");
  if (status.ok()) status = segment.incoming->Accept(in.frame.chunk(), in.payload.bytes());
  if (!status.ok()) {
    Count(&LinkCounters::frames_refused);
    return TryAgain(segment, std::string(status.message()), kCorruptDelay);
  }
  const ServerAddress& server = segment.whole->server;
  const auto bytes = static_cast<int64_t>(in.payload.bytes().size());
  Count(&LinkCounters::payload_bytes_received, bytes);
  PathTo(server).Moved(bytes, now_);
  {
    const std::lock_guard lock(rates_mutex_);
    pull_rates_.Received(server.endpoint, bytes, now_);
  }
  if (segment.incoming->complete()) End(segment, {.version = segment.version});
}

void TensorClient::TryAgain(Segment& segment, const std::string& why, Duration delay) {
  if (segment.attempt != 0) {
    segment_by_attempt_.erase(segment.attempt);
    if (!segment.whole->is_push) SendCancel(segment);
  }
  segment.attempt = 0;
  segment.last_error = why;
  segment.waiting_for = "a new attempt";
  segment.not_before = now_ + delay;
}

}  // namespace atl
