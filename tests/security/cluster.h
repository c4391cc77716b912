// A coordinator with an authority, in the test's process, and certificates of all kinds for it.

#ifndef ATOLL_TESTS_SECURITY_CLUSTER_H_
#define ATOLL_TESTS_SECURITY_CLUSTER_H_

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/http/testing/http_get.h"
#include "common/net/control/leader.h"
#include "common/protocol/mark_file.h"
#include "common/trust/authority.h"
#include "common/trust/token.h"
#include "coordinator/server.h"
#include "coordinator/trust/registry.h"
#include "proto/control.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/trust.grpc.pb.h"
#include "tests/cli/command.h"

namespace atl {

inline int64_t UnixNow() { return absl::ToUnixSeconds(absl::Now()); }

// How a call ended: its code, and the word that a refusal begins with ("revoked"), if it has one.
struct Ending {
  grpc::StatusCode code = grpc::StatusCode::OK;
  v1::TrustDenial denial = v1::TRUST_DENIAL_UNSPECIFIED;
  bool stands_by = false;  // the answer of a coordinator that does not lead
};

inline Ending EndingFromStatus(const grpc::Status& status) {
  Ending ending{status.error_code()};
  ending.stands_by = absl::StartsWith(status.error_message(), kStandbyText);
  const std::string denial_name =
      status.error_message().substr(0, status.error_message().find(':'));
  for (int i = 1; v1::TrustDenial_IsValid(i); ++i) {
    if (DenialName(static_cast<v1::TrustDenial>(i)) == denial_name) {
      ending.denial = static_cast<v1::TrustDenial>(i);
    }
  }
  return ending;
}

class Cluster {
 public:
  explicit Cluster(int64_t lifetime_s = 3600) {
    REQUIRE(authority().Make(NewClusterId(), {"127.0.0.1", "localhost"}, UnixNow()).ok());
    Start(lifetime_s);
  }
  ~Cluster() { Stop(); }

  // `store`: of an etcd; where none is, it stands by.
  void Start(int64_t lifetime_s = 3600, const std::string& store = "") {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.store = store;
    options.http_listen = "0.0.0.0:0";
    options.metrics_listen = "0.0.0.0:0";
    options.state_dir = folder_;
    options.certificate_lifetime_s = lifetime_s;
    auto server = CoordinatorServer::Start(options);
    INFO(server.status().ToString());
    REQUIRE(server.ok());
    server_ = *std::move(server);
    thread_ = std::thread([this] { (void)server_->Run(); });
  }
  void Stop() {
    if (server_ == nullptr) return;
    server_->Stop();
    thread_.join();
    server_.reset();
  }

  AuthorityFolder authority() const { return AuthorityFolder(folder_ + "/trust"); }
  const CoordinatorServer& server() const { return *server_; }
  std::string page_url() const { return ToLoopbackUrl(server_->page_url()); }
  std::string metrics_url() const { return ToLoopbackUrl(server_->metrics_url()); }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

  // A certificate of this cluster's authority, or of another's.
  KeyAndCertificate Certificate(const Identity& identity, int64_t from = 0, int64_t until = 0,
                                const KeyAndCertificate* other = nullptr) const {
    const KeyAndCertificate own = authority().Read().value();
    KeyAndCertificate made;
    made.key = MakePrivateKey().value();
    CertificateContents contents{identity, {}, ""};
    contents.from_unix_s = from == 0 ? UnixNow() - 10 : from;
    contents.until_unix_s = until == 0 ? UnixNow() + 3600 : until;
    made.certificate =
        SignRequest(other == nullptr ? own : *other, MakeRequest(made.key).value(), contents)
            .value();
    return made;
  }

  // A channel with any certificate, unchecked by this end; an empty one: TLS without a certificate.
  std::shared_ptr<grpc::Channel> Dial(const KeyAndCertificate& shown) const {
    const std::string ca = authority().Read()->certificate;
    return DialWith(grpc::SslCredentials({ca, shown.key, shown.certificate}));
  }
  std::shared_ptr<grpc::Channel> DialWith(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    // gRPC calls once more where a handshake was refused after its end, by default a second later.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    return grpc::CreateCustomChannel(address(), credentials, arguments);
  }
  std::shared_ptr<grpc::Channel> Dial(const Identity& identity) const {
    return Dial(Certificate(identity));
  }

  // A fresh token, made by an operator.
  JoinToken Token(const std::vector<std::string>& roles, int uses = 1, int64_t ttl_s = 60) const {
    const std::string ca = authority().Read()->certificate;
    const JoinToken token = NewToken(ReadCertificate(ca)->fingerprint).value();
    v1::CreateTokenRequest request;
    request.set_key_digest(TokenKeyDigest(token).value());
    for (const std::string& role : roles) request.add_roles(role);
    request.set_uses(uses);
    request.set_ttl_s(ttl_s);
    v1::CreateTokenReply reply;
    grpc::ClientContext context;
    const auto stub = v1::Trust::NewStub(Dial({Role::kOperator, "me"}));
    const grpc::Status status = stub->CreateToken(&context, request, &reply);
    INFO(status.error_message());
    REQUIRE(status.ok());
    return token;
  }
  std::string JoinText(const JoinToken& token) const {
    return absl::StrCat(ToText(token), "@", address());
  }

  grpc::Status Revoke(const std::string& role, const std::string& name) const {
    v1::RevokeRequest request;
    request.set_role(role);
    request.set_name(name);
    v1::RevokeReply reply;
    grpc::ClientContext context;
    return v1::Trust::NewStub(Dial({Role::kOperator, "me"}))->Revoke(&context, request, &reply);
  }

  std::vector<v1::AuditEntry> AuditEntries() const {
    grpc::ClientContext context;
    const auto reader =
        v1::Trust::NewStub(Dial({Role::kOperator, "me"}))->Audit(&context, v1::AuditRequest());
    std::vector<v1::AuditEntry> entries;
    v1::AuditEntry entry;
    while (reader->Read(&entry)) entries.push_back(entry);
    REQUIRE(reader->Finish().ok());
    return entries;
  }

 private:
  // Returns the loopback address of what is served at all addresses.
  static std::string ToLoopbackUrl(const std::string& url) {
    return absl::StrCat("https://127.0.0.1", url.substr(url.rfind(':')));
  }

  const std::string folder_ = FreshFolder();
  std::unique_ptr<CoordinatorServer> server_;
  std::thread thread_;
};

// Any call by its path with an empty message. What is admitted and has no end ends at the deadline.
inline Ending Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& path) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  grpc::Slice nothing;
  grpc::ByteBuffer request(&nothing, 1), reply;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, path, request, &queue);
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return EndingFromStatus(status);
}

// The files NAME.pem and NAME.key of a client over https.
inline HttpIdentity WriteIdentity(const std::string& folder, const std::string& name,
                                  const KeyAndCertificate& made) {
  HttpIdentity files{absl::StrCat(folder, "/", name, ".pem"),
                     absl::StrCat(folder, "/", name, ".key")};
  std::ofstream(files.cert_path) << made.certificate;
  std::ofstream(files.key_path) << made.key;
  REQUIRE(chmod(files.key_path.c_str(), 0600) == 0);
  return files;
}

}  // namespace atl

#endif  // ATOLL_TESTS_SECURITY_CLUSTER_H_
