#include "common/http/testing/http_get.h"

#include <httplib.h>

namespace atl {
namespace {

constexpr int kTimeoutS = 20;

HttpAnswer Send(const std::string& url, const std::map<std::string, std::string>& headers,
                const HttpIdentity& identity, bool post) {
  const size_t path = url.find('/', url.find("://") + 3);
  httplib::Client client(url.substr(0, path), identity.cert_path, identity.key_path);
  client.enable_server_certificate_verification(false);
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

HttpAnswer HttpGet(const std::string& url, const std::map<std::string, std::string>& headers,
                   const HttpIdentity& identity) {
  return Send(url, headers, identity, false);
}
HttpAnswer HttpPost(const std::string& url, const std::map<std::string, std::string>& headers,
                    const HttpIdentity& identity) {
  return Send(url, headers, identity, true);
}

}  // namespace atl
