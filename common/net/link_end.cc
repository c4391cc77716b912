#include "common/net/link_end.h"

#include <algorithm>
#include <future>

#include "common/event_loop.h"

namespace atl {

absl::Status LinkEnd::Open(int io_threads) {
  ATOLL_RETURN_IF_ERROR(tasks_->Check());
  ATOLL_ASSIGN_OR_RETURN(context_, ZmqContext::Create(io_threads));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LinkServer>> LinkEnd::MakeServer(const KeyPair& own) {
  return LinkServer::Create(*context_, own, [tasks = tasks_] { tasks->Wake(); });
}

std::shared_ptr<SendAccount> LinkEnd::MakeAccount(int64_t unsent_bytes_max) {
  return std::make_shared<SendAccount>(
      unsent_bytes_, unsent_bytes_max_, [tasks = tasks_] { tasks->Wake(); }, unsent_bytes_max);
}

absl::Status LinkEnd::Connect(const std::string& endpoint, const KeyPair& own,
                              const std::string& server_key, int64_t unsent_bytes_max,
                              LinkConnection* connection) {
  connection->account = MakeAccount(unsent_bytes_max);
  ATOLL_ASSIGN_OR_RETURN(connection->link, LinkClient::Create(*context_, own, server_key,
                                                              [tasks = tasks_] { tasks->Wake(); }));
  return connection->link->Connect(endpoint);
}

int LinkEnd::TurnConnection(LinkConnection& connection, bool used,
                            absl::FunctionRef<bool(ConnectionEvent, int)> on_event,
                            absl::FunctionRef<bool(LinkFrame&)> on_frame) const {
  LinkClient& link = *connection.link;
  int came = 0;
  int descriptor = -1;
  while (const std::optional<ConnectionEvent> event = link.Next(now_, &descriptor)) {
    ++came;
    if (*event != ConnectionEvent::kConnected && *event != ConnectionEvent::kUp) {
      connection.trouble = std::string(Explain(*event));
    }
    if (!on_event(*event, descriptor)) return came;
  }
  const absl::Status again = used ? link.ConnectAgain(now_) : absl::OkStatus();
  if (!again.ok()) connection.trouble = std::string(again.message());
  link.Flush();
  LinkFrame in;
  for (int i = 0; i < kFramesPerTurn && link.Receive(&in); ++i) {
    ++came;
    if (!on_frame(in)) break;
  }
  return came;
}

void LinkEnd::Launch() {
  thread_ = std::thread([this] { Run(); });
}

void LinkEnd::Stop() {
  if (!thread_.joinable()) return;
  tasks_->Post([this] { stopping_ = true; });
  thread_.join();
}

void LinkEnd::RunRest() {
  if (tasks_->Check().ok()) tasks_->RunAll();
}

void LinkEnd::Call(absl::FunctionRef<void()> task) {
  std::promise<void> done;
  tasks_->Post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

void LinkEnd::Run() {
  bool more = false;
  now_ = SteadyNow();
  std::vector<Socket*> sockets;
  while (!stopping_) {
    sockets.clear();
    AddTo(&sockets);
    const Duration wait =
        more ? Duration(0)
             : std::max(std::min(NextDue(), now_ + kTurnMax) - SteadyNow(), Duration(0));
    const int wait_ms =
        static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
    const bool has_tasks = Socket::Poll(sockets, tasks_->descriptor(), wait_ms);
    now_ = SteadyNow();
    if (has_tasks) tasks_->RunAll();
    if (!stopping_) more = Turn();
  }
}

}  // namespace atl
