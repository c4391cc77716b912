#include "common/http/http_get.h"

#include <httplib.h>

namespace atl {
namespace {

constexpr int kTimeoutS = 20;

HttpAnswer Send(const std::string& url, const std::map<std::string, std::string>& headers,
                bool post) {
  const size_t path = url.find('/', url.find("://") + 3);
  httplib::Client client(url.substr(0, path));
  client.set_read_timeout(kTimeoutS);
  httplib::Headers sent;
  for (const auto& [name, value] : headers) sent.emplace(name, value);
  const std::string target = path == std::string::npos ? "/" : url.substr(path);
  const httplib::Result result =
      post ? client.Post(target, sent, "", "text/plain") : client.Get(target, sent);
  if (!result) return {};
  return {result->status, result->get_header_value("Content-Type"), result->body};
}

}  // namespace

HttpAnswer HttpGet(const std::string& url, const std::map<std::string, std::string>& headers) {
  return Send(url, headers, false);
}
HttpAnswer HttpPost(const std::string& url, const std::map<std::string, std::string>& headers) {
  return Send(url, headers, true);
}

}  // namespace atl
