// Why the coordinator does not answer, in words: the address is wrong, nothing listens, TLS is
// wanted, or a certificate was refused.

#ifndef ATOLL_COMMON_NET_CONTROL_REACHABILITY_H_
#define ATOLL_COMMON_NET_CONTROL_REACHABILITY_H_

#include <string>

namespace atl {

struct Connection {
  std::string address;    // "host:port"
  bool with_tls = false;  // this end uses TLS
};

// Result of a probe: a plain TCP connection to the address, and what answers there.
enum class Reachability {
  kUnknownHost,
  kRefused,     // nothing listens
  kNoAnswer,    // no connection within 3 s
  kTlsAnswers,  // something that speaks TLS
  kSilent,      // a connection, and no answer within 1 s
  kOtherAnswers,
};

// Probes the address; takes at most some seconds.
Reachability ProbeReachability(const std::string& address);

// One sentence and what to do. `said`: what the library says of the failure; it is used to
// distinguish refusals of certificates, and never shown.
std::string ExplainReachability(const Connection& to, Reachability reachability,
                                const std::string& said);
// ProbeReachability and ExplainReachability.
std::string ExplainConnection(const Connection& to, const std::string& said);

// Summarizes in a few words, without a probe, the failure of one address of several. An error that
// is not of the connection itself, such as what a standby replies, is returned as it is.
std::string SummarizeFailure(const std::string& said);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CONTROL_REACHABILITY_H_
