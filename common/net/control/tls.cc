#include "common/net/control/tls.h"

#include <grpc/support/log.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "common/files.h"
#include "common/logging.h"
#include "common/net/control/certificate.h"
#include "common/net/tcp_endpoint.h"
#include "common/trust/pki.h"
#include "common/trust/token.h"

namespace atl {
namespace {

constexpr size_t kMaxPemBytes = 1 << 20;

// Routes gRPC's own messages to this program's log at debug level; $GRPC_VERBOSITY leaves it to
// gRPC.
void RouteGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function([](gpr_log_func_args* line) { LogDebug("grpc", line->message); });
}

struct Pem {
  std::string ca, cert, key;
};

absl::StatusOr<std::string> ReadPem(absl::string_view flag, const std::string& path) {
  const auto bytes = RealFiles().Read(path, kMaxPemBytes);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", bytes.status().message()));
  }
  std::string text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  if (!absl::StrContains(text, "-----BEGIN ")) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": is not a PEM file"));
  }
  return text;
}

absl::StatusOr<Pem> ReadAll(const TlsOptions& options) {
  if (options.ca_path.empty() || options.cert_path.empty() || options.key_path.empty()) {
    return absl::InvalidArgumentError("--tls-ca, --tls-cert and --tls-key must be given together");
  }
  Pem pem;
  ATOLL_ASSIGN_OR_RETURN(pem.ca, ReadPem("--tls-ca", options.ca_path));
  ATOLL_ASSIGN_OR_RETURN(pem.cert, ReadPem("--tls-cert", options.cert_path));
  ATOLL_RETURN_IF_ERROR(CheckKeyFile("--tls-key", options.key_path));
  ATOLL_ASSIGN_OR_RETURN(pem.key, ReadPem("--tls-key", options.key_path));
  ATOLL_ASSIGN_OR_RETURN(const std::string warning,
                         CheckCertificate(absl::StrCat("--tls-cert ", options.cert_path), pem.cert,
                                          pem.key, absl::ToUnixSeconds(absl::Now())));
  if (!warning.empty()) LogWarning("tls", warning);
  return pem;
}

bool Plaintext(const TlsOptions& options) {
  return options.ca_path.empty() && options.cert_path.empty() && options.key_path.empty();
}

absl::string_view HostFromAddress(absl::string_view address) {
  return address.substr(0, address.rfind(':'));
}

absl::Status CheckPlaintext(const TlsOptions& options, absl::string_view address) {
  const absl::string_view host = HostFromAddress(address);
  if (options.insecure || IsLoopbackHost(host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(address,
                   ": plaintext is for loopback addresses only; join by a token (--join; on the "
                   "coordinator's machine `atoll init`), give --tls-ca, --tls-cert and --tls-key, "
                   "or --insecure if this network is private by other means"));
}

using grpc::experimental::ExternalCertificateVerifier;
using CheckRequest = grpc::experimental::TlsCustomVerificationCheckRequest;
constexpr unsigned kReadAgainSeconds = 1;

// Calls `check` in the handshake.
class Verifier : public ExternalCertificateVerifier {
 public:
  using Check = std::function<absl::Status(const CheckRequest&)>;
  explicit Verifier(Check check) : check_(std::move(check)) {}

  bool Verify(CheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    const absl::Status checked = check_(*request);
    if (!checked.ok()) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(checked.message()));
    }
    return true;
  }
  void Cancel(CheckRequest*) override {}

 private:
  const Check check_;
};

std::string Text(grpc::string_ref text) { return std::string(text.data(), text.size()); }

// No worker's certificate makes a coordinator, whatever host it names.
absl::Status CheckCoordinator(const std::string& pem, std::string host) {
  ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(pem));
  if (!facts.identity.ok() || facts.identity->role != Role::kCoordinator) {
    return absl::UnauthenticatedError("Role Check failed: it is not a coordinator's");
  }
  if (!host.empty() && host.front() == '[') host = host.substr(1, host.size() - 2);
  if (NamesHost(pem, host)) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("Hostname Verification Check failed: it does not name ", host));
}

std::shared_ptr<grpc::ChannelCredentials> DialCredentials(const std::string& ca,
                                                          const std::string& key,
                                                          const std::string& cert,
                                                          Verifier::Check check) {
  namespace ge = grpc::experimental;
  ge::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<ge::StaticDataCertificateProvider>(
      ca, std::vector<ge::IdentityKeyCertPair>{{key, cert}}));
  options.watch_identity_key_cert_pairs();
  if (!ca.empty()) options.watch_root_certs();
  options.set_verify_server_certs(!ca.empty());
  options.set_check_call_host(false);  // the check does it
  options.set_certificate_verifier(ExternalCertificateVerifier::Create<Verifier>(std::move(check)));
  return ge::TlsCredentials(options);
}

}  // namespace

absl::Status CheckAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon != absl::string_view::npos && colon > 0 &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 && port <= 65535) {
    const absl::string_view host = address.substr(0, colon);
    if (!absl::StrContains(host, ":") || (host.front() == '[' && host.back() == ']')) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("address \"", address, "\": must be HOST:PORT or [IPV6]:PORT"));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientCredentials(
    const TlsOptions& options, absl::string_view address) {
  RouteGrpcLog();
  ATOLL_RETURN_IF_ERROR(CheckAddress(address));
  if (Plaintext(options)) {
    ATOLL_RETURN_IF_ERROR(CheckPlaintext(options, address));
    return grpc::InsecureChannelCredentials();
  }
  ATOLL_ASSIGN_OR_RETURN(const Pem pem, ReadAll(options));
  return DialCredentials(pem.ca, pem.key, pem.cert, [](const CheckRequest& request) {
    return CheckCoordinator(Text(request.peer_cert()), Text(request.target_name()));
  });
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> JoinCredentials(
    const JoinToken& token, absl::string_view address) {
  RouteGrpcLog();
  ATOLL_RETURN_IF_ERROR(CheckAddress(address));
  ATOLL_ASSIGN_OR_RETURN(const KeyAndCertificate own, TokenCertificate(token));
  // The authority comes with the coordinator's certificate, and the token says which one it is.
  const auto check = [fingerprint = token.fingerprint](const CheckRequest& request) {
    const std::string cert = Text(request.peer_cert());
    const auto authority = FindCertificate(Text(request.peer_cert_full_chain()), fingerprint);
    if (!authority || !IsSignedBy(cert, *authority)) {
      return absl::UnauthenticatedError(
          "certificate verify failed: the coordinator is not of the token's cluster");
    }
    return CheckCoordinator(cert, Text(request.target_name()));
  };
  return DialCredentials("", own.key, own.certificate, check);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ListenCredentials(
    const TlsOptions& options, std::function<absl::Status(const std::string&)> admit) {
  RouteGrpcLog();
  ATOLL_RETURN_IF_ERROR(ReadAll(options).status());
  namespace ge = grpc::experimental;
  ge::TlsServerCredentialsOptions tls(std::make_shared<ge::FileWatcherCertificateProvider>(
      options.key_path, options.cert_path, kReadAgainSeconds));
  tls.watch_identity_key_cert_pairs();
  tls.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  tls.set_check_call_host(false);
  tls.set_certificate_verifier(ExternalCertificateVerifier::Create<Verifier>(
      [admit = std::move(admit)](const CheckRequest& request) {
        return admit(Text(request.peer_cert()));
      }));
  return ge::TlsServerCredentials(tls);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ListenCredentials(
    const TlsOptions& options, absl::string_view address) {
  RouteGrpcLog();
  ATOLL_RETURN_IF_ERROR(CheckAddress(address));
  if (Plaintext(options)) {
    ATOLL_RETURN_IF_ERROR(CheckPlaintext(options, address));
    return grpc::InsecureServerCredentials();
  }
  ATOLL_ASSIGN_OR_RETURN(const Pem pem, ReadAll(options));
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = pem.ca;
  ssl.pem_key_cert_pairs.push_back({pem.key, pem.cert});
  return grpc::SslServerCredentials(ssl);
}

}  // namespace atl
