// The network thread's loop: connections and their loss, receiving, deadlines.

#include <algorithm>
#include <tuple>

#include "common/net/tensor/tensor_client.h"

namespace atl {
namespace {

constexpr int kMessagesPerTurn = 32;

}  // namespace

void TensorClient::AddTo(std::vector<Socket*>* sockets) {
  for (const auto& [server, connections] : connections_) {
    for (const auto& connection : connections) connection->link->AddTo(sockets);
  }
}

bool TensorClient::Turn() {
  bool more = false;
  for (const auto& [server, connections] : connections_) {
    for (const auto& connection : connections) {
      Watch(*connection);
      more |= ReceiveSome(*connection);
    }
  }
  EndLate();
  AddConnections();
  StartSegments();
  return Pump() || more;
}

Instant TensorClient::NextDue() const {
  Instant until = now_ + kTurnMax;
  for (const auto& [id, segment] : segments_) {
    until = std::min(until, segment.whole->deadline);
    // A segment without a connection waits for its watch.
    if (segment.attempt == 0 && segment.connection->link->up()) {
      until = std::min(until, std::max(now_, segment.not_before));
    }
  }
  return segments_.empty() || pace_.Ready(now_) ? until : std::min(until, pace_.free_at());
}

PathConnections& TensorClient::PathTo(const ServerAddress& server) {
  return paths_.try_emplace(server, window_bytes_, options_.connections_per_server_max)
      .first->second;
}

absl::Status TensorClient::AddConnection(const ServerAddress& server) {
  ATOLL_RETURN_IF_ERROR(CheckSecurity(options_.security, server.endpoint, server.public_key));
  auto connection = std::make_unique<Connection>();
  ATOLL_RETURN_IF_ERROR(Connect(server.endpoint, options_.security.keys, server.public_key,
                                SendAccount::kConnectionBytesMax, connection.get()));
  connections_[server].push_back(std::move(connection));
  return absl::OkStatus();
}

void TensorClient::AddConnections() {
  for (const auto& [server, path] : paths_) {
    while (connections_[server].size() < static_cast<size_t>(path.wanted())) {
      if (!AddConnection(server).ok()) return;  // those that are there go on
    }
  }
}

// One that is up, if any is: of these the one with the fewest segments.
absl::StatusOr<TensorClient::Connection*> TensorClient::ConnectionTo(const ServerAddress& server) {
  while (connections_[server].size() < static_cast<size_t>(options_.connections_per_server)) {
    const absl::Status added = AddConnection(server);
    if (added.ok()) continue;
    if (connections_[server].empty()) connections_.erase(server);
    return added;
  }
  const auto& connections = connections_[server];
  return std::min_element(connections.begin(), connections.end(),
                          [](const auto& a, const auto& b) {
                            return std::tuple(!a->link->up(), a->moving, a->segments) <
                                   std::tuple(!b->link->up(), b->moving, b->segments);
                          })
      ->get();
}

// Its connection is lost: another one goes on from the last chunk that arrived.
void TensorClient::MoveToAnother(Segment& segment) {
  const absl::StatusOr<Connection*> other = ConnectionTo(segment.whole->server);
  if (!other.ok() || !(*other)->link->up()) return;
  --segment.connection->segments;
  segment.connection = *other;
  ++segment.connection->segments;
}

void TensorClient::Watch(Connection& connection) {
  while (const std::optional<ConnectionEvent> event = connection.link->Next(now_)) {
    switch (*event) {
      case ConnectionEvent::kConnected:
      case ConnectionEvent::kUp:
        break;
      case ConnectionEvent::kRetried:
        if (connection.trouble.empty()) connection.trouble = std::string(Explain(*event));
        break;
      case ConnectionEvent::kSessionBroken:
        Count(&LinkCounters::frames_refused);
        [[fallthrough]];
      case ConnectionEvent::kLost:
      case ConnectionEvent::kHandshakeFailed:
      case ConnectionEvent::kUnknownKey:
        OnConnectionLost(connection, *event);
        break;
    }
  }
  if (connection.segments > 0) {
    const absl::Status again = connection.link->ConnectAgain(now_);
    if (!again.ok()) connection.trouble = std::string(again.message());
  }
  connection.link->Flush();
}

void TensorClient::OnConnectionLost(Connection& connection, ConnectionEvent event) {
  const std::string why(Explain(event));
  connection.trouble = why;
  for (auto it = segments_.begin(); it != segments_.end();) {
    Segment& segment = (it++)->second;
    if (segment.connection != &connection) continue;
    if (event == ConnectionEvent::kUnknownKey) {
      End(segment, {absl::UnauthenticatedError("the server does not know our key; add our "
                                               "public key to its --curve-clients")});
    } else if (segment.attempt != 0) {
      TryAgain(segment, why, Duration(0));
    }
  }
}

bool TensorClient::ReceiveSome(Connection& connection) {
  LinkFrame in;
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    if (!connection.link->Receive(&in)) return false;
    OnFrame(connection, in);
  }
  return true;
}

void TensorClient::EndLate() {
  for (auto it = segments_.begin(); it != segments_.end();) {
    Segment& segment = (it++)->second;
    const Transfer& whole = *segment.whole;
    if (whole.failure) {
      End(segment, {absl::CancelledError("its transfer has failed")});
    } else if (now_ >= whole.deadline) {
      std::string why = absl::StrCat("not done after ", Seconds(now_ - whole.opened),
                                     " s, still waiting for ", segment.waiting_for);
      const std::string& error =
          segment.last_error.empty() ? segment.connection->trouble : segment.last_error;
      if (!error.empty()) absl::StrAppend(&why, " (last trouble: ", error, ")");
      End(segment, {absl::DeadlineExceededError(why)});
    }
  }
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    Transfer& whole = (it++)->second;
    if (whole.open > 0 || now_ < whole.deadline) continue;
    Fail(whole, absl::DeadlineExceededError("not done in its time"));
  }
}

}  // namespace atl
