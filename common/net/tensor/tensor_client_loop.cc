// The network thread's loop: connections and their loss, receiving, deadlines.

#include <algorithm>
#include <tuple>

#include "common/net/tensor/tensor_client.h"

namespace atl {

void TensorClient::AddTo(std::vector<Socket*>* sockets) {
  for (const auto& [server, connections] : connections_) {
    for (const auto& connection : connections) connection->link->AddTo(sockets);
  }
}

bool TensorClient::Turn() {
  bool more = false;
  for (const auto& [server, connections] : connections_) {
    for (const auto& connection : connections) {
      const int came = TurnConnection(
          *connection, /*used=*/connection->segments > 0,
          [&](ConnectionEvent event, int) { return OnEvent(*connection, event), true; },
          [&](LinkFrame& in) { return OnFrame(*connection, in), true; });
      more |= came >= kFramesPerTurn;
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

void TensorClient::OnEvent(Connection& connection, ConnectionEvent event) {
  if (event == ConnectionEvent::kConnected || event == ConnectionEvent::kUp ||
      event == ConnectionEvent::kRetried) {
    return;
  }
  if (event == ConnectionEvent::kSessionBroken) Count(&LinkCounters::frames_refused);
  for (auto it = segments_.begin(); it != segments_.end();) {
    Segment& segment = (it++)->second;
    if (segment.connection != &connection) continue;
    if (event == ConnectionEvent::kUnknownKey) {
      End(segment, {absl::UnauthenticatedError("the server does not know our key; add our "
                                               "public key to its --curve-clients")});
    } else if (segment.attempt != 0) {
      TryAgain(segment, connection.trouble, Duration(0));
    }
  }
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
