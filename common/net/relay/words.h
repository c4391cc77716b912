// Words of relays (relay.h), and endpoints of links that can be reached through one.
//
// An endpoint has one or several ways, joined by commas: "tcp://10.0.0.5:7200" and
// "relay://203.0.113.9:7400/WORD". Links try them in this order until one leads there.
//
// A word says what its holder may do at the relay: wait for connections to a member of one
// incarnation, or connect to it. It is made with the relay's secret, by the coordinator.
//
// "relay://127.0.0.1:0/TEXT" stands for the relay of the process that connects: a member that
// others cannot reach, but that reaches them, waits there. TEXT names the member; its word is made
// with that relay's secret by its owner.

#ifndef ATOLL_COMMON_NET_RELAY_WORDS_H_
#define ATOLL_COMMON_NET_RELAY_WORDS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/ids.h"

namespace atl {

inline constexpr char kOwnRelay[] = "tcp://127.0.0.1:0";

struct LinkWay {
  std::string endpoint;  // "tcp://host:port", of the relay where there is a word
  std::string word;      // empty: this is where the link listens

  bool at_own_relay() const { return endpoint == kOwnRelay; }
  // "host:port" of the relay; "*": our own; empty: none.
  std::string relay() const;
  bool operator==(const LinkWay&) const = default;
};

// The ways of an endpoint; at least one, at most kLinkWaysMax.
inline constexpr size_t kLinkWaysMax = 4;
std::vector<LinkWay> ReadLinkWays(absl::string_view endpoint);
// "relay://203.0.113.9:7400/WORD".
std::string MakeRelayEndpoint(const std::string& address, const std::string& word);
// Human-readable: "tcp://10.0.0.5:7200, relay 203.0.113.9:7400".
std::string DescribeEndpoint(absl::string_view endpoint);

struct RelayWord {
  bool accepts = false;  // it waits for connections; else it connects
  std::string member;    // letters, digits, '-', '_' and '.'; at most 128
  Incarnation incarnation = 0;

  bool operator==(const RelayWord&) const = default;
};

std::string MakeRelayWord(const std::string& secret, const RelayWord& word);
// Returns a word's text, without what the secret proves.
std::string MakeRelayText(const RelayWord& word);
std::string SignRelayText(const std::string& secret, const std::string& text);
// Nothing: it is no word, or was not made with this secret.
std::optional<RelayWord> ReadRelayWord(const std::string& secret, absl::string_view text);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_RELAY_WORDS_H_
