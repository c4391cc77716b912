// The network thread's loop: connections and their loss, waiting, receiving, deadlines.

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "common/net/tensor/tensor_client.h"

namespace atl {
namespace {

constexpr int kMessagesPerTurn = 32;
constexpr Duration kTurnMax = std::chrono::milliseconds(100);

Instant Now() { return Instant(std::chrono::steady_clock::now().time_since_epoch()); }

}  // namespace

absl::Status TensorClient::Start() {
  ATOLL_RETURN_IF_ERROR(tasks_.Check());
  ATOLL_ASSIGN_OR_RETURN(context_, ZmqContext::Create(options_.io_threads));
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

TensorClient::~TensorClient() {
  if (thread_.joinable()) {
    tasks_.Post([this] { stopping_ = true; });
    thread_.join();
  }
}

TransferId TensorClient::Submit(std::unique_ptr<Transfer> transfer, Duration timeout) {
  transfer->id = next_id_++;
  transfer->opened = Now();
  transfer->deadline = transfer->opened + timeout;
  const TransferId id = transfer->id;
  // std::function needs a copyable task; the pointer is released on the network thread.
  auto shared = std::make_shared<std::unique_ptr<Transfer>>(std::move(transfer));
  tasks_.Post([this, shared] { Begin(std::move(*shared)); });
  return id;
}

void TensorClient::Cancel(TransferId id) {
  tasks_.Post([this, id] {
    const auto it = transfers_.find(id);
    if (it != transfers_.end()) return End(*it->second, absl::CancelledError("cancelled"));
    if (splits_.contains(id)) FailSplit(id, {absl::CancelledError("cancelled")});
  });
}

void TensorClient::Run() {
  bool more = false;
  while (!stopping_) {
    std::vector<Socket*> sockets;
    for (const auto& [server, connections] : connections_) {
      for (const auto& connection : connections) connection->link->AddTo(&sockets);
    }
    Socket::Poll(sockets, tasks_.descriptor(), more || busy_ ? 0 : WaitMs());
    now_ = Now();
    more = false;
    for (const auto& [server, connections] : connections_) {
      for (const auto& connection : connections) {
        ReadMonitor(*connection);
        if (connection->transfers > 0) {
          const absl::Status again = connection->link->ConnectAgain(now_);
          if (!again.ok()) connection->last_error = std::string(again.message());
        }
        connection->link->Flush();
        more |= ReceiveSome(*connection);
      }
    }
    tasks_.RunAll();
    Pump();
  }
  while (!transfers_.empty()) {
    End(*transfers_.begin()->second, absl::CancelledError("the client stops"));
  }
  while (!splits_.empty()) {
    FailSplit(splits_.begin()->first, {absl::CancelledError("the client stops")});
  }
  tasks_.RunAll();  // transfers submitted meanwhile end in Begin
  connections_.clear();
}

int TensorClient::WaitMs() const {
  Instant until = now_ + kTurnMax;
  for (const auto& [id, transfer] : transfers_) {
    until = std::min(until, transfer->deadline);
    // A transfer without a connection waits for its watch.
    if (transfer->attempt == 0 && transfer->connection->link->up()) {
      until = std::min(until, std::max(now_, transfer->not_before));
    }
  }
  if (!transfers_.empty() && push_pace_.limited()) {
    for (const Pace* pace : {&push_pace_, &pull_pace_}) {
      if (!pace->Ready(now_)) until = std::min(until, pace->free_at());
    }
  }
  const Duration wait = std::max(until - Now(), Duration(0));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
}

void TensorClient::Begin(std::unique_ptr<Transfer> transfer) {
  const bool room =
      transfers_.size() + splits_.size() < static_cast<size_t>(options_.transfers_max);
  const std::string& job = transfer->is_push ? transfer->push_id.job : transfer->request.job;
  if (!stopping_ && room && CheckJob(job).ok() && IsSplit(*transfer)) {
    const TransferId id = transfer->id;
    splits_[id].whole = std::move(transfer);
    return;
  }
  Transfer& added = *transfer;
  transfers_[added.id] = std::move(transfer);
  if (stopping_) return End(added, absl::CancelledError("the client stops"));
  if (!room) {
    return End(added, absl::ResourceExhaustedError(
                          absl::StrCat("more than ", options_.transfers_max, " transfers")));
  }
  if (const absl::Status status = CheckJob(job); !status.ok()) return End(added, status);
  Connect(added);
}

// Its connection, and its place among the transfers, which it may lose at once.
void TensorClient::Connect(Transfer& added) {
  absl::StatusOr<Connection*> connection = ConnectionTo(added.server);
  if (!connection.ok()) return End(added, connection.status());
  added.connection = *connection;
  ++added.connection->transfers;
  ++added.connection->moving;
  if (!added.is_push) {
    {
      std::lock_guard lock(rates_mutex_);
      pull_rates_.Opened(added.server.endpoint);
    }
    added.incoming.emplace(added.encoding, added.destination, options_.chunk_bytes);
  }
}

PathConnections& TensorClient::PathTo(const ServerAddress& server) {
  return paths_.try_emplace(server, window_bytes_, options_.connections_per_server_max)
      .first->second;
}

absl::Status TensorClient::AddConnection(const ServerAddress& server) {
  auto connection = std::make_unique<Connection>();
  ATOLL_RETURN_IF_ERROR(Connect(server, connection.get()));
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

// One that is up, if any is: of these the one with the fewest transfers.
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
                            return std::tuple(!a->link->up(), a->moving, a->transfers) <
                                   std::tuple(!b->link->up(), b->moving, b->transfers);
                          })
      ->get();
}

// Its connection is lost: another one goes on from the last chunk that arrived.
void TensorClient::MoveToAnother(Transfer& transfer) {
  const absl::StatusOr<Connection*> other = ConnectionTo(transfer.server);
  if (!other.ok() || !(*other)->link->up()) return;
  --transfer.connection->transfers;
  transfer.connection = *other;
  ++transfer.connection->transfers;
}

absl::Status TensorClient::Connect(const ServerAddress& server, Connection* connection) {
  ATOLL_RETURN_IF_ERROR(CheckSecurity(options_.security, server.endpoint, server.public_key));
  connection->account = std::make_shared<SendAccount>(unsent_bytes_, options_.send_bytes_max,
                                                      [this] { tasks_.Wake(); });
  ATOLL_ASSIGN_OR_RETURN(connection->link,
                         LinkClient::Create(*context_, options_.security.keys, server.public_key,
                                            [this] { tasks_.Wake(); }));
  return connection->link->Connect(server.endpoint);
}

void TensorClient::ReadMonitor(Connection& connection) {
  while (const std::optional<ConnectionEvent> event = connection.link->Next(now_)) {
    switch (*event) {
      case ConnectionEvent::kConnected:
      case ConnectionEvent::kUp:
        break;
      case ConnectionEvent::kLost:
      case ConnectionEvent::kHandshakeFailed:
      case ConnectionEvent::kSessionBroken:
        if (*event == ConnectionEvent::kSessionBroken) Count(&LinkCounters::frames_refused);
        OnConnectionLost(connection, *event);
        break;
      case ConnectionEvent::kRetried:
        if (connection.last_error.empty()) connection.last_error = std::string(Explain(*event));
        break;
      case ConnectionEvent::kUnknownKey:
        OnConnectionLost(connection, *event);
        for (auto it = transfers_.begin(); it != transfers_.end();) {
          Transfer& transfer = *(it++)->second;
          if (transfer.connection != &connection) continue;
          End(transfer, absl::UnauthenticatedError("the server does not know our key; add our "
                                                   "public key to its --curve-clients"));
        }
        break;
    }
  }
}

void TensorClient::OnConnectionLost(Connection& connection, ConnectionEvent event) {
  const std::string why(Explain(event));
  connection.last_error = why;
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->connection == &connection && transfer->attempt != 0) {
      TryAgain(*transfer, why, Duration(0));
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
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    Transfer& transfer = *(it++)->second;
    if (now_ < transfer.deadline) continue;
    std::string why = absl::StrCat("not done after ", Seconds(now_ - transfer.opened),
                                   " s, still waiting for ", transfer.waiting_for);
    const std::string& error =
        transfer.last_error.empty() ? transfer.connection->last_error : transfer.last_error;
    if (!error.empty()) absl::StrAppend(&why, " (last trouble: ", error, ")");
    End(transfer, absl::DeadlineExceededError(why));
  }
}

std::map<std::string, double> TensorClient::pull_rates() const {
  std::lock_guard lock(rates_mutex_);
  return pull_rates_.rates();
}

}  // namespace atl
