// One HTTP request, for tests.

#ifndef ATOLL_COMMON_HTTP_TESTING_HTTP_GET_H_
#define ATOLL_COMMON_HTTP_TESTING_HTTP_GET_H_

#include <map>
#include <string>

namespace atl {

struct HttpAnswer {
  int status = 0;  // 0: no answer
  std::string type;
  std::string body;
};

// PEM files that the client shows over https; it believes every server.
struct HttpIdentity {
  std::string cert_path, key_path;
};

// `url`: "http://HOST:PORT/PATH". A body makes it a POST. Waits for at most 20 s.
HttpAnswer HttpGet(const std::string& url, const std::map<std::string, std::string>& headers = {},
                   const HttpIdentity& identity = {});
HttpAnswer HttpPost(const std::string& url, const std::map<std::string, std::string>& headers = {},
                    const HttpIdentity& identity = {});

}  // namespace atl

#endif  // ATOLL_COMMON_HTTP_TESTING_HTTP_GET_H_
