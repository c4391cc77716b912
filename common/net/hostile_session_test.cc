// Links with keys whose messages are changed, repeated, kept back and exchanged on their way.

#include <catch2/catch.hpp>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "common/net/testing/interceptor.h"
#include "common/net/testing/peer_fixture.h"
#include "common/net/testing/test_handler.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

using namespace std::chrono_literals;
using enum PeerChannel;
using Parts = Interceptor::Parts;
using Out = std::vector<Parts>;

constexpr size_t kElements = 4096;
constexpr int64_t kChunkBytes = 4096;  // four of them

// Does something to the n-th message with a payload that goes in a direction, and nothing after.
class MessageFault {
 public:
  using Alteration = std::function<Out(Parts)>;
  MessageFault(Interceptor::Direction direction, int n, Alteration alteration)
      : direction_(direction), left_(n), alteration_(std::move(alteration)) {}

  Out operator()(Interceptor::Direction direction, Parts parts) {
    const std::lock_guard lock(*mutex_);
    if (direction != direction_ || parts.size() < 2 || left_ < 0) return {std::move(parts)};
    if (left_-- > 0) return {std::move(parts)};
    return alteration_(std::move(parts));
  }

 private:
  const Interceptor::Direction direction_;
  int left_;
  const Alteration alteration_;
  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
};

Parts Flip(Parts parts, size_t part, size_t at) {
  parts[part][at] = static_cast<char>(parts[part][at] ^ 1);
  return parts;
}

// Everything that can be done to one message.
struct NamedFault {
  const char* name;
  MessageFault::Alteration alteration;
};
std::vector<NamedFault> ListFaults() {
  return {
      {"a payload changed", [](Parts p) { return Out{Flip(p, 1, 100)}; }},
      {"a payload cut", [](Parts p) { return p[1].pop_back(), Out{p}; }},
      {"a payload left out", [](Parts p) { return p.pop_back(), Out{p}; }},
      {"a payload added", [](Parts p) { return p.push_back("more"), Out{p}; }},
      {"a header changed", [](Parts p) { return Out{Flip(p, 0, 12)}; }},
      {"a header cut", [](Parts p) { return p[0].pop_back(), Out{p}; }},
      {"a message left out", [](Parts) { return Out{}; }},
      {"a message repeated",
       [](Parts p) {
         return Out{p, p};
       }},
      {"a header repeated",
       [](Parts p) {
         return Out{p, {p[0]}};
       }},
  };
}

struct Keyed {
  KeyPair server = GenerateKeyPair().value(), client = GenerateKeyPair().value();
  TensorServerOptions ForServer() const {
    return {.security = {.keys = server, .allowed_client_keys = {client.public_key}}};
  }
  TensorClientOptions ForClient() const {
    return {.security = {.keys = client}, .chunk_bytes = kChunkBytes};
  }
};

Values SomeValues() {
  auto values = std::make_shared<std::vector<float>>(kElements);
  for (size_t i = 0; i < kElements; ++i) (*values)[i] = static_cast<float>(i);
  return values;
}

TEST_CASE("a push whose messages are tampered with is refused there and still arrives whole") {
  for (const NamedFault& fault : ListFaults()) {
    INFO(fault.name);
    const Keyed keys;
    TestLink link(keys.ForServer(), keys.ForClient());
    Interceptor between(link.address.endpoint,
                        MessageFault(Interceptor::kToServer, 1, fault.alteration));
    link.address.endpoint = between.endpoint();
    const PushResult pushed = link.Push({"job-1", 0, 1, 1, 0, 1}, SomeValues());
    REQUIRE(pushed.status.ToString() == "OK");
    REQUIRE(*link.handler.Staged({"job-1", 0, 1, 1, 0, 1}) == *SomeValues());
    REQUIRE(link.handler.deliveries() == 1);
    REQUIRE(link.server->counters().frames_refused >= 1);
    REQUIRE(link.client->counters().restarts >= 1);
  }
}

TEST_CASE("a pull whose messages are tampered with is refused here and still arrives whole") {
  for (const NamedFault& fault : ListFaults()) {
    INFO(fault.name);
    const Keyed keys;
    TestLink link(keys.ForServer(), keys.ForClient());
    link.handler.Hold(1, SomeValues(), 3);
    Interceptor between(link.address.endpoint,
                        MessageFault(Interceptor::kToClient, 1, fault.alteration));
    link.address.endpoint = between.endpoint();
    std::vector<float> pulled(kElements);
    REQUIRE(link.Pull({"job-1", 3, 1}, pulled).status.ToString() == "OK");
    REQUIRE(pulled == *SomeValues());
    REQUIRE(link.client->counters().frames_refused >= 1);
    REQUIRE(link.client->counters().restarts >= 1);
  }
}

TEST_CASE("payloads that do not open leave the destination as it was, and the reason is given") {
  const Keyed keys;
  TestLink link(keys.ForServer(), keys.ForClient());
  link.handler.Hold(1, SomeValues(), 3);
  Interceptor between(link.address.endpoint, [](Interceptor::Direction direction, Parts parts) {
    if (direction == Interceptor::kToClient && parts.size() == 2) parts = Flip(parts, 1, 9);
    return Out{parts};
  });
  link.address.endpoint = between.endpoint();
  std::vector<float> destination(kElements, -1.0f);
  const auto says = [](const absl::Status& status) {
    return absl::StrContains(status.message(), "chunk 0 does not open");
  };
  const absl::Status status = testing::WithGrowingLimit(
      500ms,
      [&](Duration limit) {
        return link.Pull({"job-1", 3, 1}, destination, limit).status;
      },
      says);
  INFO(status.ToString());
  REQUIRE(status.code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(says(status));
  REQUIRE(destination == std::vector<float>(kElements, -1.0f));
}

TEST_CASE("what one client sent is refused on another's connection") {
  const Keyed keys;
  const KeyPair other = GenerateKeyPair().value();
  TensorServerOptions options = keys.ForServer();
  options.security.allowed_client_keys.push_back(other.public_key);
  TestLink link(options, keys.ForClient());
  std::mutex mutex;
  std::optional<Parts> recorded;
  const std::string server = link.address.endpoint;
  Interceptor recorder(server, [&](Interceptor::Direction direction, Parts parts) {
    const std::lock_guard lock(mutex);
    if (direction == Interceptor::kToServer && parts.size() == 2 && !recorded) recorded = parts;
    return Out{parts};
  });
  link.address.endpoint = recorder.endpoint();
  REQUIRE(link.Push({"job-1", 0, 1, 1, 0, 1}, SomeValues()).status.ok());
  const Parts sent = [&] {
    const std::lock_guard lock(mutex);
    return recorded.value_or(Parts{});
  }();
  REQUIRE(sent.size() == 2);

  Interceptor exchanger(server, MessageFault(Interceptor::kToServer, 1, [&](Parts parts) {
                          // The payload of one under the header of the other, and all of the other.
                          return Out{{parts[0], sent[1]}, sent};
                        }));
  link.client =
      TensorClient::Create({.security = {.keys = other}, .chunk_bytes = kChunkBytes}).value();
  link.address.endpoint = exchanger.endpoint();
  const PushId id{"job-1", 0, 1, 1, 0, 2};
  REQUIRE(link.Push(id, SomeValues()).status.ToString() == "OK");
  REQUIRE(*link.handler.Staged(id) == *SomeValues());
  REQUIRE(link.server->counters().frames_refused >= 2);
}

TEST_CASE("a hello that was recorded begins no session in which its sender is believed") {
  const Keyed keys;
  TestLink link(keys.ForServer(), keys.ForClient());
  std::mutex mutex;
  std::vector<Parts> recorded;
  Interceptor recorder(link.address.endpoint, [&](Interceptor::Direction direction, Parts parts) {
    const std::lock_guard lock(mutex);
    if (direction == Interceptor::kToServer) recorded.push_back(parts);
    return Out{parts};
  });
  const std::string server = link.address.endpoint;
  link.address.endpoint = recorder.endpoint();
  REQUIRE(link.Push({"job-1", 0, 1, 1, 0, 1}, SomeValues()).status.ok());
  const int64_t refused = link.server->counters().frames_refused;

  const auto context = ZmqContext::Create(1).value();
  Socket dealer = context->MakeTensorSocket(ZMQ_DEALER).value();
  REQUIRE(zmq_connect(dealer.get(), server.c_str()) == 0);
  const std::lock_guard lock(mutex);
  for (const Parts& parts : recorded) {
    std::vector<Message> message;
    for (const std::string& part : parts) message.push_back(Message::Of(part));
    while (dealer.Send(message) != SendOutcome::kSent) std::this_thread::yield();
  }
  // All but the hello.
  while (link.server->counters().frames_refused < refused + std::ssize(recorded) - 1) {
    std::this_thread::yield();
  }
  REQUIRE(link.handler.admissions() == 1);
}

TEST_CASE("plaintext and keys do not speak with each other, either way, and the reason is given") {
  const auto require_refused = [](TestLink& link) {
    const auto says = [](const absl::Status& status) {
      return absl::StrContains(status.message(), "check that both ends use keys");
    };
    const absl::Status status = testing::WithGrowingLimit(
        500ms,
        [&](Duration limit) {
          return link.Push({"job-1", 0, 1, 1, 0, 1}, SomeValues(), Encoding::kFloat32, limit)
              .status;
        },
        says);
    INFO(status.ToString());
    REQUIRE(says(status));
    REQUIRE(link.handler.admissions() == 0);
  };
  const Keyed keys;
  {
    TestLink link(keys.ForServer());
    link.address.public_key.clear();
    require_refused(link);
  }
  TestLink link({}, keys.ForClient());
  link.address.public_key = keys.server.public_key;
  require_refused(link);
}

// ---- Between workers.

// Two workers with keys; what a sends to b goes through an interceptor.
struct Workers {
  explicit Workers(Interceptor::Hook hook)
      : a("a", Options()), b("b", Options()), between(b.member.endpoint, std::move(hook)) {
    IslandMember seen = b.member;
    seen.endpoint = between.endpoint();
    REQUIRE(a.link->SetPeers(Plan(1), {a.member, seen}).ok());
    REQUIRE(b.link->SetPeers(Plan(1), {a.member, b.member}).ok());
    REQUIRE(a.link->AwaitPeers(In(kPatience)).ToString() == "OK");
  }
  static PeerLinkOptions Options() {
    PeerLinkOptions options;
    options.keys = GenerateKeyPair().value();
    options.chunk_bytes = kChunkBytes;
    return options;
  }
  TestPeer a, b;
  Interceptor between;
};

TEST_CASE("a worker whose messages are tampered with is lost, and nothing of them is delivered") {
  for (const NamedFault& fault : ListFaults()) {
    INFO(fault.name);
    Workers workers(MessageFault(Interceptor::kToServer, 1, fault.alteration));
    workers.a.Say(workers.b, kTensor, "tensor", std::string(4 * kChunkBytes, 't'));
    const std::string why = workers.a.AwaitLost("b");
    INFO(why);
    REQUIRE(absl::StrContains(workers.b.AwaitLost("a"), "protocol"));
    REQUIRE(workers.b.CountReceived(kTensor) == 0);
    REQUIRE(workers.b.GetCounters("a").frames_refused == 1);
  }
}

TEST_CASE("a block of a collective that is tampered with is not delivered, nor are later ones") {
  for (const NamedFault& fault : ListFaults()) {
    INFO(fault.name);
    Workers workers(MessageFault(Interceptor::kToServer, 1, fault.alteration));
    for (int i = 0; i < 3; ++i) {  // of one chunk, so they stay where they came
      // The last one may come after the second is refused.
      (void)workers.a.TrySay(workers.b, kCollective, absl::StrCat(i),
                             std::string(kChunkBytes, 's'));
    }
    REQUIRE(absl::StrContains(workers.b.AwaitLost("a"), "protocol"));
    const bool whole = std::string(fault.name) == "a message repeated" ||
                       std::string(fault.name) == "a header repeated";
    REQUIRE(workers.b.CountReceived(kCollective) == (whole ? 2 : 1));
  }
}

TEST_CASE("answers that are tampered with lose the worker that they come from") {
  std::atomic<bool> tampers = false;
  Workers workers([&](Interceptor::Direction direction, Parts parts) {
    if (direction == Interceptor::kToClient && tampers) parts = Flip(parts, 0, 10);
    return Out{parts};
  });
  workers.a.Say(workers.b, kCommand, "first");
  REQUIRE(workers.b.Receive(kCommand).header == "first");
  tampers = true;
  workers.a.Say(workers.b, kCommand, "second");
  REQUIRE(absl::StrContains(workers.a.AwaitLost("b"), "does not open"));
  REQUIRE(workers.a.GetCounters("b").frames_refused == 1);
}

TEST_CASE("messages of all sizes and channels pass between workers with keys, in order") {
  Workers workers([](Interceptor::Direction, Parts parts) { return Out{parts}; });
  const auto text = [](int i) {
    return std::string(static_cast<size_t>(i) * 1777 % (20 * kChunkBytes), static_cast<char>(i));
  };
  for (int i = 0; i < 50; ++i) {
    workers.a.Say(workers.b, kTensor, absl::StrCat(i), text(i));
    workers.b.Say(workers.a, kCollective, absl::StrCat(i), text(i));
  }
  for (int i = 0; i < 50; ++i) {
    REQUIRE(workers.b.ReceiveText(kTensor) == text(i));
    REQUIRE(workers.a.ReceiveText(kCollective) == text(i));
  }
}

}  // namespace
}  // namespace atl
