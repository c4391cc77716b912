// Access control of gRPC: mutual TLS for every daemon and the command line, by the same three
// files. Each end presents its certificate, and both must be signed by --tls-ca. Clients check that
// the other end's certificate is a coordinator's and names the host that they dial.
//
// Without them connections are plaintext, and then confined to loopback addresses, unless the
// operator passes --insecure for a network that is private by other means. Debian 12's gRPC (1.51)
// has published flaws that a stranger can use before he is authenticated by anything but TLS: never
// leave a plaintext port open to a network.

#ifndef ATOLL_COMMON_NET_CONTROL_TLS_H_
#define ATOLL_COMMON_NET_CONTROL_TLS_H_

#include <functional>
#include <memory>
#include <string>

#include "common/status.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace atl {

struct JoinToken;

struct TlsOptions {
  std::string ca_path;    // PEM, certificate authority that signs both ends
  std::string cert_path;  // PEM, this end's certificate chain
  std::string key_path;   // PEM, its private key
  bool insecure = false;  // plaintext beyond loopback
};

// `App` is CLI::App; a template keeps CLI11 out of those who do not parse flags.
template <class App>
void AddTlsFlags(App& app, TlsOptions* options) {
  app.add_option("--tls-ca", options->ca_path, "PEM file with the authority that signed both ends");
  app.add_option("--tls-cert", options->cert_path, "PEM file with the certificate of this end");
  app.add_option("--tls-key", options->key_path, "PEM file with the private key of this end");
  app.add_flag("--insecure", options->insecure,
               "allow plaintext beyond loopback; use it on private networks only");
}

// Credentials to dial or listen at `address` ("host:port"); the error says which file or flag is
// wrong.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientCredentials(
    const TlsOptions& options, absl::string_view address);
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ListenCredentials(
    const TlsOptions& options, absl::string_view address);

// Returns credentials to dial the coordinator of a token's cluster, whose authority the token
// names, with the token in place of a certificate.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> JoinCredentials(
    const JoinToken& token, absl::string_view address);

// Returns credentials to listen with these files, which are read again when they change. A client
// must show a certificate, of which `admit` decides, on any thread: OK lets it speak, and its calls
// are authorized one by one.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ListenCredentials(
    const TlsOptions& options, std::function<absl::Status(const std::string& certificate)> admit);

// OK if `address` is "host:port" or "[v6]:port" with a port from 0 to 65535.
absl::Status CheckAddress(absl::string_view address);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CONTROL_TLS_H_
