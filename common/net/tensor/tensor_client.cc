// Transfers, and their segments: ranges of elements that are pushed and pulled by themselves, over
// whichever connection has the fewest. A segment that was staged is not sent again, whatever
// happens to its connection, to the server or to the transfer: its next attempt is cut at the same
// elements.

#include "common/net/tensor/tensor_client.h"

#include <algorithm>

#include "common/check.h"
#include "common/event_loop.h"

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

// In a shard cuts are at multiples of this.
int64_t SegmentElements(bool is_push, Encoding encoding) {
  if (!is_push) return kSegmentBytes / BytesPerElement(encoding);
  const int64_t block = PartBlock(encoding);
  return kSegmentBytes / EncodedBytes(encoding, block) * block;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorClient>> TensorClient::Create(TensorClientOptions options) {
  ATOLL_RETURN_IF_ERROR(Annotate(CheckChunkBytes(options.chunk_bytes), "tensor link"));
  std::unique_ptr<TensorClient> client(new TensorClient(std::move(options)));
  ATOLL_RETURN_IF_ERROR(client->LinkEnd::Open(client->options_.io_threads));
  client->Launch();
  return client;
}

TensorClient::~TensorClient() {
  Stop();
  while (!transfers_.empty()) {
    Fail(transfers_.begin()->second, absl::CancelledError("the client stops"));
    EndLate();
  }
  RunRest();  // transfers submitted meanwhile end in Begin
}

TransferId TensorClient::Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                              std::span<const float> source, std::shared_ptr<const void> owner,
                              Duration timeout, Done done) {
  ATOLL_CHECK(!IsQuantized(encoding), "numbers are quantised where they are made");
  return Submit({.server = server,
                 .is_push = true,
                 .push_id = id,
                 .encoding = encoding,
                 .source = source,
                 .element_count = std::ssize(source),
                 .owner = std::move(owner),
                 .done = std::move(done)},
                timeout);
}

TransferId TensorClient::Push(const ServerAddress& server, const PushId& id, Encoding encoding,
                              int64_t element_count, std::span<const std::byte> source,
                              std::shared_ptr<const void> owner, Duration timeout, Done done) {
  ATOLL_CHECK(std::ssize(source) == EncodedBytes(encoding, element_count), element_count,
              " elements in ", source.size(), " bytes");
  return Submit({.server = server,
                 .is_push = true,
                 .push_id = id,
                 .encoding = encoding,
                 .source_bytes = source,
                 .element_count = element_count,
                 .owner = std::move(owner),
                 .done = std::move(done)},
                timeout);
}

TransferId TensorClient::Pull(const ServerAddress& server, const PullRequest& request,
                              std::span<float> destination, Duration timeout, Done done) {
  return Submit({.server = server,
                 .request = request,
                 .element_count = std::ssize(destination),
                 .destination = destination,
                 .done = std::move(done)},
                timeout);
}

TransferId TensorClient::Submit(Transfer transfer, Duration timeout) {
  transfer.id = next_id_++;
  transfer.opened = SteadyNow();
  transfer.deadline = transfer.opened + timeout;
  const TransferId id = transfer.id;
  tasks_->Post([this, transfer = std::move(transfer)]() mutable { Begin(std::move(transfer)); });
  return id;
}

void TensorClient::Cancel(TransferId id) {
  tasks_->Post([this, id] {
    const auto it = transfers_.find(id);
    if (it != transfers_.end()) Fail(it->second, absl::CancelledError("cancelled"));
  });
}

std::map<std::string, double> TensorClient::pull_rates() const {
  const std::lock_guard lock(rates_mutex_);
  return pull_rates_.rates();
}

std::string TensorClient::Transfer::Name() const {
  const std::string what =
      is_push ? absl::StrCat("push of ", push_id.job, " shard ", push_id.shard, " to ")
              : absl::StrCat("pull of ", request.job, " shard ", request.shard, " from ");
  return what + server.endpoint;
}

void TensorClient::Begin(Transfer transfer) {
  const TransferId id = transfer.id;
  const bool room = transfers_.size() < static_cast<size_t>(options_.transfers_max);
  Transfer& added = transfers_.emplace(id, std::move(transfer)).first->second;
  const absl::Status job = CheckJob(added.is_push ? added.push_id.job : added.request.job);
  if (stopping_) return Fail(added, absl::CancelledError("the client stops"));
  if (!job.ok()) return Fail(added, job);
  if (!room) {
    return Fail(added, absl::ResourceExhaustedError(
                           absl::StrCat("more than ", options_.transfers_max, " transfers")));
  }
  if (!IsSplit(added)) StartSegment(added);
}

// Its segments end in EndLate: who calls may be going through them, and they write to its memory.
void TensorClient::Fail(Transfer& transfer, absl::Status why) {
  if (!transfer.failure) {
    transfer.failure = TransferResult{.status = Annotate(why, transfer.Name())};
  }
  if (transfer.open == 0) Finish(transfer);
}

void TensorClient::Finish(Transfer& transfer) {
  const auto ended = transfers_.extract(transfer.id);
  const Transfer& whole = ended.mapped();
  const PushStatus status = whole.staged ? PushStatus::kStaged : PushStatus::kDuplicate;
  whole.done(whole.failure.value_or(TransferResult{absl::OkStatus(), status, whole.version}));
}

// The newest version may be another one from segment to segment.
bool TensorClient::IsSplit(const Transfer& transfer) {
  return transfer.element_count > SegmentElements(transfer.is_push, transfer.encoding) &&
         (transfer.is_push || transfer.request.version != kNoVersion);
}

void TensorClient::StartSegments() {
  for (const auto& [server, connections] : connections_) {
    for (const auto& connection : connections) connection->moving = 0;
  }
  std::map<ServerAddress, size_t> open;
  for (const auto& [id, segment] : segments_) {
    const bool sent = segment.outgoing && segment.outgoing->done();
    if (!sent) ++segment.connection->moving;
    if (IsSplit(*segment.whole)) ++open[segment.whole->server];
  }
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const TransferId id = it->first;
    Transfer& whole = (it++)->second;  // a segment that cannot begin ends it
    const ServerAddress server = whole.server;
    while (transfers_.contains(id) && !whole.failure && whole.next < whole.element_count &&
           HasRoom(server, open[server])) {
      ++open[server];
      StartSegment(whole);
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

void TensorClient::StartSegment(Transfer& whole) {
  const uint64_t id = next_id_++;
  Segment& segment = segments_[id];
  segment = {.whole = &whole, .id = id, .begin = whole.next, .opened = now_};
  whole.next = segment.end = whole.element_count;
  if (IsSplit(whole)) {
    const int64_t step = SegmentElements(whole.is_push, whole.encoding);
    const int64_t first = whole.is_push ? whole.push_id.begin : whole.request.begin;
    const int64_t cut = ((first + segment.begin) / step + 1) * step - first;
    whole.next = segment.end = std::min(whole.element_count, cut);
  }
  ++whole.open;
  absl::StatusOr<Connection*> connection = ConnectionTo(whole.server);
  if (!connection.ok()) return End(segment, {connection.status()});
  segment.connection = *connection;
  ++segment.connection->segments;
  ++segment.connection->moving;
  if (whole.is_push) return;
  {
    const std::lock_guard lock(rates_mutex_);
    pull_rates_.Opened(whole.server.endpoint);
  }
  segment.incoming.emplace(
      std::as_writable_bytes(whole.destination.subspan(
          static_cast<size_t>(segment.begin), static_cast<size_t>(segment.end - segment.begin))),
      options_.chunk_bytes);
}

void TensorClient::End(Segment& segment, TransferResult result) {
  Transfer& whole = *segment.whole;
  const bool ok = result.status.ok();
  if (segment.attempt != 0) {
    segment_by_attempt_.erase(segment.attempt);
    const absl::StatusCode code = result.status.code();
    const bool server_waits = code == absl::StatusCode::kCancelled ||
                              code == absl::StatusCode::kDeadlineExceeded ||
                              code == absl::StatusCode::kInvalidArgument;
    if (server_waits) SendCancel(segment);
  }
  if (segment.connection != nullptr) {
    const auto& all = connections_[whole.server];
    const bool idle =
        --segment.connection->segments == 0 &&
        std::all_of(all.begin(), all.end(), [](const auto& each) { return each->segments == 0; });
    if (idle) PathTo(whole.server).Idle();
    const std::lock_guard lock(rates_mutex_);
    if (!whole.is_push) pull_rates_.Ended(whole.server.endpoint);
  }
  if (ok) {
    CountDone(now_ - segment.opened);
    whole.version = result.version;
    whole.staged |= result.push_status == PushStatus::kStaged;
  } else {
    Count(&LinkCounters::transfers_failed);
    result.status = Annotate(result.status, whole.Name());
    if (!whole.failure) whole.failure = std::move(result);
  }
  segments_.erase(segment.id);
  --whole.open;
  const bool over = whole.failure || whole.next >= whole.element_count;
  if (over && whole.open == 0) Finish(whole);
}

}  // namespace atl
