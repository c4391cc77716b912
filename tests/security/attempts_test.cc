// Attempts to do what one may not, on every service: each is refused for the right reason.

#include <google/protobuf/descriptor.h>
#include <sys/stat.h>

#include <set>

#include "absl/strings/match.h"
#include "tests/catch/limits.h"
#include "tests/security/cluster.h"
#include "tests/security/key_reader.h"

namespace atl {
namespace {

// Every call of every service, with a role that may make it.
struct Service {
  std::string path;
  Role role;
};
const std::vector<Service>& Services() {
  static const auto& services = *new std::vector<Service>{
      {"/atl.v1.WorkerControl/Attach", Role::kWorker},
      {"/atl.v1.ServerControl/Attach", Role::kParameterServer},
      {"/atl.v1.Jobs/Submit", Role::kOperator},
      {"/atl.v1.Jobs/Pause", Role::kOperator},
      {"/atl.v1.Jobs/Resume", Role::kOperator},
      {"/atl.v1.Jobs/Change", Role::kOperator},
      {"/atl.v1.Jobs/Cancel", Role::kOperator},
      {"/atl.v1.Jobs/Adopt", Role::kOperator},
      {"/atl.v1.Jobs/Refill", Role::kOperator},
      {"/atl.v1.Jobs/NoteExport", Role::kOperator},
      {"/atl.v1.Jobs/Drain", Role::kOperator},
      {"/atl.v1.Jobs/Remove", Role::kOperator},
      {"/atl.v1.Jobs/Trace", Role::kOperator},
      {"/atl.v1.Jobs/Validate", Role::kViewer},
      {"/atl.v1.Jobs/List", Role::kViewer},
      {"/atl.v1.Jobs/Get", Role::kViewer},
      {"/atl.v1.Jobs/Watch", Role::kViewer},
      {"/atl.v1.Jobs/Logs", Role::kViewer},
      {"/atl.v1.Jobs/Decisions", Role::kViewer},
      {"/atl.v1.Jobs/History", Role::kViewer},
      {"/atl.v1.Jobs/Preview", Role::kViewer},
      {"/atl.v1.Status/Get", Role::kViewer},
      {"/atl.v1.Status/Watch", Role::kViewer},
      {"/atl.v1.Status/Profile", Role::kViewer},
      {"/atl.v1.Backups/Make", Role::kOperator},
      {"/atl.v1.Trust/Renew", Role::kWorker},
      {"/atl.v1.Trust/CreateToken", Role::kOperator},
      {"/atl.v1.Trust/DeleteToken", Role::kOperator},
      {"/atl.v1.Trust/List", Role::kOperator},
      {"/atl.v1.Trust/Revoke", Role::kOperator},
      {"/atl.v1.Trust/Audit", Role::kOperator},
      {"/grpc.health.v1.Health/Check", Role::kViewer},
  };
  return services;
}

// Answered without an end.
bool IsStream(const std::string& path) { return absl::StrContains(path, "Status/Watch"); }

// One that may not make the call, if there is one.
Role OtherRole(const Service& service) {
  return service.role == Role::kWorker ? Role::kParameterServer : Role::kWorker;
}

// Returns whether the call was allowed: refused by the handler for its empty message, or answered.
bool Passed(const Ending& ending) {
  return ending.denial == v1::TRUST_DENIAL_UNSPECIFIED &&
         ending.code != grpc::StatusCode::UNAVAILABLE &&
         ending.code != grpc::StatusCode::PERMISSION_DENIED &&
         ending.code != grpc::StatusCode::UNAUTHENTICATED;
}

TEST_CASE("the_attempts_are_made_on_every_call_of_the_protocol") {
  std::set<std::string> tried;
  for (const Service& service : Services()) tried.insert(service.path);
  for (const char* name :
       {"WorkerControl", "ServerControl", "Jobs", "Status", "Backups", "Trust"}) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        absl::StrCat("atl.v1.", name));
    REQUIRE(service != nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string path = absl::StrCat("/atl.v1.", name, "/", service->method(i)->name());
      INFO(path);
      CHECK((tried.contains(path) || path == "/atl.v1.Trust/Join"));  // it takes tokens: below
    }
  }
}

struct Attempt {
  const char* what;
  std::shared_ptr<grpc::Channel> channel;
  grpc::StatusCode code;
  v1::TrustDenial denial;
};

void RevokeOneOfEachRole(const Cluster& cluster) {
  for (const std::string role : {"worker", "paramserver", "operator", "viewer"}) {
    REQUIRE(cluster.Revoke(role, "revoked").ok());
  }
}

// Certificates of attempts, beside those of the cluster.
struct Forged {
  KeyAndCertificate other_authority;
  JoinToken token, used_token;
};

grpc::Status JoinAs(const Cluster& cluster, const JoinToken& token, const std::string& role,
                    const std::string& name, const std::string& key) {
  v1::JoinRequest request;
  request.set_role(role);
  request.set_name(name);
  request.set_certificate_request(MakeRequest(key).value());
  v1::JoinReply reply;
  grpc::ClientContext context;
  return v1::Trust::NewStub(cluster.Dial(TokenCertificate(token).value()))
      ->Join(&context, request, &reply);
}

Forged MakeForged(const Cluster& cluster) {
  Forged forged{MakeAuthority(NewClusterId(), UnixNow() - 10, UnixNow() + 3600).value(),
                cluster.Token({"worker"}), cluster.Token({"worker"})};
  REQUIRE(JoinAs(cluster, forged.used_token, "worker", "joined", MakePrivateKey().value()).ok());
  return forged;
}

// With the endings that they must have. Members named "revoked" are revoked.
std::vector<Attempt> AttemptsOn(const Cluster& cluster, const Service& service,
                                const Forged& forged) {
  using grpc::StatusCode;
  const Identity rightful{service.role, "one"};
  const int64_t now = UnixNow();
  const auto dated = [&](int64_t from, int64_t until) {
    return cluster.Dial(cluster.Certificate(rightful, from, until));
  };
  std::vector<Attempt> attempts = {
      {"wrong authority",
       cluster.Dial(cluster.Certificate(rightful, 0, 0, &forged.other_authority)),
       StatusCode::UNAVAILABLE, v1::TRUST_DENIAL_UNSPECIFIED},
      {"no certificate", cluster.Dial(KeyAndCertificate()), StatusCode::UNAVAILABLE,
       v1::TRUST_DENIAL_UNSPECIFIED},
      {"plaintext", cluster.DialWith(grpc::InsecureChannelCredentials()), StatusCode::UNAVAILABLE,
       v1::TRUST_DENIAL_UNSPECIFIED},
      {"expired", dated(now - 100, now - 10), StatusCode::UNAUTHENTICATED,
       v1::TRUST_DENIAL_EXPIRED},
      {"not valid yet", dated(now + 500, now + 900), StatusCode::UNAUTHENTICATED,
       v1::TRUST_DENIAL_EXPIRED},
      {"revoked", cluster.Dial({service.role, "revoked"}), StatusCode::PERMISSION_DENIED,
       v1::TRUST_DENIAL_REVOKED},
      {"token", cluster.Dial(TokenCertificate(forged.token).value()), StatusCode::PERMISSION_DENIED,
       v1::TRUST_DENIAL_ROLE},
      {"used token", cluster.Dial(TokenCertificate(forged.used_token).value()),
       StatusCode::PERMISSION_DENIED, v1::TRUST_DENIAL_ROLE},
  };
  if (service.path != "/grpc.health.v1.Health/Check" && service.path != "/atl.v1.Trust/Renew") {
    attempts.push_back({"other role", cluster.Dial({OtherRole(service), "one"}),
                        StatusCode::PERMISSION_DENIED, v1::TRUST_DENIAL_ROLE});
  }
  return attempts;
}

void CheckRefused(const std::vector<Attempt>& attempts, const std::string& path) {
  for (const Attempt& attempt : attempts) {
    INFO(attempt.what);
    const Ending ending = Call(attempt.channel, path);
    CHECK(ending.code == attempt.code);
    CHECK(ending.denial == attempt.denial);
    CHECK_FALSE(ending.stands_by);
  }
}

TEST_CASE("every_attempt_on_every_service_is_refused_for_its_reason") {
  Cluster cluster;
  const Forged forged = MakeForged(cluster);
  RevokeOneOfEachRole(cluster);
  for (const Service& service : Services()) {
    INFO(service.path);
    // Who may, may: else a refusal below would show nothing.
    if (!IsStream(service.path)) {
      CHECK(Passed(Call(cluster.Dial({service.role, "one"}), service.path)));
    }
    CheckRefused(AttemptsOn(cluster, service, forged), service.path);
  }
  // All of it was counted.
  std::map<v1::TrustDenial, int> audited;
  for (const v1::AuditEntry& entry : cluster.AuditEntries()) ++audited[entry.denial()];
  for (const auto denial : {v1::TRUST_DENIAL_UNKNOWN_AUTHORITY, v1::TRUST_DENIAL_EXPIRED,
                            v1::TRUST_DENIAL_REVOKED, v1::TRUST_DENIAL_ROLE}) {
    CHECK(audited[denial] > 0);
  }
}

// It names the leader to all for whom the authority, or a token, vouches: there they get the
// reason.
TEST_CASE("a_standby_carries_out_no_call_and_answers_no_stranger") {
  Cluster cluster;
  const Forged forged = MakeForged(cluster);
  RevokeOneOfEachRole(cluster);
  cluster.Stop();
  cluster.Start(3600, "etcd://127.0.0.1:1/none");
  for (const Service& service : Services()) {
    INFO(service.path);
    const Ending rightful = Call(cluster.Dial({service.role, "one"}), service.path);
    CHECK(rightful.code == grpc::StatusCode::UNAVAILABLE);
    CHECK(rightful.stands_by);
    for (const Attempt& attempt : AttemptsOn(cluster, service, forged)) {
      INFO(attempt.what);
      const bool no_connection = attempt.code == grpc::StatusCode::UNAVAILABLE;
      const Ending ending = Call(attempt.channel, service.path);
      CHECK(ending.code == grpc::StatusCode::UNAVAILABLE);
      CHECK(ending.stands_by != no_connection);
    }
  }
  CHECK(HttpGet(cluster.page_url() + "/").status == 0);  // no certificate
}

TEST_CASE("a_token_is_used_once_in_its_role_and_time") {
  Cluster cluster;
  const JoinToken token = cluster.Token({"worker"});
  const std::string key = MakePrivateKey().value(), other = MakePrivateKey().value();
  CHECK(EndingFromStatus(JoinAs(cluster, token, "operator", "me", key)).denial ==
        v1::TRUST_DENIAL_TOKEN_ROLE);
  CHECK(JoinAs(cluster, token, "worker", "w1", key).ok());
  CHECK(JoinAs(cluster, token, "worker", "w1", key).ok());  // the answer was lost
  CHECK(EndingFromStatus(JoinAs(cluster, token, "worker", "w2", other)).denial ==
        v1::TRUST_DENIAL_TOKEN_USED);
  CHECK(
      EndingFromStatus(JoinAs(cluster, cluster.Token({"worker"}), "worker", "w1", other)).denial ==
      v1::TRUST_DENIAL_NAME);
  CHECK(EndingFromStatus(JoinAs(cluster, cluster.Token({"worker"}), "worker", "W 1", other)).code ==
        grpc::StatusCode::INVALID_ARGUMENT);
  const JoinToken unknown = NewToken(token.fingerprint).value();
  CHECK(JoinAs(cluster, unknown, "worker", "w3", other).error_code() ==
        grpc::StatusCode::UNAVAILABLE);
  // Used up, also after the coordinator's restart.
  cluster.Stop();
  cluster.Start();
  CHECK(EndingFromStatus(JoinAs(cluster, token, "worker", "w2", other)).denial ==
        v1::TRUST_DENIAL_TOKEN_USED);
}

// The ending of a stream that begins with this message, and has no answer.
template <class Answer, class Stream, class Hello>
Ending EndingOfAttach(const Stream& stream, const Hello& hello) {
  stream->Write(hello);
  Answer answer;
  CHECK_FALSE(stream->Read(&answer));
  return EndingFromStatus(stream->Finish());
}

TEST_CASE("a_member_attaches_under_its_own_name_only") {
  Cluster cluster;
  v1::FromWorker worker;
  worker.set_worker("w2");
  worker.set_incarnation(1);
  worker.mutable_hello()->set_software_version("1");
  grpc::ClientContext worker_context;
  const auto workers = v1::WorkerControl::NewStub(cluster.Dial({Role::kWorker, "w1"}));
  CHECK(EndingOfAttach<v1::ToWorker>(workers->Attach(&worker_context), worker).denial ==
        v1::TRUST_DENIAL_NAME);
  v1::FromServer server;
  server.set_server("s2");
  server.set_incarnation(1);
  server.mutable_hello()->set_software_version("1");
  grpc::ClientContext server_context;
  const auto servers = v1::ServerControl::NewStub(cluster.Dial({Role::kParameterServer, "s1"}));
  CHECK(EndingOfAttach<v1::ToServer>(servers->Attach(&server_context), server).denial ==
        v1::TRUST_DENIAL_NAME);
}

TEST_CASE("a_certificate_is_renewed_for_its_own_key_only") {
  Cluster cluster;
  const KeyAndCertificate own = cluster.Certificate({Role::kWorker, "w1"});
  const auto renew = [&](const std::string& key) {
    v1::RenewRequest request;
    request.set_certificate_request(MakeRequest(key).value());
    v1::RenewReply reply;
    grpc::ClientContext context;
    const grpc::Status status =
        v1::Trust::NewStub(cluster.Dial(own))->Renew(&context, request, &reply);
    return status.ok() ? reply.certificate() : "";
  };
  CHECK(renew(MakePrivateKey().value()).empty());
  const auto renewed = ReadCertificate(renew(own.key));
  REQUIRE(renewed.ok());
  CHECK(renewed->identity.value() == Identity{Role::kWorker, "w1"});
  CHECK(renewed->key_digest == ReadCertificate(own.certificate)->key_digest);
}

TEST_CASE("a_watch_ends_when_its_caller_is_revoked") {
  Cluster cluster;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + testing::kHangLimit);
  const auto stub = v1::Status::NewStub(cluster.Dial({Role::kViewer, "guest"}));
  v1::StatusRequest request;
  request.set_interval_ms(100);
  const auto reader = stub->Watch(&context, request);
  v1::ClusterStatus status;
  REQUIRE(reader->Read(&status));
  REQUIRE(cluster.Revoke("viewer", "guest").ok());
  while (reader->Read(&status)) {
  }
  CHECK(EndingFromStatus(reader->Finish()).denial == v1::TRUST_DENIAL_REVOKED);
}

TEST_CASE("keys_are_sent_to_parameter_servers_as_they_change_and_refused_holders_to_workers_too") {
  Cluster cluster;
  ServerKeyReader server(cluster, {Role::kParameterServer, "s1"});
  v1::ClientKeys keys, refused;
  REQUIRE(server.Next(&keys));
  CHECK(keys.allowed_size() == 0);
  WorkerKeyReader worker(cluster, {Role::kWorker, "w2"});
  REQUIRE(worker.Next(&refused));
  CHECK(refused.refused_size() == 0);
  v1::JoinRequest join;
  join.set_role("worker");
  join.set_name("w1");
  join.set_certificate_request(MakeRequest(MakePrivateKey().value()).value());
  join.set_curve_public_key(std::string(40, 'k'));
  v1::JoinReply reply;
  grpc::ClientContext joining;
  const JoinToken token = cluster.Token({"worker"});
  REQUIRE(v1::Trust::NewStub(cluster.Dial(TokenCertificate(token).value()))
              ->Join(&joining, join, &reply)
              .ok());
  while (keys.allowed_size() == 0) REQUIRE(server.Next(&keys));
  CHECK(keys.allowed(0) == std::string(40, 'k'));
  REQUIRE(cluster.Revoke("worker", "w1").ok());
  while (keys.revoked_size() == 0) REQUIRE(server.Next(&keys));
  CHECK(keys.allowed_size() == 0);
  CHECK(keys.revoked(0) == std::string(40, 'k'));
  REQUIRE(keys.refused_size() == 1);
  // The next message to the worker: of keys, it gets none.
  REQUIRE(worker.Next(&refused));
  CHECK(refused.allowed_size() + refused.revoked_size() == 0);
  REQUIRE(refused.refused_size() == 1);
  CHECK(refused.refused(0).role() == "worker");
  CHECK(refused.refused(0).name() == "w1");
  CHECK(refused.refused(0).revoked_by() == "operator/me");
}

TEST_CASE("what_is_done_is_in_the_audit_log_with_who_did_it") {
  Cluster cluster;
  REQUIRE(cluster.Revoke("worker", "w1").ok());
  const v1::AuditEntry entry = cluster.AuditEntries().back();
  CHECK(entry.who() == "operator/me");
  CHECK(entry.call() == "Trust/Revoke");
  CHECK(entry.target() == "worker/w1");
  CHECK(entry.done());
}

TEST_CASE("an_authoritys_key_that_others_may_read_is_refused") {
  const std::string folder = FreshFolder();
  const AuthorityFolder authority(folder + "/trust");
  REQUIRE(authority.Make(NewClusterId(), {"127.0.0.1"}, UnixNow()).ok());
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.state_dir = folder;
  for (const std::string key : {"/authority.key", "/coordinator/key.pem"}) {
    const std::string path = authority.path() + key;
    REQUIRE(chmod(path.c_str(), 0644) == 0);
    CHECK(absl::IsInvalidArgument(CoordinatorServer::Start(options).status()));
    REQUIRE(chmod(path.c_str(), 0600) == 0);
  }
  CHECK(CoordinatorServer::Start(options).ok());
}

}  // namespace
}  // namespace atl
