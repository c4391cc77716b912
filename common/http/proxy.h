// The HTTP proxy that a network may want for every connection that leaves it: https_proxy, else
// http_proxy, with no_proxy for what is reached directly.

#ifndef ATOLL_COMMON_HTTP_PROXY_H_
#define ATOLL_COMMON_HTTP_PROXY_H_

#include <string>

#include "absl/strings/string_view.h"

namespace atl {

// Makes all libraries of this process read the same: https_proxy becomes the URL that counts (its
// own, that of HTTPS_PROXY, or http_proxy's), with a scheme, and no_proxy what it or NO_PROXY is,
// and this machine. Before threads exist.
void PrepareProxyVariables();

// Returns the proxy's URL for a host, in brackets or without; empty: it is reached directly.
// no_proxy is a list, with commas, of domains (names and all that end with them behind a point), of
// addresses and of networks (10.0.0.0/8); * is all hosts. After PrepareProxyVariables.
std::string FindProxy(absl::string_view host);

// Returns a URL without the name and password in it, for messages.
std::string WithoutPassword(absl::string_view url);

}  // namespace atl

#endif  // ATOLL_COMMON_HTTP_PROXY_H_
