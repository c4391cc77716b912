#include "common/http/http_server.h"

#include <httplib.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <semaphore>
#include <system_error>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/http/request_stream.h"
#include "common/logging.h"
#include "common/net/listener.h"
#include "common/net/tcp_endpoint.h"

namespace atl {
namespace {

constexpr auto kHandshakeLimit = std::chrono::seconds(5);
constexpr auto kRequestLimit = std::chrono::seconds(10);  // to send all of one
constexpr auto kKeepAlive = std::chrono::seconds(2);
constexpr int kRequestsAConnection = 1000;
// A thread each, and half of them for one address.
constexpr ConnectionLimits kConnections{128, 64};
constexpr auto kNoteInterval = std::chrono::seconds(10);
// Smaller bodies fit into one packet as they are.
constexpr size_t kMinCompressedBytes = 1400;

struct Address {
  std::string host;  // without brackets
  int port = 0;
};

// REQUIRES: CheckAddress(text) is OK.
Address ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  Address address{text.substr(0, colon), 0};
  (void)absl::SimpleAtoi(text.substr(colon + 1), &address.port);
  if (address.host.front() == '[') address.host = address.host.substr(1, address.host.size() - 2);
  return address;
}

// Parses requests and writes answers; it neither listens nor accepts.
class Parser : public httplib::Server {
 public:
  // httplib writes bodies as long as it has a socket to listen at; any value will do.
  Parser() { svr_sock_ = 0; }
  // Answers one request; returns whether another may follow.
  bool Answer(httplib::Stream& stream, SSL* ssl, bool last) {
    bool closed = false;
    return process_request(stream, last, closed,
                           [&](httplib::Request& request) { request.ssl = ssl; }) &&
           !last && !closed;
  }
};

std::string PeerCertificate(const SSL* ssl) {
  X509* certificate = SSL_get1_peer_certificate(ssl);
  if (certificate == nullptr) return "";
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bio, certificate);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string pem(data, static_cast<size_t>(size));
  BIO_free(bio);
  X509_free(certificate);
  return pem;
}

HttpRequest ToRequest(const httplib::Request& from) {
  HttpRequest request;
  request.method = from.method;
  request.path = from.path;
  // `from.params` has a form's body, too: what curl sends of a file unless a type is given.
  httplib::Params query;
  if (const size_t mark = from.target.find('?'); mark != std::string::npos) {
    httplib::detail::parse_query_text(from.target.substr(mark + 1), query);
  }
  for (const auto& [name, value] : query) request.query[name] = value;
  for (const auto& [name, value] : from.headers) {
    request.headers[absl::AsciiStrToLower(name)] = value;
  }
  request.body = from.body;
  request.from = from.remote_addr;
  if (from.ssl != nullptr) request.peer_certificate = PeerCertificate(from.ssl);
  return request;
}

// By the fastest level: 100 KB take about 2 ms. Empty: not compressed.
std::string Gzip(const std::string& body) {
  constexpr int kGzipWindow = 15 + 16, kMemory = 8;
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipWindow, kMemory, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    return "";
  }
  std::string out(deflateBound(&stream, body.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(body.data()));
  stream.avail_in = static_cast<uInt>(body.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const bool whole = deflate(&stream, Z_FINISH) == Z_STREAM_END;
  out.resize(whole ? stream.total_out : 0);
  deflateEnd(&stream);
  return out;
}

bool CanCompress(absl::string_view type) {
  return absl::StartsWith(type, "text/") || absl::StrContains(type, "json") ||
         absl::StrContains(type, "javascript") || absl::StrContains(type, "svg");
}

// A renewed certificate serves the next connection.
int ReadCertificateAgain(SSL* ssl, void* options) {
  const auto* tls = static_cast<const TlsOptions*>(options);
  return SSL_use_certificate_chain_file(ssl, tls->cert_path.c_str()) == 1 &&
                 SSL_use_PrivateKey_file(ssl, tls->key_path.c_str(), SSL_FILETYPE_PEM) == 1
             ? 1
             : 0;
}

// `tls` outlives the server.
bool SetUp(SSL_CTX& context, const TlsOptions* tls, bool needs_certificate) {
  SSL_CTX_set_min_proto_version(&context, TLS1_2_VERSION);
  SSL_CTX_set_verify(&context,
                     SSL_VERIFY_PEER | (needs_certificate ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                     nullptr);
  SSL_CTX_set_cert_cb(&context, ReadCertificateAgain, const_cast<TlsOptions*>(tls));
  return SSL_CTX_use_certificate_chain_file(&context, tls->cert_path.c_str()) == 1 &&
         SSL_CTX_use_PrivateKey_file(&context, tls->key_path.c_str(), SSL_FILETYPE_PEM) == 1 &&
         SSL_CTX_load_verify_locations(&context, tls->ca_path.c_str(), nullptr) == 1;
}

}  // namespace

std::string HttpRequest::Query(const std::string& name) const {
  const auto found = query.find(name);
  return found == query.end() ? "" : found->second;
}

std::string HttpRequest::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

class HttpServer::Impl {
 public:
  Impl(HttpOptions options, Handler handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        address_(ParseAddress(options_.listen)),
        loopback_(IsLoopbackHost(address_.host)),
        answering_(options_.threads) {}

  absl::Status Listen() {
    const TlsOptions& tls = options_.tls;
    with_tls_ = !loopback_ && !tls.cert_path.empty() && !tls.insecure;
    if (with_tls_) {
      context_.reset(SSL_CTX_new(TLS_server_method()));
      if (context_ == nullptr || !SetUp(*context_, &tls, options_.open_paths.empty())) {
        return absl::InvalidArgumentError(
            absl::StrCat(options_.flag, ": --tls-ca, --tls-cert or --tls-key cannot be used"));
      }
    }
    SetOptions(parser_);
    ATOLL_ASSIGN_OR_RETURN(
        listener_, Listener::Bind(absl::StrCat(options_.flag, " ", options_.listen), address_.host,
                                  address_.port, kConnections));
    listener_->Start([this](int connection, const std::string& peer) { Begin(connection, peer); },
                     [this](const std::string& peer) { return EndSlowest(peer); });
    return absl::OkStatus();
  }

  ~Impl() {
    ending_ = true;
    if (listener_ != nullptr) listener_->Stop();
    std::unique_lock lock(mutex_);
    for (const auto& connection : connections_) {
      if (connection->waiting) shutdown(connection->socket, SHUT_RDWR);
    }
    ended_.wait(lock, [this] { return connections_.empty(); });
  }

  std::string AnswerBytes(absl::string_view bytes) {
    SetOptions(parser_);
    MemoryStream stream(bytes);
    parser_.Answer(stream, nullptr, /*last=*/true);
    return stream.sent();
  }

  int port() const { return listener_->port(); }
  std::string url() const {
    const std::string host = absl::StrContains(address_.host, ":")
                                 ? absl::StrCat("[", address_.host, "]")
                                 : address_.host;
    return absl::StrCat(with_tls_ ? "https://" : "http://", host, ":", port());
  }

 private:
  struct Connection {
    int socket = -1;
    std::string peer;
    std::chrono::steady_clock::time_point since;  // of the request that is awaited
    bool waiting = true;                          // for a handshake, a request, or its rest
    std::atomic<bool> last = false;               // nothing more is read from it
  };

  // On the listener's thread.
  void Begin(int socket, const std::string& peer) {
    auto connection = std::make_shared<Connection>();
    connection->socket = socket;
    connection->peer = peer;
    connection->since = std::chrono::steady_clock::now();
    {
      const std::lock_guard lock(mutex_);
      connections_.push_back(connection);
    }
    try {
      std::thread([this, connection] { Serve(*connection); }).detach();  // ~Impl waits for it
    } catch (const std::system_error& error) {  // this process may have no more
      LogWarning("http", options_.flag, " ", options_.listen, ": a connection of ", peer,
                 " is closed: no thread: ", error.what());
      End(*connection);
    }
  }

  void Serve(Connection& connection) {
    answered = &connection;
    {
      ConnectionStream stream(connection.socket, connection.peer);
      bool more = !with_tls_ || stream.Encrypt(context_.get(), connection.since + kHandshakeLimit);
      for (int left = kRequestsAConnection; more && left > 0 && !ending_; --left) {
        const auto begin = std::chrono::steady_clock::now();
        {
          const std::lock_guard lock(mutex_);
          connection.since = begin;
          connection.waiting = true;
        }
        // The first request is awaited for as long as it may take.
        const bool first = left == kRequestsAConnection;
        if (!stream.AwaitRequest(first ? begin + kRequestLimit : begin + kKeepAlive)) break;
        stream.BeginRequest(begin + kRequestLimit);
        more = parser_.Answer(stream, stream.ssl(), left == 1) && !connection.last;
      }
    }
    End(connection);
  }

  void End(Connection& connection) {
    const std::lock_guard lock(mutex_);
    close(connection.socket);
    std::erase_if(connections_, [&](const auto& each) { return each.get() == &connection; });
    ended_.notify_all();
  }

  // Ends the connection that has waited longest for its request: of the peer, else of the one that
  // has most. False: all of them are being answered.
  bool EndSlowest(const std::string& peer) {
    const std::lock_guard lock(mutex_);
    std::map<std::string, int> counts;
    for (const auto& each : connections_) ++counts[each->peer];
    std::string from = peer;
    if (counts[peer] < kConnections.by_peer) {
      const auto most = std::max_element(counts.begin(), counts.end(),
                                         [](auto& a, auto& b) { return a.second < b.second; });
      from = most->first;
    }
    Connection* slowest = nullptr;
    for (const auto& each : connections_) {
      if (each->peer != from || !each->waiting || each->last) continue;
      if (slowest == nullptr || each->since < slowest->since) slowest = each.get();
    }
    if (slowest == nullptr) return false;
    slowest->last = true;
    shutdown(slowest->socket, SHUT_RDWR);
    NoteFlood(from, counts[from]);
    return true;
  }

  void NoteFlood(const std::string& peer, int count) {
    ++ended_early_;
    const auto now = std::chrono::steady_clock::now();
    if (now - noted_ < kNoteInterval) return;
    noted_ = now;
    LogWarning("http", options_.flag, " ", options_.listen, ": ", std::exchange(ended_early_, 0),
               " connections were ended before they had sent a request, for later ones: ", peer,
               " has ", count, " open");
  }

  void SetOptions(httplib::Server& server) {
    server.set_payload_max_length(kMaxBodyBytes);
    server.set_keep_alive_timeout(kKeepAlive.count());
    // Before the body is read. One that is compressed could become a thousand times as long.
    server.set_pre_routing_handler(
        [](const httplib::Request& request, httplib::Response& response) {
          if (!request.has_header("Content-Encoding"))
            return httplib::Server::HandlerResponse::Unhandled;
          response.status = 415;
          response.set_header("Connection", "close");
          if (answered != nullptr) answered->last = true;
          return httplib::Server::HandlerResponse::Handled;
        });
    const auto answer = [this](const httplib::Request& request, httplib::Response& response) {
      Answer(request, response);
    };
    server.Get(".*", answer);
    server.Post(".*", answer);
  }

  void Answer(const httplib::Request& request, httplib::Response& response) {
    HttpRequest http_request = ToRequest(request);
    if (answered != nullptr) {
      http_request.from = answered->peer;
      const std::lock_guard lock(mutex_);
      answered->waiting = false;
    }
    const std::string host = http_request.Header("host");
    HttpReply reply;
    if (loopback_ && !IsLoopbackHost(absl::string_view(host).substr(0, host.rfind(':'))) &&
        !IsLoopbackHost(host)) {
      reply.status = 403;
      reply.body = "this address is served to this machine only, by the name of localhost\n";
    } else if (with_tls_ && http_request.peer_certificate.empty() && !IsOpen(http_request.path)) {
      reply.status = 403;
      reply.body = "only clients with a certificate of the cluster get this\n";
    } else if (IsOpen(http_request.path)) {  // health: what others wait for does not delay it
      reply = handler_(http_request);
    } else {
      answering_.acquire();
      const auto leave = absl::MakeCleanup([this] { answering_.release(); });
      reply = handler_(http_request);
    }
    response.status = reply.status;
    response.set_header("Cache-Control", reply.cacheable ? "max-age=3600" : "no-store");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'");
    if (!reply.location.empty()) response.set_header("Location", reply.location);
    if (!reply.next) return SetBody(http_request, std::move(reply), response);
    if (++streams_ > options_.max_streams) {
      --streams_;
      response.status = 503;
      return response.set_content("too many streams at once\n", "text/plain");
    }
    response.set_chunked_content_provider(
        reply.type,
        [this, next = std::move(reply.next)](size_t, httplib::DataSink& sink) {
          std::string chunk;
          if (ending_ || !next(&chunk)) {
            sink.done();
            return true;
          }
          return chunk.empty() ? sink.is_writable() : sink.write(chunk.data(), chunk.size());
        },
        [this](bool) { --streams_; });
  }

  // Bodies come from a provider: httplib would compress any other with Brotli's slowest level, half
  // a second for the page's script. To this machine they go as they are.
  void SetBody(const HttpRequest& http_request, HttpReply reply,
               httplib::Response& response) const {
    if (!loopback_ && reply.body.size() >= kMinCompressedBytes && CanCompress(reply.type) &&
        absl::StrContains(http_request.Header("accept-encoding"), "gzip")) {
      if (std::string compressed = Gzip(reply.body); !compressed.empty()) {
        reply.body = std::move(compressed);
        response.set_header("Content-Encoding", "gzip");
        response.set_header("Vary", "Accept-Encoding");
      }
    }
    if (reply.body.empty()) return response.set_content("", reply.type);
    const auto body = std::make_shared<const std::string>(std::move(reply.body));
    response.set_content_provider(body->size(), reply.type,
                                  [body](size_t offset, size_t length, httplib::DataSink& sink) {
                                    return sink.write(body->data() + offset, length);
                                  });
  }

  bool IsOpen(const std::string& path) const {
    return std::find(options_.open_paths.begin(), options_.open_paths.end(), path) !=
           options_.open_paths.end();
  }

  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };

  static thread_local Connection* answered;  // by this thread

  const HttpOptions options_;
  const Handler handler_;
  const Address address_;
  const bool loopback_;
  bool with_tls_ = false;
  std::atomic<bool> ending_{false};
  std::atomic<int> streams_{0};
  std::counting_semaphore<> answering_;
  Parser parser_;  // const while it is used
  std::unique_ptr<SSL_CTX, FreeContext> context_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::list<std::shared_ptr<Connection>> connections_;  // guarded by mutex_, with their fields
  int64_t ended_early_ = 0;                             // likewise, and below
  std::chrono::steady_clock::time_point noted_;
  std::unique_ptr<Listener> listener_;
};

thread_local HttpServer::Impl::Connection* HttpServer::Impl::answered = nullptr;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpOptions options,
                                                              Handler handler) {
  // The same rules as for gRPC, which read the files, too.
  ATOLL_RETURN_IF_ERROR(
      Annotate(ListenCredentials(options.tls, options.listen).status(), options.flag));
  auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
  ATOLL_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

std::string HttpServer::AnswerBytes(HttpOptions options, Handler handler, absl::string_view bytes) {
  return Impl(std::move(options), std::move(handler)).AnswerBytes(bytes);
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return impl_->port(); }
std::string HttpServer::url() const { return impl_->url(); }

bool IsLoopbackAddress(const std::string& listen) {
  return IsLoopbackHost(absl::string_view(listen).substr(0, listen.rfind(':')));
}

}  // namespace atl
