#include "common/net/name_addresses.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/net/tcp_probe.h"

namespace atl {

struct NameAddresses::State {
  struct Name {
    std::vector<std::string> endpoints;
    Instant looked_up{};
  };
  std::mutex mutex;
  std::map<std::string, Name> names;  // guarded by mutex
  int lookups = 0;                    // guarded by mutex
};

namespace {

// Returns whether "host:port" has neither an address, in brackets or of digits and points, nor "*",
// nor a source.
bool IsName(absl::string_view address) {
  return address.substr(0, address.rfind(':')).find_first_not_of("0123456789.") !=
             absl::string_view::npos &&
         address.find_first_of("*;[") == absl::string_view::npos;
}

std::vector<std::string> LookUp(const std::string& address) {
  std::vector<std::string> endpoints;
  const char* error = "";
  WithSocket(address, 0, &error, [&](int, const addrinfo& at) {
    std::array<char, NI_MAXHOST> host;
    std::array<char, NI_MAXSERV> port;
    if (getnameinfo(at.ai_addr, at.ai_addrlen, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
      return false;
    }
    std::string found = at.ai_family == AF_INET6
                            ? absl::StrCat("tcp://[", host.data(), "]:", port.data())
                            : absl::StrCat("tcp://", host.data(), ":", port.data());
    if (std::find(endpoints.begin(), endpoints.end(), found) == endpoints.end()) {
      endpoints.push_back(std::move(found));
    }
    return false;
  });
  if (endpoints.size() < 2) endpoints.clear();
  return endpoints;
}

}  // namespace

std::shared_ptr<NameAddresses::State> NameAddresses::MakeState() {
  return std::make_shared<State>();
}

std::vector<std::string> NameAddresses::Find(const std::string& endpoint, Instant now) {
  absl::string_view address = endpoint;
  if (!absl::ConsumePrefix(&address, "tcp://") || !IsName(address)) return {};
  const std::lock_guard lock(state_->mutex);
  const auto known = state_->names.find(endpoint);
  if (known != state_->names.end() && now < known->second.looked_up + kKept) {
    return known->second.endpoints;
  }
  if (known == state_->names.end() && state_->names.size() >= kNamesMax) state_->names.clear();
  State::Name& name = state_->names[endpoint];
  if (state_->lookups >= kLookupsMax) return name.endpoints;
  name.looked_up = now;
  try {
    std::thread([state = state_, endpoint, host_and_port = std::string(address)] {
      std::vector<std::string> endpoints = LookUp(host_and_port);
      const std::lock_guard locked(state->mutex);
      --state->lookups;
      state->names[endpoint].endpoints = std::move(endpoints);
    }).detach();
    ++state_->lookups;
  } catch (const std::system_error&) {  // no thread is left; later
  }
  return name.endpoints;
}

}  // namespace atl
