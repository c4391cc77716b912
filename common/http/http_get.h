// One HTTP request, for tests.

#ifndef ATOLL_COMMON_HTTP_HTTP_GET_H_
#define ATOLL_COMMON_HTTP_HTTP_GET_H_

#include <map>
#include <string>

namespace atl {

struct HttpAnswer {
  int status = 0;  // 0: no answer
  std::string type;
  std::string body;
};

// `url`: "http://HOST:PORT/PATH". A body makes it a POST. Waits for at most 20 s.
HttpAnswer HttpGet(const std::string& url, const std::map<std::string, std::string>& headers = {});
HttpAnswer HttpPost(const std::string& url, const std::map<std::string, std::string>& headers = {});

}  // namespace atl

#endif  // ATOLL_COMMON_HTTP_HTTP_GET_H_
