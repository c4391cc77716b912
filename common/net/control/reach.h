// Why the coordinator does not answer, in words: the address is wrong, nothing listens, TLS is
// wanted, or a certificate was refused.

#ifndef ATOLL_COMMON_NET_CONTROL_REACH_H_
#define ATOLL_COMMON_NET_CONTROL_REACH_H_

#include <string>

namespace atl {

struct Connection {
  std::string address;    // "host:port"
  bool with_tls = false;  // this end uses TLS
};

// What a plain TCP connection to the address, and a look at what answers there, shows.
enum class Reach {
  kUnknownHost,
  kRefused,     // nothing listens
  kNoAnswer,    // no connection within 3 s
  kTlsAnswers,  // something that speaks TLS
  kSilent,      // a connection, and no answer within 1 s
  kOtherAnswers,
};

// Looks; takes at most some seconds.
Reach LookAt(const std::string& address);

// One sentence and what to do. `said`: what the library says of the failure; it is used to
// distinguish refusals of certificates, and never shown.
std::string ExplainReach(const Connection& to, Reach reach, const std::string& said);
// LookAt and ExplainReach.
std::string ExplainConnection(const Connection& to, const std::string& said);

// In a few words, without a look: of one address of several. What is not of the connection itself,
// such as what a standby says, is returned as it is.
std::string Summarized(const std::string& said);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CONTROL_REACH_H_
