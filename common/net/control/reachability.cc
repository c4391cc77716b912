#include "common/net/control/reachability.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/http/proxy.h"
#include "common/net/tcp_probe.h"

namespace atl {
namespace {

constexpr int kConnectMs = 3000;
constexpr int kHelloMs = 1000;

bool Wait(int fd, short events, int timeout_ms) {
  pollfd waiting{fd, events, 0};
  return poll(&waiting, 1, timeout_ms) == 1;
}

// How the peer answers a TLS hello, whatever it then thinks of us.
Reachability AnswerToHello(int fd) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls(SSL_new(context.get()), SSL_free);
  SSL_set_fd(tls.get(), fd);
  for (;;) {
    ERR_clear_error();
    const int result = SSL_connect(tls.get());
    if (result == 1) return Reachability::kTlsAnswers;
    const int error = SSL_get_error(tls.get(), result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
      if (!Wait(fd, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, kHelloMs)) {
        return Reachability::kSilent;
      }
      continue;
    }
    // An alert, or a certificate that we would not take, is TLS; a plaintext answer is none.
    const bool is_tls = error == SSL_ERROR_SSL &&
                        ERR_GET_REASON(ERR_peek_error()) != SSL_R_WRONG_VERSION_NUMBER &&
                        ERR_GET_REASON(ERR_peek_error()) != SSL_R_HTTP_REQUEST;
    return is_tls ? Reachability::kTlsAnswers : Reachability::kOtherAnswers;
  }
}

Reachability ProbeSocketAddress(int fd, const addrinfo& at) {
  if (connect(fd, at.ai_addr, at.ai_addrlen) != 0) {
    if (errno == ECONNREFUSED) return Reachability::kRefused;
    if (errno != EINPROGRESS || !Wait(fd, POLLOUT, kConnectMs)) return Reachability::kNoAnswer;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == ECONNREFUSED) return Reachability::kRefused;
    if (error != 0) return Reachability::kNoAnswer;
  }
  return AnswerToHello(fd);
}

// Explains what a failed handshake reports about certificates.
std::string WhyRefused(const std::string& said) {
  if (absl::StrContains(said, "Hostname Verification") || absl::StrContains(said, "hostname") ||
      absl::StrContains(said, "Peer name")) {
    return "its certificate does not name the host of --coordinator; dial it by a name that the "
           "certificate has";
  }
  if (absl::StrContains(said, "Role Check failed")) {
    return "its certificate is not a coordinator's: a program with a member's or user's "
           "certificate listens there";
  }
  if (absl::StrContains(said, "certificate has expired") || absl::StrContains(said, "expired")) {
    return "a certificate has expired";
  }
  if (absl::StrContains(said, "CERTIFICATE_VERIFY_FAILED") ||
      absl::StrContains(said, "certificate verify failed") ||
      absl::StrContains(said, "unknown ca")) {
    return "its certificate is not signed by the authority of --tls-ca";
  }
  return "one end refuses the other's certificate: both must be signed by the authority of "
         "--tls-ca, "
         "be in force, and the coordinator's must name the host of --coordinator";
}

}  // namespace

Reachability ProbeReachability(const std::string& address) {
  Reachability reachability = Reachability::kUnknownHost;
  const char* error = "";
  WithSocket(address, SOCK_NONBLOCK, &error, [&](int fd, const addrinfo& at) {
    const Reachability one = ProbeSocketAddress(fd, at);
    const bool first = reachability == Reachability::kUnknownHost;
    if (first || one != Reachability::kNoAnswer) reachability = one;
    return one == Reachability::kTlsAnswers || one == Reachability::kOtherAnswers ||
           one == Reachability::kSilent;
  });
  return reachability;
}

std::string ExplainReachability(const Connection& to, Reachability reachability,
                                const std::string& said) {
  const std::string& address = to.address;
  switch (reachability) {
    case Reachability::kUnknownHost:
      return absl::StrCat("--coordinator ", address,
                          ": no host of that name is known; is the address right?");
    case Reachability::kRefused:
      return absl::StrCat("nothing listens at ", address,
                          ": is the coordinator running, and is --coordinator right?");
    case Reachability::kNoAnswer:
      return absl::StrCat(address, " cannot be reached: no connection within ", kConnectMs / 1000,
                          " s; is --coordinator right, and does a firewall stand between?");
    case Reachability::kTlsAnswers:
      if (!to.with_tls) {
        return absl::StrCat(
            "the coordinator at ", address,
            " requires TLS: give --tls-ca, --tls-cert and --tls-key, or join by a token");
      }
      return absl::StrCat("TLS with the coordinator at ", address, " failed: ", WhyRefused(said));
    case Reachability::kSilent:
      return absl::StrCat(
          address,
          " takes connections and does not answer: the process that listens there is too busy or "
          "stopped, or is no coordinator");
    case Reachability::kOtherAnswers:
      break;
  }
  if (to.with_tls) {
    return absl::StrCat(
        "what listens at ", address,
        " does not speak TLS: leave out --tls-ca, --tls-cert and --tls-key, or dial "
        "the coordinator's own port");
  }
  return absl::StrCat("what listens at ", address,
                      " does not answer as a coordinator: it is busy, ending, or something else; "
                      "is --coordinator right?");
}

std::string ExplainConnection(const Connection& to, const std::string& said) {
  const std::string proxy = FindProxy(to.address.substr(0, to.address.rfind(':')));
  if (!proxy.empty()) {
    return absl::StrCat(
        "the coordinator at ", to.address, " does not answer through the proxy ",
        WithoutPassword(proxy),
        " (https_proxy): does it allow CONNECT to that host and port? Hosts that are "
        "reached directly belong in no_proxy");
  }
  return ExplainReachability(to, ProbeReachability(to.address), said);
}

std::string SummarizeFailure(const std::string& said) {
  if (said.empty()) return "does not answer";
  if (absl::StrContains(said, "Connection refused")) return "nothing listens there";
  if (absl::StrContains(said, "handshake failed") || absl::StrContains(said, "SSL_ERROR")) {
    return absl::StrCat("TLS failed: ", WhyRefused(said));
  }
  return said;
}

}  // namespace atl
