#include "coordinator/etcd/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/net/control/certificate.h"
#include "common/net/tcp_endpoint.h"
#include "common/status.h"
#include "common/trust/identity_folder.h"
#include "coordinator/etcd/api.grpc.pb.h"

namespace atl {
namespace {

constexpr auto kAttempt = std::chrono::milliseconds(750);
constexpr auto kKeepAlive = std::chrono::milliseconds(500);
constexpr auto kConnect = std::chrono::milliseconds(300);
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr int kReconnectMs = 500;
constexpr int kConnectLimitMs = 3000;
constexpr int kMaxAnswerBytes = 512 << 20;  // a page of the largest values

absl::StatusOr<std::string> ReadFile(absl::string_view flag, const std::string& path) {
  auto text = ReadPemFile(path);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", text.status().message()));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(
    const TlsOptions& tls, const std::vector<std::string>& endpoints) {
  if (tls.ca_path.empty() && tls.cert_path.empty() && tls.key_path.empty()) {
    for (const std::string& endpoint : endpoints) {
      if (tls.insecure || IsLoopbackHost(endpoint.substr(0, endpoint.rfind(':')))) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "--store: ", endpoint,
          ": plaintext is for loopback addresses only; give --store-tls-ca, --store-tls-cert and "
          "--store-tls-key, or --insecure if this network is private by other means"));
    }
    return grpc::InsecureChannelCredentials();
  }
  if (tls.ca_path.empty() || tls.cert_path.empty() != tls.key_path.empty()) {
    return absl::InvalidArgumentError(
        "--store-tls-cert and --store-tls-key must be given together, and with --store-tls-ca");
  }
  grpc::SslCredentialsOptions options;
  ATOLL_ASSIGN_OR_RETURN(options.pem_root_certs, ReadFile("--store-tls-ca", tls.ca_path));
  if (!tls.cert_path.empty()) {
    ATOLL_RETURN_IF_ERROR(CheckKeyFile("--store-tls-key", tls.key_path));
    ATOLL_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadFile("--store-tls-cert", tls.cert_path));
    ATOLL_ASSIGN_OR_RETURN(options.pem_private_key, ReadFile("--store-tls-key", tls.key_path));
  }
  return grpc::SslCredentials(options);
}

// Another endpoint, or the same one later, may do it.
bool IsTransient(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
      return true;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return absl::StrContains(status.error_message(), "too many requests");
    default:
      return false;
  }
}

}  // namespace

struct EtcdClient::Endpoint {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;

  absl::Status Convert(const grpc::Status& status) const {
    const std::string text = absl::StrCat("etcd at ", address, ": ", status.error_message());
    if (IsTransient(status)) return absl::UnavailableError(text);
    if (absl::StrContains(status.error_message(), "database space exceeded")) {
      return absl::ResourceExhaustedError(absl::StrCat(
          text,
          "; compact and defragment it, or raise its --quota-backend-bytes, disarm its alarm by "
          "`etcdctl alarm disarm`, and start the coordinator again"));
    }
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), text);
  }
};

absl::StatusOr<EtcdAddress> ParseEtcdAddress(const std::string& url) {
  constexpr char kUsage[] = ": must be etcd://HOST:PORT[,HOST:PORT...][/PREFIX]";
  absl::string_view rest = url;
  EtcdAddress address;
  if (!absl::ConsumePrefix(&rest, "etcd://")) {
    return absl::InvalidArgumentError(absl::StrCat("--store ", url, kUsage));
  }
  const size_t slash = rest.find('/');
  if (slash != absl::string_view::npos) {
    address.prefix = std::string(rest.substr(slash + 1));
    rest = rest.substr(0, slash);
    if (address.prefix.empty() || absl::StrContains(address.prefix, "/")) {
      return absl::InvalidArgumentError(absl::StrCat("--store ", url, kUsage));
    }
  }
  address.endpoints = absl::StrSplit(rest, ',');
  for (const std::string& endpoint : address.endpoints) {
    ATOLL_RETURN_IF_ERROR(Annotate(CheckAddress(endpoint), absl::StrCat("--store ", url)));
  }
  return address;
}

EtcdClient::EtcdClient() = default;
EtcdClient::~EtcdClient() = default;

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Open(std::vector<std::string> endpoints,
                                                             const TlsOptions& tls) {
  ATOLL_ASSIGN_OR_RETURN(const auto credentials, Credentials(tls, endpoints));
  auto client = std::unique_ptr<EtcdClient>(new EtcdClient);
  for (std::string& address : endpoints) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs / 5);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectLimitMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMs);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(address, credentials, arguments);
    client->endpoints_.push_back(std::make_unique<Endpoint>(
        Endpoint{std::move(address), channel, etcdserverpb::KV::NewStub(channel),
                 etcdserverpb::Lease::NewStub(channel)}));
  }
  return client;
}

template <class Call>
absl::Status EtcdClient::Attempt(const Call& call, const GoOn& go_on) {
  for (;;) {
    const size_t index = current_;
    Endpoint& endpoint = *endpoints_[index];
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAttempt);
    // A connection makes progress only while one waits on it: a call would fail at once.
    const bool connected =
        endpoint.channel->WaitForConnected(std::chrono::system_clock::now() + kConnect);
    const grpc::Status status =
        connected ? call(endpoint, &context)
                  : grpc::Status(grpc::StatusCode::UNAVAILABLE, "does not take the connection");
    if (status.ok()) return absl::OkStatus();
    if (!IsTransient(status)) return endpoint.Convert(status);
    current_ = (index + 1) % endpoints_.size();
    if (!go_on()) return endpoint.Convert(status);
    std::this_thread::sleep_for(kPause);
  }
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(
    const etcdserverpb::RangeRequest& request, const GoOn& go_on) {
  etcdserverpb::RangeResponse reply;
  ATOLL_RETURN_IF_ERROR(Attempt(
      [&](Endpoint& endpoint, grpc::ClientContext* context) {
        return endpoint.kv->Range(context, request, &reply);
      },
      go_on));
  return reply;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Txn(const etcdserverpb::TxnRequest& request,
                                                          const GoOn& go_on) {
  etcdserverpb::TxnResponse reply;
  ATOLL_RETURN_IF_ERROR(Attempt(
      [&](Endpoint& endpoint, grpc::ClientContext* context) {
        return endpoint.kv->Txn(context, request, &reply);
      },
      go_on));
  return reply;
}

absl::StatusOr<int64_t> EtcdClient::GrantLease(int64_t ttl_s) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(ttl_s);
  etcdserverpb::LeaseGrantResponse reply;
  ATOLL_RETURN_IF_ERROR(Attempt(
      [&](Endpoint& endpoint, grpc::ClientContext* context) {
        return endpoint.lease->LeaseGrant(context, request, &reply);
      },
      [] { return false; }));
  return reply.id();
}

absl::Status EtcdClient::RevokeLease(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse reply;
  return Attempt(
      [&](Endpoint& endpoint, grpc::ClientContext* context) {
        return endpoint.lease->LeaseRevoke(context, request, &reply);
      },
      [] { return false; });
}

absl::Status EtcdClient::KeepAlive(int64_t lease) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse reply;
  ATOLL_RETURN_IF_ERROR(Attempt(
      [&](Endpoint& endpoint, grpc::ClientContext* context) {
        context->set_deadline(std::chrono::system_clock::now() + kKeepAlive);
        const auto stream = endpoint.lease->LeaseKeepAlive(context);
        const bool answered = stream->Write(request) && stream->Read(&reply);
        if (answered) context->TryCancel();  // one answer is all; etcd ends no stream by itself
        const grpc::Status status = stream->Finish();
        return answered ? grpc::Status::OK : status;
      },
      [] { return false; }));
  if (reply.ttl() > 0) return absl::OkStatus();
  return absl::FailedPreconditionError("the lease has expired");
}

}  // namespace atl
