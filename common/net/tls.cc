#include "common/net/tls.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/logging.h"
#include "common/net/certificate.h"
#include "common/net/tcp_endpoint.h"

namespace atl {
namespace {

constexpr size_t kMaxPemBytes = 1 << 20;

struct Pem {
  std::string ca, cert, key;
};

absl::StatusOr<std::string> ReadPem(absl::string_view flag, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": cannot be read"));
  }
  std::string text(kMaxPemBytes, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
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

absl::string_view HostOf(absl::string_view address) {
  return address.substr(0, address.rfind(':'));
}

absl::Status CheckPlaintext(const TlsOptions& options, absl::string_view address) {
  const absl::string_view host = HostOf(address);
  if (options.insecure || IsLoopbackHost(host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(address,
                   ": plaintext is for loopback addresses only; give --tls-ca, --tls-cert and "
                   "--tls-key, or --insecure if this network is private by other means"));
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
  ATOLL_RETURN_IF_ERROR(CheckAddress(address));
  if (Plaintext(options)) {
    ATOLL_RETURN_IF_ERROR(CheckPlaintext(options, address));
    return grpc::InsecureChannelCredentials();
  }
  ATOLL_ASSIGN_OR_RETURN(const Pem pem, ReadAll(options));
  return grpc::SslCredentials(
      {.pem_root_certs = pem.ca, .pem_private_key = pem.key, .pem_cert_chain = pem.cert});
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ListenCredentials(
    const TlsOptions& options, absl::string_view address) {
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
