// A small HTTP/1.1 server for monitors and browsers; cpp-httplib parses requests. They are answered
// on threads of its own; a handler may wait, for a bounded time. Up to 128 connections are open at
// once, 64 of one address; a further one ends the one that has waited longest for its request. A
// request has 10 s, 32 KiB of headers and 1 MiB of body, so that clients that send nothing, half of
// a request, or one without end delay no other.
//
// Loopback addresses are served in plaintext. Other addresses are served over TLS with the daemon's
// certificate, which is read again for every connection, and clients present one that --tls-ca
// signed; or in plaintext with --insecure.
// Requests through another host's name are refused on loopback (DNS rebinding).

#ifndef ATOLL_COMMON_HTTP_HTTP_SERVER_H_
#define ATOLL_COMMON_HTTP_HTTP_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/net/control/tls.h"
#include "common/status.h"

namespace atl {

struct HttpOptions {
  std::string flag;    // that names `listen`, for errors: "--metrics-listen"
  std::string listen;  // "HOST:PORT"; port 0: any
  TlsOptions tls;
  int threads = 4;  // requests that handlers answer at once
  int max_streams = 0;
  // Paths of health checks: answered at once, whatever other handlers wait for, and over TLS also
  // to clients without a certificate; they get nothing else.
  std::vector<std::string> open_paths;
};

struct HttpRequest {
  std::string method;
  std::string path;  // decoded, without the query
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string from;              // the client's address
  std::string peer_certificate;  // PEM, signed by --tls-ca; empty: plaintext

  std::string Query(const std::string& name) const;   // empty: not given
  std::string Header(const std::string& name) const;  // likewise
};

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  bool cacheable = false;
  std::string location;  // of a redirection (status 307); empty: none
  // A stream of events instead of a body: fills `chunk` with what is to be sent next, waiting for
  // at most some seconds (an empty one only checks the connection); false at the end.
  std::function<bool(std::string* chunk)> next;
};

// "HOST:PORT" that other machines cannot reach.
bool IsLoopbackAddress(const std::string& listen);

class HttpServer {
 public:
  using Handler = std::function<HttpReply(const HttpRequest&)>;

  // Binds, and answers every request by `handler`, which is called on several threads. The error
  // names the flag.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options, Handler handler);
  // Waits for handlers under way. What streams wait for must have ended.
  ~HttpServer();

  int port() const;
  std::string url() const;  // "http://127.0.0.1:7080"

  // Returns what a plaintext server sends in answer to these bytes, which may be anything, without
  // a connection. For tests of what parses requests.
  static std::string AnswerBytes(HttpOptions options, Handler handler, absl::string_view bytes);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_HTTP_HTTP_SERVER_H_
