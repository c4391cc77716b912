// Attempts on what members serve beside the coordinator: the tensor link of parameter servers, the
// peer link between workers, and /metrics. None is taken, and those who may are not disturbed.
// Keys of links have no dates and no holder's role of their own: who may use them is what the
// coordinator's list says, and a world-readable one is refused at the start (security_test.cc).

#include <fstream>
#include <set>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "common/metrics/metrics_server.h"
#include "common/net/control/channel.h"
#include "common/net/testing/interceptor.h"
#include "common/net/testing/peer_fixture.h"
#include "common/net/testing/test_handler.h"
#include "common/trust/member_access.h"
#include "common/trust/refused_holders.h"
#include "tests/catch/limits.h"
#include "tests/security/cluster.h"
#include "tests/security/key_reader.h"

namespace atl {
namespace {

using namespace std::chrono_literals;

// --------------------------------------------------------------------------- the tensor link

// Joins with a token, and has a key for links from then on.
KeyPair JoinWithKey(const Cluster& cluster, const std::string& role, const std::string& name) {
  const KeyPair keys = GenerateKeyPair().value();
  v1::JoinRequest request;
  request.set_role(role);
  request.set_name(name);
  request.set_certificate_request(MakeRequest(MakePrivateKey().value()).value());
  request.set_curve_public_key(keys.public_key);
  v1::JoinReply reply;
  grpc::ClientContext context;
  const JoinToken token = cluster.Token({role});
  REQUIRE(v1::Trust::NewStub(cluster.Dial(TokenCertificate(token).value()))
              ->Join(&context, request, &reply)
              .ok());
  return keys;
}

// Returns the keys that the coordinator sends to parameter servers.
std::vector<std::string> ListedKeys(const Cluster& cluster) {
  ServerKeyReader reader(cluster, {Role::kParameterServer, "s1"});
  v1::ClientKeys keys;
  REQUIRE(reader.Next(&keys));
  return {keys.allowed().begin(), keys.allowed().end()};
}

Values SomeValues() { return std::make_shared<std::vector<float>>(4096, 0.5f); }

PushId Push(ShardId shard) { return {"job-1", 0, 1, 1, 0, shard}; }

TEST_CASE("every_attempt_on_a_tensor_link_is_refused_and_nothing_is_taken") {
  Cluster cluster, other_cluster;
  const KeyPair server = GenerateKeyPair().value(), impostor = GenerateKeyPair().value();
  const KeyPair worker = JoinWithKey(cluster, "worker", "w1");
  const KeyPair revoked = JoinWithKey(cluster, "worker", "w2");
  const KeyPair viewer = JoinWithKey(cluster, "viewer", "guest");
  const KeyPair stranger = JoinWithKey(other_cluster, "worker", "w1");
  TestLink link({.security = {.keys = server, .allowed_client_keys = ListedKeys(cluster)}},
                {.security = {.keys = revoked}});
  const ServerAddress rightful = link.address;
  REQUIRE(link.Push(Push(1), SomeValues()).status.ok());  // before its revocation
  REQUIRE(cluster.Revoke("worker", "w2").ok());
  link.server->SetClientKeys(ListedKeys(cluster));
  REQUIRE(link.handler.admissions() == 1);

  using absl::StatusCode;
  struct Attempt {
    const char* what;
    KeyPair keys;
    std::string server_key;
    std::set<StatusCode> codes;
    Duration limit = testing::kHangLimit;
  };
  for (const Attempt& attempt : std::vector<Attempt>{
           {"revoked", revoked, server.public_key, {StatusCode::kUnauthenticated}},
           {"other cluster", stranger, server.public_key, {StatusCode::kUnauthenticated}},
           {"other role", viewer, server.public_key, {StatusCode::kUnauthenticated}},
           {"the server's own key", server, server.public_key, {StatusCode::kUnauthenticated}},
           {"no key", {}, server.public_key, {StatusCode::kInvalidArgument}},
           {"plaintext", {}, "", {StatusCode::kDeadlineExceeded}, testing::kNothingComes},
           {"for another server",
            worker,
            impostor.public_key,
            {StatusCode::kDeadlineExceeded},
            testing::kNothingComes},
       }) {
    INFO(attempt.what);
    link.client = TensorClient::Create({.security = {.keys = attempt.keys}}).value();
    link.address = {rightful.endpoint, attempt.server_key};
    const absl::Status pushed =
        link.Push(Push(2), SomeValues(), Encoding::kFloat32, attempt.limit).status;
    INFO(pushed.ToString());
    CHECK(attempt.codes.contains(pushed.code()));
    std::vector<float> pulled(4096);
    CHECK(attempt.codes.contains(link.Pull({"job-1", 0, 1}, pulled, attempt.limit).status.code()));
    CHECK(link.handler.admissions() == 1);
    CHECK(link.handler.deliveries() == 1);
  }
  // Who may, may, after all of them.
  link.client = TensorClient::Create({.security = {.keys = worker}}).value();
  link.address = rightful;
  CHECK(link.Push(Push(3), SomeValues()).status.ok());
}

TEST_CASE("a_transfer_under_way_ends_when_its_client_is_revoked") {
  const KeyPair server = GenerateKeyPair().value(), client = GenerateKeyPair().value();
  TensorServerOptions slow{
      .security = {.keys = server, .allowed_client_keys = {client.public_key}}};
  slow.bandwidth_limit_bytes_per_s = 1e6;
  TestLink link(slow, {.security = {.keys = client}, .chunk_bytes = 4096});
  constexpr size_t kElements = 4 << 20;  // 16 s
  link.handler.Hold(1, std::make_shared<std::vector<float>>(kElements), 0);
  std::vector<float> pulled(kElements);
  Awaited<PullResult> pull = link.StartPull({"job-1", 0, 1}, pulled);
  link.handler.AwaitPulls(1);
  link.server->SetClientKeys({});
  const PullResult result = pull.Get();
  CHECK(result.status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(link.client->counters().transfers_done == 0);
}

TEST_CASE("what_was_recorded_of_a_tensor_link_is_taken_a_second_time_by_no_server") {
  const KeyPair server = GenerateKeyPair().value(), client = GenerateKeyPair().value();
  TestLink link({.security = {.keys = server, .allowed_client_keys = {client.public_key}}},
                {.security = {.keys = client}});
  std::mutex mutex;
  std::vector<Interceptor::Parts> recorded;
  const std::string endpoint = link.address.endpoint;
  Interceptor recorder(endpoint, [&](Interceptor::Direction direction, Interceptor::Parts parts) {
    const std::lock_guard lock(mutex);
    if (direction == Interceptor::kToServer) recorded.push_back(parts);
    return std::vector<Interceptor::Parts>{parts};
  });
  link.address.endpoint = recorder.endpoint();
  REQUIRE(link.Push(Push(1), SomeValues()).status.ok());
  const int64_t refused = link.server->counters().frames_refused;

  const auto context = ZmqContext::Create(1).value();
  Socket dealer = context->MakeTensorSocket(ZMQ_DEALER).value();
  REQUIRE(zmq_connect(dealer.get(), endpoint.c_str()) == 0);
  const std::lock_guard lock(mutex);
  for (const Interceptor::Parts& parts : recorded) {
    std::vector<Message> message;
    for (const std::string& part : parts) message.push_back(Message::Of(part));
    while (dealer.Send(message) != SendOutcome::kSent) std::this_thread::yield();
  }
  const Instant limit = In(kPatience);
  while (link.server->counters().frames_refused < refused + std::ssize(recorded) - 1 &&
         SteadyNow() < limit) {
    std::this_thread::yield();
  }
  CHECK(link.server->counters().frames_refused >= refused + std::ssize(recorded) - 1);
  CHECK(link.handler.admissions() == 1);
}

// ----------------------------------------------------------------------------- the peer link

TEST_CASE("every_attempt_on_a_peer_link_is_refused_and_nothing_is_delivered") {
  const auto with_keys = [](const KeyPair& keys) { return PeerLinkOptions{.keys = keys}; };
  const KeyPair keys_c = GenerateKeyPair().value();
  TestPeer a("a", with_keys(GenerateKeyPair().value())),
      b("b", with_keys(GenerateKeyPair().value()));
  {
    TestPeer c("c", with_keys(keys_c));
    Meet(Plan(1), {&a, &b, &c});
  }
  Meet(Plan(2), {&a, &b});  // without c
  const int64_t lost = b.GetCounters("a").times_lost;

  struct Attempt {
    const char* what;
    NodeId name;
    KeyPair keys;
    int64_t plan;
  };
  for (const Attempt& attempt : std::vector<Attempt>{
           {"a stranger's key under a member's name", "a", GenerateKeyPair().value(), 2},
           {"a stranger's key under its own name", "x", GenerateKeyPair().value(), 2},
           {"no longer a member, in its old plan", "c", keys_c, 1},
           {"no longer a member, in the new plan", "c", keys_c, 2},
           {"no longer a member, under a member's name", "a", keys_c, 2},
           {"no key", "a", {}, 2},
       }) {
    INFO(attempt.what);
    const int64_t before = b.link->frames_refused();
    TestPeer attacker(attempt.name, with_keys(attempt.keys));
    IslandMember target = b.member;
    if (attempt.keys.empty()) target.public_key.clear();
    REQUIRE(attacker.link->SetPeers(Plan(attempt.plan), {attacker.member, target}).ok());
    (void)attacker.TrySay(b, PeerChannel::kCommand, "let me in");
    (void)attacker.TrySay(b, PeerChannel::kState, "let me in", "state");
    const Instant limit = In(kPatience);
    while (b.link->frames_refused() == before && SteadyNow() < limit) std::this_thread::yield();
    CHECK(b.link->frames_refused() > before);
    CHECK_FALSE(attacker.link->AwaitPeers(In(0s)).ok());
    CHECK(b.admissions() == 0);
  }
  // Members still have each other.
  a.Say(b, PeerChannel::kCommand, "we are still here");
  CHECK(b.Receive(PeerChannel::kCommand).header == "we are still here");
  CHECK(b.GetCounters("a").times_lost == lost);
}

// ----------------------------------------------------------------------- /metrics of members

// Makes a member that admits the holders that its list of refused ones leaves.
Monitored MonitoredBy(const RefusedHolders& refused, std::atomic<int>* collected) {
  Monitored monitored;
  monitored.admits = [&refused](const std::string& shown) { return refused.Check(shown); };
  monitored.collect = [collected](MetricsWriter&) { ++*collected; };
  monitored.healthy = [] { return true; };
  monitored.why_not_ready = [] { return std::string(); };
  return monitored;
}

TEST_CASE("every_attempt_on_a_members_metrics_is_refused") {
  Cluster cluster;
  const std::string folder = FreshFolder();
  const auto write = [&](const std::string& name, const KeyAndCertificate& made) {
    return WriteIdentity(folder, name, made);
  };
  const HttpIdentity own = write("own", cluster.Certificate({Role::kWorker, "w1"}));
  TlsOptions tls;
  tls.ca_path = folder + "/ca.pem";
  std::ofstream(tls.ca_path) << cluster.authority().Read()->certificate;
  tls.cert_path = own.cert_path;
  tls.key_path = own.key_path;
  RefusedHolders refused;
  WorkerKeyReader reader(cluster, {Role::kWorker, "w1"});
  std::jthread follows([&] {
    v1::ClientKeys keys;
    while (reader.Next(&keys)) refused.Set(keys.refused());
  });
  const absl::Cleanup stop = [&] { reader.Stop(); };
  std::atomic<int> collected = 0;
  const auto server = ServeMetrics("0.0.0.0:0", tls, MonitoredBy(refused, &collected));
  REQUIRE(server.ok());
  const std::string port = absl::StrCat("://127.0.0.1:", (*server)->port());

  const KeyAndCertificate others =
      MakeAuthority(NewClusterId(), UnixNow() - 10, UnixNow() + 3600).value();
  const Identity viewer{Role::kViewer, "monitor"};
  struct Attempt {
    const char* what;
    std::string scheme;
    HttpIdentity shown;
    int status;  // 0: no connection
  };
  for (const Attempt& attempt : std::vector<Attempt>{
           {"no certificate", "https", {}, 403},
           {"plaintext", "http", {}, 0},
           {"wrong authority", "https",
            write("stranger", cluster.Certificate(viewer, 0, 0, &others)), 0},
           {"expired", "https",
            write("expired", cluster.Certificate(viewer, UnixNow() - 100, UnixNow() - 10)), 0},
           {"not valid yet", "https",
            write("early", cluster.Certificate(viewer, UnixNow() + 500, UnixNow() + 900)), 0},
           {"token", "https", write("token", TokenCertificate(cluster.Token({"viewer"})).value()),
            0},
       }) {
    INFO(attempt.what);
    CHECK(HttpGet(attempt.scheme + port + "/metrics", {}, attempt.shown).status == attempt.status);
  }
  CHECK(collected == 0);
  const HttpIdentity monitor = write("monitor", cluster.Certificate(viewer));
  CHECK(HttpGet("https" + port + "/metrics", {}, monitor).status == 200);
  CHECK(collected == 1);
  CHECK(HttpGet("https" + port + "/healthz").status == 200);  // service managers have none

  // Its certificate is valid for an hour more. The coordinator and the member say the same.
  REQUIRE(cluster.Revoke("viewer", "monitor").ok());
  const auto read = [&](const HttpIdentity& shown) {
    return HttpGet("https" + port + "/metrics", {}, shown);
  };
  const Instant limit = In(kPatience);
  while (read(monitor).status == 200 && SteadyNow() < limit) std::this_thread::yield();
  CHECK(read(monitor).status == 403);
  CHECK(read(monitor).body == HttpGet(cluster.metrics_url() + "/metrics", {}, monitor).body);
  CHECK(absl::StartsWith(read(monitor).body,
                         DenialName(v1::TRUST_DENIAL_REVOKED) + ": viewer/monitor "));
  // Another holder of the same name in another role, and other names.
  CHECK(read(write("worker", cluster.Certificate({Role::kWorker, "monitor"}))).status == 200);
  CHECK(read(write("other", cluster.Certificate({Role::kViewer, "other"}))).status == 200);
}

}  // namespace
}  // namespace atl
