// Files of a web server: what its ranges give.

#ifndef ATOLL_COMMON_OBJECT_STORE_WEB_STORE_H_
#define ATOLL_COMMON_OBJECT_STORE_WEB_STORE_H_

#include <map>
#include <memory>
#include <string>

#include "common/object_store/http.h"
#include "common/object_store/object_store.h"

namespace atl {

struct WebOptions {
  std::string url;  // http(s)://host/path
  std::map<std::string, std::string>
      headers;  // of every request; to other hosts not "authorization"
  RetryOptions retry;
  std::string refusal_hint = {};  // of a refusal: what to do; empty: nothing is known
};

// Stat and Read alone. A name is what follows `url` and a '/', escaped or not, with its query.
// Where the server refuses HEAD, as presigned addresses do, Stat reads the first byte.
std::unique_ptr<ObjectStore> NewWebStore(WebOptions options);

// The address as it is sent: bytes that no address has are escaped, escapes stay.
std::string EscapeUrl(const std::string& url);

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_WEB_STORE_H_
