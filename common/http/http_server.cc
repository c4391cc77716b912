#include "common/http/http_server.h"

#include <httplib.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <semaphore>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/net/tcp_endpoint.h"

namespace atl {
namespace {

constexpr size_t kMaxBodyBytes = 1 << 20;
constexpr int kReadTimeoutS = 5;
constexpr int kWriteTimeoutS = 10;
constexpr int kKeepAliveS = 2;
constexpr size_t kMaxConnections = 128;
constexpr size_t kMaxQueuedConnections = 256;
constexpr auto kStartLimit = std::chrono::seconds(5);
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

// A thread a connection, up to kMaxConnections, made when none is idle: httplib reads a request on
// the thread that answers it, so a few slow clients must not take all of them. Others wait in a
// bounded queue; while it is full no connection is accepted.
class ConnectionThreads : public httplib::TaskQueue {
 public:
  ConnectionThreads() {
    threads_.emplace_back([this] { Run(); });
  }
  void enqueue(std::function<void()> connection) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.size() < kMaxQueuedConnections; });
    waiting_.push_back(std::move(connection));
    if (idle_ < waiting_.size() && threads_.size() < kMaxConnections) StartThread();
    changed_.notify_all();
  }
  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void StartThread() {
    try {
      threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error&) {  // this process may have no more: those there go on
    }
  }
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      changed_.wait(lock, [this] { return !waiting_.empty() || ending_; });
      --idle_;
      if (waiting_.empty()) return;
      const std::function<void()> connection = std::move(waiting_.front());
      waiting_.pop_front();
      changed_.notify_all();
      lock.unlock();
      connection();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;  // guarded by mutex_, as below
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool ending_ = false;
};

// A connection in memory.
class MemoryStream : public httplib::Stream {
 public:
  explicit MemoryStream(absl::string_view received) : left_(received) {}
  bool is_readable() const override { return !left_.empty(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override {
    const size_t taken = left_.copy(to, size);
    left_.remove_prefix(taken);
    return static_cast<ssize_t>(taken);
  }
  ssize_t write(const char* from, size_t size) override {
    sent_.append(from, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { Name(&ip, &port); }
  void get_local_ip_and_port(std::string& ip, int& port) const override { Name(&ip, &port); }
  socket_t socket() const override { return INVALID_SOCKET; }
  const std::string& sent() const { return sent_; }

 private:
  static void Name(std::string* ip, int* port) {
    *ip = "127.0.0.1";
    *port = 0;
  }

  absl::string_view left_;
  std::string sent_;
};

// Of which one request can be answered from a stream.
class UnboundServer : public httplib::Server {
 public:
  void Answer(httplib::Stream& stream) {
    bool closed = false;
    process_request(stream, /*close_connection=*/true, closed, [](httplib::Request&) {});
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
  for (const auto& [name, value] : from.params) request.query[name] = value;
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
      server_ = std::make_unique<httplib::SSLServer>(
          [&](SSL_CTX& context) { return SetUp(context, &tls, options_.open_paths.empty()); });
    } else {
      server_ = std::make_unique<httplib::Server>();
    }
    if (!server_->is_valid()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.flag, ": --tls-ca, --tls-cert or --tls-key cannot be used"));
    }
    SetOptions(*server_);
    port_ = address_.port;
    if (port_ == 0) {
      port_ = server_->bind_to_any_port(address_.host);
    } else if (!server_->bind_to_port(address_.host, port_)) {
      port_ = -1;
    }
    if (port_ <= 0) {
      return absl::UnavailableError(absl::StrCat(options_.flag, " ", options_.listen,
                                                 ": cannot listen there; is the port taken?"));
    }
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    const auto limit = std::chrono::steady_clock::now() + kStartLimit;
    while (!server_->is_running() && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return absl::OkStatus();
  }

  ~Impl() {
    ending_ = true;
    if (server_ != nullptr) server_->stop();
    if (thread_.joinable()) thread_.join();
  }

  std::string AnswerBytes(absl::string_view bytes) {
    UnboundServer server;
    SetOptions(server);
    MemoryStream stream(bytes);
    server.Answer(stream);
    return stream.sent();
  }

  int port() const { return port_; }
  std::string url() const {
    const std::string host = absl::StrContains(address_.host, ":")
                                 ? absl::StrCat("[", address_.host, "]")
                                 : address_.host;
    return absl::StrCat(with_tls_ ? "https://" : "http://", host, ":", port_);
  }

 private:
  void SetOptions(httplib::Server& server) {
    server.new_task_queue = [] { return new ConnectionThreads(); };
    // httplib's own choice, SO_REUSEPORT, would share the port with another daemon.
    server.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server.set_payload_max_length(kMaxBodyBytes);
    server.set_read_timeout(kReadTimeoutS);
    server.set_write_timeout(kWriteTimeoutS);
    server.set_keep_alive_timeout(kKeepAliveS);
    const auto answer = [this](const httplib::Request& request, httplib::Response& response) {
      Answer(request, response);
    };
    server.Get(".*", answer);
    server.Post(".*", answer);
  }

  void Answer(const httplib::Request& request, httplib::Response& response) {
    const HttpRequest http_request = ToRequest(request);
    const std::string host = http_request.Header("host");
    HttpReply reply;
    if (loopback_ && !IsLoopbackHost(absl::string_view(host).substr(0, host.rfind(':'))) &&
        !IsLoopbackHost(host)) {
      reply.status = 403;
      reply.body = "this address is served to this machine only, by the name of localhost\n";
    } else if (with_tls_ && http_request.peer_certificate.empty() && !IsOpen(http_request.path)) {
      reply.status = 403;
      reply.body = "only clients with a certificate of the cluster get this\n";
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

  const HttpOptions options_;
  const Handler handler_;
  const Address address_;
  const bool loopback_;
  bool with_tls_ = false;
  int port_ = -1;
  std::atomic<bool> ending_{false};
  std::atomic<int> streams_{0};
  std::counting_semaphore<> answering_;
  std::unique_ptr<httplib::Server> server_;
  std::thread thread_;
};

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
