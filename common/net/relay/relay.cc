#include "common/net/relay/relay.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/rand.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "common/logging.h"
#include "common/net/pump.h"
#include "common/net/relay/words.h"
#include "common/net/socket.h"
#include "common/net/tcp_endpoint.h"

namespace atl {
namespace {

constexpr Duration kNotePause = std::chrono::seconds(10);
constexpr int kTurnMs = 1000;
constexpr int kEventsMax = 256;
constexpr size_t kRequestBytesMax = 1024;

constexpr absl::string_view kConnected = "HTTP/1.1 200 Connection established\r\n\r\n";
constexpr absl::string_view kForbidden =
    "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
constexpr absl::string_view kNoRoom =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

// Says how far a request has come.
enum class Step { kMore, kBad, kRequested };

struct Client {
  enum class State { kRequests, kWaits, kPaired };

  Client(int connection, std::string address, Instant limit)
      : socket(connection), peer(std::move(address)), by(limit) {}

  Step Read();

  const Descriptor socket;
  const std::string peer;
  State state = State::kRequests;
  std::string in;         // its request
  std::string requested;  // the host in it
  RelayWord word;         // from kWaits on
  Instant by;             // kNever: no limit
  uint32_t events = EPOLLIN;
  Client* other = nullptr;  // kPaired
};

// Neither end sends more before it is answered.
Step Client::Read() {
  std::array<char, kRequestBytesMax> bytes;
  const ssize_t got = recv(socket.get(), bytes.data(), bytes.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Step::kMore;
  if (got <= 0 || state == State::kWaits) return Step::kBad;
  in.append(bytes.data(), static_cast<size_t>(got));
  absl::string_view request = in;
  if (in.size() > kRequestBytesMax) return Step::kBad;
  if (!absl::ConsumeSuffix(&request, "\r\n\r\n")) return Step::kMore;
  if (!absl::ConsumePrefix(&request, "CONNECT ")) return Step::kBad;
  requested = std::string(request.substr(0, request.find_first_of(": \r\n")));
  return Step::kRequested;
}

void SetOptions(int socket) {
  const int yes = 1, idle = 30, interval = 10, count = 3;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

std::string MakeSecret() {
  std::array<unsigned char, 32> bytes;
  ATOLL_CHECK(RAND_bytes(bytes.data(), bytes.size()) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// "[::1]" of "tcp://[::1]:7200".
std::string FindHost(const std::string& endpoint) {
  const std::string address(absl::StripPrefix(endpoint, "tcp://"));
  return address.substr(0, address.rfind(':'));
}

}  // namespace

// All connections, on a thread.
class Relay::Loop {
 public:
  explicit Loop(std::string secret) : secret_(std::move(secret)) {}
  ~Loop();

  absl::Status Start();
  void Add(int connection, const std::string& peer);  // thread-safe
  Counters counters() const;                          // thread-safe

 private:
  struct Member {
    Incarnation incarnation = 0;
    std::deque<Client*> waiting;   // its own
    std::deque<Client*> diallers;  // that wait for one of these
    int pairs = 0;

    bool there() const { return !waiting.empty() || pairs > 0; }
  };
  struct Pair {
    Pair(Client* dialler, Client* acceptor, Instant now)
        : near(dialler), far(acceptor), pump(near->socket.get(), far->socket.get(), now) {}
    Client* const near;
    Client* const far;
    Pump pump;
  };

  void Run();
  void OnEvents(int descriptor, uint32_t events, Instant now);
  void OnInput(Client& client, Instant now);
  void OnRequest(Client& client, Instant now);
  void Fence(const RelayWord& word);
  void DropIdle(const std::string& name);
  void Join(Client* dialler, Client* acceptor, Instant now);
  void TurnPair(Pair& pair, bool near_readable, bool far_readable, Instant now);
  bool Watch(Client& client, short events);
  void Refuse(Client& client, absl::string_view answer, absl::string_view why, Instant now);
  void End(Client& client);
  void EndLate(Instant now);

  const std::string secret_;
  const Descriptor epoll_{epoll_create1(EPOLL_CLOEXEC)};
  TaskQueue tasks_;
  bool stopping_ = false;
  std::map<int, std::unique_ptr<Client>> clients_;  // by descriptor
  std::map<Client*, std::unique_ptr<Pair>> pairs_;  // by dialler
  std::map<std::string, Member> members_;           // with connections; see DropIdle
  std::set<std::pair<Instant, int>> limits_;        // of clients that have one
  int64_t waiting_ = 0;                             // of all members
  Instant noted_at_{};
  int64_t refused_since_ = 0;
  mutable std::mutex mutex_;
  Counters counters_;  // guarded by mutex_
  std::thread thread_;
};

absl::Status Relay::Loop::Start() {
  ATOLL_RETURN_IF_ERROR(tasks_.Check());
  epoll_event event{EPOLLIN, {.fd = tasks_.descriptor()}};
  if (epoll_.get() < 0 ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, tasks_.descriptor(), &event) != 0) {
    return absl::ErrnoToStatus(errno, "--relay: epoll");
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

Relay::Loop::~Loop() {
  if (!thread_.joinable()) return;
  tasks_.Post([this] { stopping_ = true; });
  thread_.join();
}

void Relay::Loop::Add(int connection, const std::string& peer) {
  // Closed with the task, if that never runs.
  const auto client =
      std::make_shared<std::unique_ptr<Client>>(new Client(connection, peer, kNever));
  tasks_.Post([this, client] {
    Client& added = **client;
    const int fd = added.socket.get();
    SetOptions(fd);
    epoll_event event{EPOLLIN, {.fd = fd}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return;
    added.by = SteadyNow() + kRequestWithin;
    limits_.insert({added.by, fd});
    clients_[fd] = std::move(*client);
  });
}

Relay::Counters Relay::Loop::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Relay::Loop::Run() {
  std::array<epoll_event, kEventsMax> events;
  while (!stopping_) {
    const int count = epoll_wait(epoll_.get(), events.data(), kEventsMax, kTurnMs);
    const Instant now = SteadyNow();
    // New connections come after these: their descriptors may be those of ended ones.
    bool tasks = false;
    for (int i = 0; i < count; ++i) {
      const auto& event = events[static_cast<size_t>(i)];
      if (event.data.fd == tasks_.descriptor()) {
        tasks = true;
      } else {
        OnEvents(event.data.fd, event.events, now);
      }
    }
    EndLate(now);
    if (tasks) tasks_.RunAll();
    const std::lock_guard lock(mutex_);
    counters_.waiting = waiting_;
    counters_.pairs = std::ssize(pairs_);
  }
}

void Relay::Loop::OnEvents(int descriptor, uint32_t events, Instant now) {
  const auto found = clients_.find(descriptor);
  if (found == clients_.end()) return;  // it has ended in this turn
  Client& client = *found->second;
  if (client.state != Client::State::kPaired) return OnInput(client, now);
  const bool accepts = client.word.accepts;
  Pair& pair = *pairs_.at(accepts ? client.other : &client);
  const bool readable = (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
  TurnPair(pair, !accepts && readable, accepts && readable, now);
}

void Relay::Loop::OnInput(Client& client, Instant now) {
  switch (client.Read()) {
    case Step::kMore:
      return;
    case Step::kBad:
      // A waiting one has ended.
      if (client.state == Client::State::kWaits) return End(client);
      return Refuse(client, kForbidden, "it does not say CONNECT as a member does", now);
    case Step::kRequested:
      return OnRequest(client, now);
  }
}

void Relay::Loop::OnRequest(Client& client, Instant now) {
  const std::optional<RelayWord> word = ReadRelayWord(secret_, client.requested);
  if (!word) return Refuse(client, kForbidden, "its word is not of this relay", now);
  const auto known = members_.find(word->member);
  const Incarnation present = known == members_.end() ? 0 : known->second.incarnation;
  if (word->incarnation < present) {
    return Refuse(client, kForbidden, "its word is of an earlier process of the member", now);
  }
  const bool is_new = known == members_.end() || word->incarnation > present;
  if (word->accepts) {
    if (is_new) Fence(*word);
  } else if (is_new || !known->second.there()) {
    return Refuse(client, kNoRoom, "the member is not here", now);
  }
  Member& member = members_.at(word->member);
  std::deque<Client*>& same = word->accepts ? member.waiting : member.diallers;
  std::deque<Client*>& others = word->accepts ? member.diallers : member.waiting;
  if (same.size() >= kWaitingMax) return Refuse(client, kNoRoom, "too many wait already", now);
  client.word = *word;
  client.state = Client::State::kWaits;
  limits_.erase({client.by, client.socket.get()});
  client.by = word->accepts ? kNever : now + kPairWithin;
  if (client.by != kNever) limits_.insert({client.by, client.socket.get()});
  if (word->accepts) ++waiting_;
  if (others.empty()) return same.push_back(&client);
  Client* const other = others.front();
  others.pop_front();
  Join(word->accepts ? other : &client, word->accepts ? &client : other, now);
}

// One of a pair takes the other with it.
void Relay::Loop::Fence(const RelayWord& word) {
  std::vector<int> older;
  for (const auto& [fd, client] : clients_) {
    if (client->word.member == word.member) older.push_back(fd);
  }
  for (const int fd : older) {
    if (const auto still = clients_.find(fd); still != clients_.end()) End(*still->second);
  }
  members_[word.member].incarnation = word.incarnation;
  LogInfo("relay", word.member, " of incarnation ", word.incarnation, " is reached through here",
          older.empty() ? "" : "; connections of an earlier process have ended");
}

// Numbers of processes may go back with a machine's clock: none is kept longer than it fences.
void Relay::Loop::DropIdle(const std::string& name) {
  const auto member = members_.find(name);
  if (!member->second.there() && member->second.diallers.empty()) members_.erase(member);
}

void Relay::Loop::Join(Client* dialler, Client* acceptor, Instant now) {
  for (Client* client : {dialler, acceptor}) {
    limits_.erase({client->by, client->socket.get()});
    client->by = kNever;
    client->state = Client::State::kPaired;
    client->other = client == dialler ? acceptor : dialler;
    send(client->socket.get(), kConnected.data(), kConnected.size(), MSG_NOSIGNAL);
  }
  --waiting_;
  ++members_.at(dialler->word.member).pairs;
  pairs_[dialler] = std::make_unique<Pair>(dialler, acceptor, now);
  LogDebug("relay", dialler->peer, " is connected to ", dialler->word.member, " at ",
           acceptor->peer);
  const std::lock_guard lock(mutex_);
  ++counters_.paired;
}

void Relay::Loop::TurnPair(Pair& pair, bool near_readable, bool far_readable, Instant now) {
  if (!pair.pump.Turn(near_readable, far_readable, now)) return End(*pair.near);
  const bool watched =
      Watch(*pair.near, pair.pump.near_events()) && Watch(*pair.far, pair.pump.far_events());
  if (!watched) return End(*pair.near);
  // The other end has as long to close.
  if (!pair.pump.ending() || pair.near->by != kNever) return;
  pair.near->by = now + Pump::kEndPause;
  limits_.insert({pair.near->by, pair.near->socket.get()});
}

// One of which nothing is wanted is not watched at all: its hang-up would be reported again and
// again. False: the kernel lacks memory, or watches for this user.
bool Relay::Loop::Watch(Client& client, short events) {
  const auto wanted = static_cast<uint32_t>(events);
  if (client.events == wanted) return true;
  const int fd = client.socket.get();
  epoll_event event{wanted, {.fd = fd}};
  const int operation = wanted == 0          ? EPOLL_CTL_DEL
                        : client.events == 0 ? EPOLL_CTL_ADD
                                             : EPOLL_CTL_MOD;
  if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) return false;
  client.events = wanted;
  return true;
}

void Relay::Loop::Refuse(Client& client, absl::string_view answer, absl::string_view why,
                         Instant now) {
  {
    const std::lock_guard lock(mutex_);
    ++counters_.refused;
  }
  ++refused_since_;
  if (now - noted_at_ >= kNotePause) {
    LogWarning("relay", client.peer, " is refused: ", why, "; ", refused_since_,
               " since the last such line");
    noted_at_ = now;
    refused_since_ = 0;
  }
  send(client.socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  End(client);
}

// Ends it with the other one of its pair.
void Relay::Loop::End(Client& client) {
  Client* const other = client.other;
  if (client.state == Client::State::kWaits) {
    Member& member = members_.at(client.word.member);
    if (client.word.accepts) --waiting_;
    std::erase(member.waiting, &client);
    std::erase(member.diallers, &client);
    DropIdle(client.word.member);
  } else if (client.state == Client::State::kPaired) {
    const auto pair = pairs_.find(client.word.accepts ? other : &client);
    --members_.at(client.word.member).pairs;
    DropIdle(client.word.member);
    {
      const std::lock_guard lock(mutex_);
      counters_.bytes += pair->second->pump.bytes();
    }
    pairs_.erase(pair);
  }
  for (Client* each : {&client, other}) {
    if (each == nullptr) continue;
    const int fd = each->socket.get();
    limits_.erase({each->by, fd});
    clients_.erase(fd);  // closes, and so leaves epoll
  }
}

void Relay::Loop::EndLate(Instant now) {
  while (!limits_.empty() && limits_.begin()->first <= now) {
    Client& client = *clients_.at(limits_.begin()->second);
    if (client.state == Client::State::kPaired) {
      // Something may have passed meanwhile.
      limits_.erase(limits_.begin());
      client.by = kNever;
      TurnPair(*pairs_.at(&client), false, false, now);
    } else if (client.state == Client::State::kWaits) {
      Refuse(client, kNoRoom, "the member has no connection free for it", now);
    } else {
      Refuse(client, kForbidden, "it is too slow", now);
    }
  }
}

absl::StatusOr<std::unique_ptr<Relay>> Relay::Create(const std::string& endpoint) {
  ATOLL_RETURN_IF_ERROR(Annotate(CheckTcpEndpoint(endpoint), "--relay"));
  const std::string host = FindHost(endpoint);
  int port = 0;
  if (host == "*" || host == "0.0.0.0" || host == "[::]" ||
      !absl::SimpleAtoi(endpoint.substr(endpoint.rfind(':') + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--relay ", endpoint, ": give the address and port at which other members reach it"));
  }
  std::unique_ptr<Relay> relay(new Relay);
  relay->address_ = host;
  ATOLL_RETURN_IF_ERROR(relay->Listen(absl::StrCat("--relay ", endpoint),
                                      IsLoopbackHost(host) ? host : "*", {port, port},
                                      kConnectionsMax));
  LogInfo("relay", "passes connections on at ", relay->address_);
  return relay;
}

absl::StatusOr<std::unique_ptr<Relay>> Relay::CreateOwn(const std::string& link,
                                                        const std::string& reached) {
  std::unique_ptr<Relay> relay(new Relay);
  relay->own_ = true;
  relay->address_ = FindHost(reached);
  ATOLL_RETURN_IF_ERROR(relay->Listen("for members that connect themselves", FindHost(link),
                                      ReadPortRange(link).value_or(PortRange{}),
                                      kOwnConnectionsMax));
  return relay;
}

absl::StatusOr<std::unique_ptr<Relay>> Relay::Open(const std::string& flag, const std::string& link,
                                                   const std::string& reached) {
  if (!flag.empty()) return Create(flag);
  int port = 0;
  if (absl::SimpleAtoi(link.substr(link.rfind(':') + 1), &port) && port > 0) {
    LogInfo("relay", link, ": members that cannot be reached from here need a relay; with a range ",
            "of two ports they connect themselves");
    return nullptr;
  }
  auto relay = CreateOwn(link, reached);
  if (relay.ok()) return relay;
  LogWarning("relay", "members that cannot be reached from here cannot connect themselves: ",
             relay.status().message());
  return nullptr;
}

// Listens at the last free port: links take the first one. `address_` is the host as others reach
// it.
absl::Status Relay::Listen(const std::string& what, const std::string& host, PortRange ports,
                           int connections_max) {
  secret_ = MakeSecret();
  loop_ = std::make_unique<Loop>(secret_);
  const bool all = host == "*" || host == "0.0.0.0" || host == "[::]";
  const std::string bare(absl::StripSuffix(absl::StripPrefix(host, "["), "]"));
  absl::Status status;
  for (int port = ports.last; listener_ == nullptr && port >= ports.first; --port) {
    auto listener =
        Listener::Bind(what, all ? "::" : bare, port, ShareOfDescriptors(connections_max));
    status = listener.status();
    if (listener.ok()) listener_ = *std::move(listener);
  }
  ATOLL_RETURN_IF_ERROR(status);
  near_ = absl::StrCat(all ? "127.0.0.1" : host, ":", listener_->port());
  absl::StrAppend(&address_, ":", listener_->port());
  ATOLL_RETURN_IF_ERROR(loop_->Start());
  listener_->Start([loop = loop_.get()](int connection, const std::string& peer) {
    loop->Add(connection, peer);
  });
  return absl::OkStatus();
}

Relay::~Relay() {
  if (listener_ != nullptr) listener_->Stop();
}

Relay::Counters Relay::counters() const { return loop_->counters(); }

}  // namespace atl
