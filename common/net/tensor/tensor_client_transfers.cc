// The client's part of each transfer: opening, chunks, credits, ends.

#include <algorithm>

#include "common/check.h"
#include "common/net/tensor/tensor_client.h"

namespace atl {
namespace {

constexpr int kChunksPerTurn = 8;
constexpr Duration kBusyDelay = std::chrono::milliseconds(100);
constexpr Duration kCorruptDelay = std::chrono::milliseconds(10);

}  // namespace

std::string TensorClient::Transfer::Name() const {
  const std::string what =
      is_push ? absl::StrCat("push of ", push_id.job, " shard ", push_id.shard, " to ")
              : absl::StrCat("pull of ", request.job, " shard ", request.shard, " from ");
  return what + server.endpoint;
}

void TensorClient::Pump() {
  EndLate();
  AddConnections();
  StartSegments();
  int sent = 0;
  for (bool any = true; any && sent < kChunksPerTurn;) {
    any = false;
    for (const auto& [id, transfer] : transfers_) {
      if (!transfer->connection->link->up()) MoveToAnother(*transfer);
      if (!transfer->connection->link->up()) continue;
      if (transfer->attempt == 0 && now_ >= transfer->not_before) Open(*transfer);
      if (transfer->attempt == 0) continue;
      if (!transfer->is_push) {
        SendCredit(*transfer);
      } else if (SendChunk(*transfer)) {
        any = true;
        ++sent;
      }
    }
  }
  busy_ = sent >= kChunksPerTurn;
}

SendOutcome TensorClient::SendFrame(Connection& connection, const v1::Frame& frame,
                                    Message* payload) {
  return connection.link->Send(frame, payload);
}

void TensorClient::Open(Transfer& transfer) {
  v1::Frame frame = MakeFrame(next_attempt_++);
  transfer.attempt = frame.transfer();
  transfer_by_attempt_[transfer.attempt] = &transfer;
  transfer.replied = false;
  if (transfer.is_push) {
    transfer.outgoing.reset();
    transfer.chunk_limit = 0;
    v1::PushOpen* open = frame.mutable_push_open();
    SetPushId(transfer.push_id, open);
    open->set_encoding(WireEncoding(transfer.encoding));
    open->set_element_count(transfer.element_count);
    open->set_chunk_bytes(options_.chunk_bytes);
    transfer.waiting_for = "the server to admit it";
  } else {
    const int64_t held = transfer.version == kNoVersion ? 0 : transfer.incoming->next();
    transfer.chunk_limit = held;
    transfer.chunk_limit = NextCredit(transfer, held);
    v1::PullOpen* open = frame.mutable_pull_open();
    SetRequest(transfer.request, open);
    open->set_chunk_bytes(options_.chunk_bytes);
    open->set_held_version(transfer.version);
    open->set_first_chunk(held);
    open->set_chunk_limit(transfer.chunk_limit);
    transfer.waiting_for = "the server's reply";
  }
  if (SendFrame(*transfer.connection, frame) != SendOutcome::kSent) {
    return TryAgain(transfer, "the connection takes nothing", kCorruptDelay);
  }
  transfer.opened_at = now_;
  if (++transfer.attempts > 1) Count(&LinkCounters::restarts);
}

bool TensorClient::SendChunk(Transfer& transfer) {
  if (!transfer.outgoing || transfer.outgoing->done()) return false;
  if (transfer.outgoing->next() >= transfer.chunk_limit || !push_pace_.Ready(now_)) return false;
  const int64_t bytes = transfer.outgoing->next_bytes();
  Connection& connection = *transfer.connection;
  if (!connection.account->Admits(bytes)) return false;
  v1::Frame frame = MakeFrame(transfer.attempt);
  Message payload = transfer.outgoing->Next(*pool_, connection.account, frame.mutable_chunk(),
                                            /*checksum=*/transfer.server.public_key.empty());
  if (SendFrame(connection, frame, &payload) != SendOutcome::kSent) {
    TryAgain(transfer, "the connection takes nothing", kCorruptDelay);
    return false;
  }
  push_pace_.Spend(bytes, now_);
  Count(&LinkCounters::payload_bytes_sent, bytes);
  transfer.waiting_for = transfer.outgoing->done() ? "the server to keep it" : "credit";
  return true;
}

// How far a pull that holds `held` chunks may go. A slow link is emulated by granting no faster
// than its pace.
int64_t TensorClient::NextCredit(Transfer& transfer, int64_t held) {
  const int64_t count = transfer.incoming->chunk_count();
  const int64_t window = pull_pace_.limited() ? 2 : options_.pull_window_chunks;
  int64_t limit = std::min(count, held + window);
  if (!pull_pace_.limited()) return std::max(limit, transfer.chunk_limit);
  int64_t granted = transfer.chunk_limit;
  while (granted < limit && pull_pace_.Ready(now_)) {
    pull_pace_.Spend(options_.chunk_bytes, now_);
    ++granted;
  }
  return granted;
}

void TensorClient::SendCredit(Transfer& transfer) {
  if (!transfer.replied || transfer.chunk_limit >= transfer.incoming->chunk_count()) return;
  const int64_t limit = NextCredit(transfer, transfer.incoming->next());
  const int64_t step = pull_pace_.limited() ? 1 : std::max(1, options_.pull_window_chunks / 4);
  const bool last = limit == transfer.incoming->chunk_count();
  if (limit <= transfer.chunk_limit) return;
  if (!last && limit - transfer.chunk_limit < step) return;
  transfer.chunk_limit = limit;
  v1::Frame frame = MakeFrame(transfer.attempt);
  frame.mutable_pull_credit()->set_chunk_limit(limit);
  if (SendFrame(*transfer.connection, frame) != SendOutcome::kSent) {
    TryAgain(transfer, "the connection takes nothing", kCorruptDelay);
  }
}

void TensorClient::OnFrame(Connection& connection, LinkFrame& in) {
  if (!in.status.ok()) return Count(&LinkCounters::frames_refused);
  const v1::Frame& frame = in.frame;
  const auto it = transfer_by_attempt_.find(frame.transfer());
  if (it == transfer_by_attempt_.end()) return;  // of an attempt or a transfer that has ended
  Transfer& transfer = *it->second;
  // A server only answers requests.
  if (transfer.connection != &connection) return Count(&LinkCounters::frames_refused);
  if (transfer.is_push && frame.has_push_grant()) {
    return OnPushGrant(transfer, frame.push_grant());
  }
  if (transfer.is_push && frame.has_push_result()) {
    return OnPushResult(transfer, frame.push_result());
  }
  if (!transfer.is_push && frame.has_pull_reply()) {
    return OnPullReply(transfer, frame.pull_reply());
  }
  if (!transfer.is_push && frame.has_pull_refused()) {
    return OnPullRefused(transfer, frame.pull_refused());
  }
  if (!transfer.is_push && frame.has_chunk()) return OnChunk(transfer, in);
  Count(&LinkCounters::frames_refused);
}

void TensorClient::OnPushGrant(Transfer& transfer, const v1::PushCredit& grant) {
  if (!transfer.outgoing) {
    PathTo(transfer.server).RoundTrip(now_ - transfer.opened_at);
    if (transfer.source_bytes.empty()) {
      transfer.outgoing.emplace(transfer.encoding, transfer.source, transfer.owner,
                                options_.chunk_bytes);
    } else {
      transfer.outgoing.emplace(transfer.source_bytes, transfer.owner, options_.chunk_bytes);
    }
    transfer.outgoing->SkipTo(std::min(grant.first_chunk(), transfer.outgoing->chunk_count()));
  }
  transfer.chunk_limit = std::max(transfer.chunk_limit, grant.chunk_limit());
}

void TensorClient::OnPushResult(Transfer& transfer, const v1::PushResult& result) {
  switch (result.outcome()) {
    case v1::PushResult::STAGED:
      PathTo(transfer.server).Moved(EncodedBytes(transfer.encoding, transfer.element_count), now_);
      return End(transfer, absl::OkStatus(), PushStatus::kStaged);
    case v1::PushResult::DUPLICATE:
      return End(transfer, absl::OkStatus(), PushStatus::kDuplicate);
    case v1::PushResult::REFUSED:
      return End(transfer, absl::FailedPreconditionError(
                               absl::StrCat("the server refused it: ", result.reason())));
    default:
      return TryAgain(transfer, result.reason(), kBusyDelay);
  }
}

void TensorClient::OnPullReply(Transfer& transfer, const v1::PullReply& reply) {
  if (reply.element_count() != static_cast<int64_t>(transfer.destination.size())) {
    return End(transfer, absl::InvalidArgumentError(absl::StrCat(
                             "the server's tensor has ", reply.element_count(),
                             " elements, the destination ", transfer.destination.size())));
  }
  if (transfer.replied) return Count(&LinkCounters::frames_refused);
  if (transfer.request.version != kNoVersion && reply.version() != transfer.request.version) {
    return TryAgain(transfer,
                    absl::StrCat("the server sends version ", reply.version(), ", not version ",
                                 transfer.request.version),
                    kBusyDelay);
  }
  const bool resumes = reply.version() == transfer.version;
  const int64_t held = transfer.incoming->next();
  if (!resumes || reply.first_chunk() == 0) transfer.incoming->Restart();
  if (reply.first_chunk() != transfer.incoming->next()) {
    return TryAgain(transfer, "the server goes on elsewhere than where we stopped", kBusyDelay);
  }
  // Begun anew: what was granted beyond the chunks held is granted again.
  if (transfer.incoming->next() != held) transfer.chunk_limit = 0;
  PathTo(transfer.server).RoundTrip(now_ - transfer.opened_at);
  transfer.version = reply.version();
  transfer.replied = true;
  transfer.waiting_for = "chunks";
  if (transfer.incoming->complete()) End(transfer, absl::OkStatus());
}

void TensorClient::OnPullRefused(Transfer& transfer, const v1::PullRefused& refused) {
  const absl::Status status =
      absl::FailedPreconditionError(absl::StrCat("the server refused it: ", refused.reason()));
  transfer.version = refused.current_version();
  std::optional<PullRefusal> refusal;
  if (refused.code() >= v1::PullRefused::NOT_YET && refused.code() <= v1::PullRefused::UNKNOWN) {
    refusal = static_cast<PullRefusal>(refused.code() - 1);
  }
  End(transfer, status, PushStatus::kRefused, refusal);
}

void TensorClient::OnChunk(Transfer& transfer, LinkFrame& in) {
  absl::Status status = in.opened;
  if (!transfer.replied) status = absl::InvalidArgumentError("a chunk before the reply");
  if (status.ok()) status = transfer.incoming->Accept(in.frame.chunk(), in.payload.bytes());
  if (!status.ok()) {
    Count(&LinkCounters::frames_refused);
    return TryAgain(transfer, std::string(status.message()), kCorruptDelay);
  }
  const auto bytes = static_cast<int64_t>(in.payload.bytes().size());
  Count(&LinkCounters::payload_bytes_received, bytes);
  PathTo(transfer.server).Moved(bytes, now_);
  {
    const std::lock_guard lock(rates_mutex_);
    pull_rates_.Received(transfer.server.endpoint, bytes, now_);
  }
  if (transfer.incoming->complete()) return End(transfer, absl::OkStatus());
  SendCredit(transfer);
}

void TensorClient::TryAgain(Transfer& transfer, const std::string& why, Duration delay) {
  if (transfer.attempt != 0) {
    transfer_by_attempt_.erase(transfer.attempt);
    if (transfer.connection->link->up() && !transfer.is_push) {
      v1::Frame frame = MakeFrame(transfer.attempt);
      frame.mutable_cancel();
      SendFrame(*transfer.connection, frame);
    }
  }
  transfer.attempt = 0;
  transfer.last_error = why;
  transfer.waiting_for = "a new attempt";
  transfer.not_before = now_ + delay;
}

void TensorClient::End(Transfer& transfer, absl::Status status, PushStatus push_status,
                       std::optional<PullRefusal> refusal) {
  if (transfer.attempt != 0) {
    transfer_by_attempt_.erase(transfer.attempt);
    const bool server_waits = status.code() == absl::StatusCode::kCancelled ||
                              status.code() == absl::StatusCode::kDeadlineExceeded ||
                              status.code() == absl::StatusCode::kInvalidArgument;
    if (server_waits && transfer.connection->link->up()) {
      v1::Frame frame = MakeFrame(transfer.attempt);
      frame.mutable_cancel();
      SendFrame(*transfer.connection, frame);
    }
  }
  if (transfer.connection != nullptr && --transfer.connection->transfers == 0) {
    const auto& all = connections_[transfer.server];
    const bool idle = std::all_of(
        all.begin(), all.end(), [](const auto& connection) { return connection->transfers == 0; });
    if (idle) PathTo(transfer.server).Idle();
  }
  if (!transfer.is_push && transfer.connection != nullptr) {
    const std::lock_guard lock(rates_mutex_);
    pull_rates_.Ended(transfer.server.endpoint);
  }
  if (status.ok()) {
    CountDone(now_ - transfer.opened);
  } else {
    Count(&LinkCounters::transfers_failed);
  }
  const auto it = transfers_.find(transfer.id);
  ATOLL_CHECK(it != transfers_.end());
  const std::unique_ptr<Transfer> ended = std::move(it->second);
  transfers_.erase(it);
  status = Annotate(status, ended->Name());
  const bool has_version = !ended->is_push && (status.ok() || refusal.has_value());
  ended->done({std::move(status), push_status, has_version ? ended->version : kNoVersion, refusal});
}

}  // namespace atl
