#include "common/object_store/http.h"

#include <curl/curl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/object_store/forbidden_address.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr long kConnectSeconds = 10;
constexpr long kLinkConnectSeconds = 1, kLinkSeconds = 5;
constexpr long kSlowBytesPerSecond = 1024;
constexpr long kSlowSeconds = 10, kSlowUploadSeconds = 30;
constexpr long kSecondTrySeconds = 3;
constexpr Duration kTryBeside = std::chrono::seconds(3), kSaySilence = std::chrono::seconds(4);
constexpr size_t kHeadersMax = 200;
constexpr absl::string_view kAnswerBegins = "HTTP/";
constexpr long kRedirectsMax = 5;
constexpr int64_t kPauseSliceMs = 100;
constexpr size_t kHandlesMax = 32;

// Connections are kept in their handles, and those of threads that ended serve others.
class HandlePool {
 public:
  static HandlePool& Get() {
    static HandlePool pool;
    return pool;
  }
  CURL* Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return curl_easy_init();
    CURL* handle = free_.back();
    free_.pop_back();
    curl_easy_reset(handle);
    return handle;
  }
  void Return(CURL* handle) {
    const std::lock_guard lock(mutex_);
    if (free_.size() < kHandlesMax) {
      free_.push_back(handle);
    } else {
      curl_easy_cleanup(handle);
    }
  }

 private:
  HandlePool() { curl_global_init(CURL_GLOBAL_DEFAULT); }
  ~HandlePool() {
    for (CURL* handle : free_) curl_easy_cleanup(handle);
  }

  std::mutex mutex_;
  std::vector<CURL*> free_;
};

struct Waits {
  std::mutex mutex;
  std::function<void(const std::string&)> say;
  int waiting = 0;   // requests that have said something
  std::string last;  // what was said

  static Waits& Get() {
    static Waits waits;
    return waits;
  }
};

// A request with all its tries.
class Wait {
 public:
  explicit Wait(const std::string& url) : url_(url.substr(0, url.find('?'))) { current = this; }
  ~Wait() {
    current = nullptr;
    if (!said_) return;
    Waits& waits = Waits::Get();
    const std::lock_guard lock(waits.mutex);
    if (--waits.waiting > 0) return;
    waits.last.clear();
    if (waits.say) waits.say("");
  }
  void Say(absl::string_view why) {
    Waits& waits = Waits::Get();
    const std::lock_guard lock(waits.mutex);
    if (!std::exchange(said_, true)) ++waits.waiting;
    const std::string text = absl::StrCat("waiting for ", url_, ": ", why);
    // Requests for parts of one object say it once.
    if (std::exchange(last_, text) == text || std::exchange(waits.last, text) == text) return;
    if (waits.say) waits.say(text);
  }
  static thread_local Wait* current;

 private:
  const std::string url_;
  std::string last_;
  bool said_ = false;
};
thread_local Wait* Wait::current = nullptr;

bool Reads(const WebRequest& request) {
  return request.method == "GET" || request.method == "HEAD";
}

absl::StatusOr<WebAnswer> SendOnce(const WebRequest& request, bool beside);

// Further tries of a read beside one that is silent, short ones, until one is answered: a server
// that is back has often forgotten what it was sent before.
class TriesBeside {
 public:
  explicit TriesBeside(WebRequest request) : request_(std::move(request)) {
    request_.cancelled = [this, cancelled = request_.cancelled] {
      return ended_ || (cancelled && cancelled());
    };
    thread_ = std::thread([this] {
      while (!answered_ && !request_.cancelled()) {
        answer_ = SendOnce(request_, /*beside=*/true);
        // A server that is too busy for this one may still answer the first.
        constexpr int kTooMany = 429, kServerErrors = 500;
        answered_ = answer_.ok() && answer_->status != kTooMany && answer_->status < kServerErrors;
        if (!answered_) std::this_thread::sleep_for(std::chrono::milliseconds(kPauseSliceMs));
      }
    });
  }
  ~TriesBeside() {
    ended_ = true;
    thread_.join();
  }
  bool answered() const { return answered_; }
  // The first one is answered after all. Does not wait for the try under way.
  void End() { ended_ = true; }
  bool ended() const { return ended_; }
  // REQUIRES: answered().
  WebAnswer Take() { return *std::move(answer_); }

 private:
  WebRequest request_;
  std::atomic<bool> ended_ = false, answered_ = false;
  absl::StatusOr<WebAnswer> answer_;
  std::thread thread_;
};

struct Transfer {
  const WebRequest* request;
  bool is_beside = false;
  WebAnswer answer;
  size_t buffer = 0, offset = 0;  // of the body, sent so far
  bool redirects = false;         // the answer under way says that the object is elsewhere
  bool too_long = false;
  bool forbidden = false;
  curl_off_t moved = 0;  // bytes both ways, at `moved_at`
  Instant moved_at = SteadyNow();
  std::unique_ptr<TriesBeside> beside;
};

size_t TakeBody(char* data, size_t size, size_t count, void* user) {
  auto* transfer = static_cast<Transfer*>(user);
  const size_t bytes = size * count;
  if (transfer->redirects) return bytes;  // a page for humans
  if (transfer->answer.body.size() + bytes >
      static_cast<size_t>(transfer->request->answer_bytes_max)) {
    transfer->too_long = true;
    return 0;
  }
  transfer->answer.body.append(data, bytes);
  return bytes;
}

size_t TakeHeader(char* data, size_t size, size_t count, void* user) {
  auto* transfer = static_cast<Transfer*>(user);
  const absl::string_view line(data, size * count);
  if (absl::StartsWith(line, kAnswerBegins)) {
    const absl::string_view status = line.substr(std::min(line.find(' '), line.size()));
    transfer->redirects = transfer->request->follow_redirects && absl::StartsWith(status, " 3");
  }
  AddHeadLine(line, &transfer->answer);
  return size * count;
}

size_t GiveBody(char* to, size_t size, size_t count, void* user) {
  auto* transfer = static_cast<Transfer*>(user);
  const std::span<const ByteSpan> buffers = transfer->request->body;
  size_t given = 0;
  while (given < size * count && transfer->buffer < buffers.size()) {
    const ByteSpan rest = buffers[transfer->buffer].subspan(transfer->offset);
    const size_t bytes = std::min(rest.size(), size * count - given);
    if (bytes > 0) std::memcpy(to + given, rest.data(), bytes);
    given += bytes;
    transfer->offset += bytes;
    if (bytes == rest.size()) {
      ++transfer->buffer;
      transfer->offset = 0;
    }
  }
  return given;
}

// At the connection, where names are resolved and redirections followed.
curl_socket_t OpenSocket(void* user, curlsocktype, curl_sockaddr* address) {
  auto* const transfer = static_cast<Transfer*>(user);
  if (IsForbiddenAddress(address->addr) && !transfer->request->link_local) {
    transfer->forbidden = true;
    return CURL_SOCKET_BAD;
  }
  return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

// About once a second.
int CheckProgress(void* user, curl_off_t, curl_off_t got, curl_off_t, curl_off_t sent) {
  auto* const transfer = static_cast<Transfer*>(user);
  const Instant now = SteadyNow();
  if (std::exchange(transfer->moved, got + sent) != got + sent) {
    transfer->moved_at = now;
    if (transfer->beside != nullptr) transfer->beside->End();
  }
  const Duration silent = now - transfer->moved_at;
  if (Wait::current != nullptr && silent >= kSaySilence) Wait::current->Say("no answer");
  const auto* request = transfer->request;
  const bool may_try = Reads(*request) && !request->link_local && !transfer->is_beside;
  const bool tries = transfer->beside != nullptr && !transfer->beside->ended();
  if (silent >= kTryBeside && may_try && !tries) {
    transfer->beside = std::make_unique<TriesBeside>(*request);
  }
  const bool answered = transfer->beside != nullptr && transfer->beside->answered();
  return answered || (request->cancelled && request->cancelled()) ? 1 : 0;
}

absl::Status CancelledError(const std::string& url) {
  return absl::AbortedError(absl::StrCat(url, ": the request is cancelled"));
}

struct HeaderList {
  curl_slist* list = nullptr;
  ~HeaderList() { curl_slist_free_all(list); }
  void Add(const std::string& line) { list = curl_slist_append(list, line.c_str()); }
};

void SetOptions(CURL* curl, const WebRequest& request, Transfer* transfer, HeaderList* headers) {
  for (const auto& [name, value] : request.headers) headers->Add(absl::StrCat(name, ": ", value));
  headers->Add("Expect:");
  int64_t bytes = 0;
  for (const ByteSpan& buffer : request.body) bytes += static_cast<int64_t>(buffer.size());
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT,
                   request.link_local    ? kLinkConnectSeconds
                   : transfer->is_beside ? kSecondTrySeconds
                                         : kConnectSeconds);
  if (request.link_local) curl_easy_setopt(curl, CURLOPT_TIMEOUT, kLinkSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  // A store may take its time over what it was sent.
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME,
                   transfer->is_beside ? kSecondTrySeconds
                   : Reads(request)    ? kSlowSeconds
                                       : kSlowUploadSeconds);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, TakeBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, transfer);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, TakeHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, transfer);
  curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, OpenSocket);
  curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, CheckProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, transfer);
  if (request.method == "HEAD") {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(bytes));
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, GiveBody);
    curl_easy_setopt(curl, CURLOPT_READDATA, transfer);
  } else {
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers->list);
}

// False: cancelled meanwhile.
bool Pause(int64_t ms, const Cancelled& cancelled) {
  for (int64_t slept = 0; slept < ms; slept += kPauseSliceMs) {
    if (cancelled && cancelled()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(kPauseSliceMs, ms - slept)));
  }
  return true;
}

// Which redirections are followed, of all requests; empty: all.
struct RedirectRule {
  std::mutex mutex;
  std::function<bool(const std::string& url)> may_read;

  static RedirectRule& Get() {
    static RedirectRule rule;
    return rule;
  }
};

absl::Status CheckRedirect(const std::string& from, const std::string& to) {
  RedirectRule& rule = RedirectRule::Get();
  const std::lock_guard lock(rule.mutex);
  if (!rule.may_read || rule.may_read(to)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(from, ": redirects to ", to, ", which is outside what this process may read"));
}

// "https://host:port" of an address.
std::string Origin(const std::string& url) {
  const size_t host = url.find("://");
  return host == std::string::npos ? url : url.substr(0, url.find_first_of("/?#", host + 3));
}

// Follows redirections, one request after the other; credentials stay with the first host.
absl::StatusOr<CURLcode> Perform(CURL* curl, Transfer* transfer) {
  std::string url = transfer->request->url;
  HeaderList elsewhere;
  for (const auto& [name, value] : transfer->request->headers) {
    if (name != "authorization") elsewhere.Add(absl::StrCat(name, ": ", value));
  }
  for (int hops = 0;; ++hops) {
    const CURLcode result = curl_easy_perform(curl);
    const char* location = nullptr;
    curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &location);
    if (result != CURLE_OK || location == nullptr || !transfer->request->follow_redirects) {
      return result;
    }
    if (hops >= kRedirectsMax) {
      return absl::FailedPreconditionError(
          absl::StrCat(transfer->request->url, ": redirects more than ", kRedirectsMax, " times"));
    }
    const std::string to = location;
    ATOLL_RETURN_IF_ERROR(CheckRedirect(url, to));
    url = to;
    transfer->answer = {};
    if (Origin(url) != Origin(transfer->request->url)) {
      curl_easy_setopt(curl, CURLOPT_HTTPHEADER, elsewhere.list);
    }
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  }
}

}  // namespace

void ConfineRedirects(std::function<bool(const std::string& url)> may_read) {
  RedirectRule& rule = RedirectRule::Get();
  const std::lock_guard lock(rule.mutex);
  rule.may_read = std::move(may_read);
}

void WatchWaits(std::function<void(const std::string& what)> say) {
  const std::lock_guard lock(Waits::Get().mutex);
  Waits::Get().say = std::move(say);
}

void AddHeadLine(absl::string_view line, WebAnswer* answer) {
  if (absl::StartsWith(line, kAnswerBegins)) answer->headers.clear();
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos || answer->headers.size() >= kHeadersMax) return;
  answer->headers[absl::AsciiStrToLower(line.substr(0, colon))] =
      std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
}

absl::Status AnswerError(int http_status, const std::string& message) {
  if (http_status == 401 || http_status == 403) return absl::PermissionDeniedError(message);
  if (http_status == 404) return absl::NotFoundError(message);
  if (http_status == 416) return absl::OutOfRangeError(message);
  if (http_status == 429 || http_status >= 500) return absl::UnavailableError(message);
  return absl::FailedPreconditionError(message);
}

std::string RangeText(int64_t offset, int64_t bytes) {
  return absl::StrCat("bytes=", offset, "-", offset + bytes - 1);
}

namespace {

absl::StatusOr<WebAnswer> SendOnce(const WebRequest& request, bool beside) {
  CURL* curl = HandlePool::Get().Take();
  if (curl == nullptr) return absl::ResourceExhaustedError("libcurl has no memory");
  const auto give_back = absl::MakeCleanup([&] { HandlePool::Get().Return(curl); });
  Transfer transfer{.request = &request, .is_beside = beside};
  HeaderList headers;
  SetOptions(curl, request, &transfer, &headers);
  ATOLL_ASSIGN_OR_RETURN(const CURLcode result, Perform(curl, &transfer));
  if (result != CURLE_OK && transfer.beside != nullptr && transfer.beside->answered()) {
    return transfer.beside->Take();
  }
  if (transfer.too_long) {
    return absl::InvalidArgumentError(absl::StrCat(request.url, ": the answer is longer than ",
                                                   request.answer_bytes_max, " bytes"));
  }
  if (transfer.forbidden && result != CURLE_OK) {
    return absl::PermissionDeniedError(absl::StrCat(
        request.url, ": leads to a link-local or metadata address, from which nothing is read"));
  }
  if (result == CURLE_ABORTED_BY_CALLBACK) return CancelledError(request.url);
  if (result == CURLE_URL_MALFORMAT || result == CURLE_UNSUPPORTED_PROTOCOL) {
    return absl::InvalidArgumentError(absl::StrCat(request.url, ": ", curl_easy_strerror(result)));
  }
  if (result != CURLE_OK) {
    return absl::UnavailableError(
        absl::StrCat(request.method, " ", request.url, ": ", curl_easy_strerror(result)));
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  transfer.answer.status = static_cast<int>(status);
  return std::move(transfer.answer);
}

// Returns the wait that a busy server requests, within reason.
int64_t RetryAfterMs(const WebAnswer& answer) {
  constexpr int64_t kSecondsMax = 20;
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(answer.Header("retry-after"), &seconds)) return 0;
  return 1000 * std::clamp<int64_t>(seconds, 0, kSecondsMax);
}

}  // namespace

absl::StatusOr<WebAnswer> SendHttp(const WebRequest& request) {
  return SendOnce(request, /*beside=*/false);
}

absl::StatusOr<WebAnswer> SendHttpWithRetries(const std::function<WebRequest()>& make,
                                              const RetryOptions& options) {
  thread_local std::minstd_rand random{std::random_device{}()};
  int64_t pause_ms = options.first_pause_ms;
  std::optional<Wait> wait;
  for (int attempt = 1;; ++attempt) {
    const WebRequest request = make();
    if (request.cancelled && request.cancelled()) return CancelledError(request.url);
    if (!wait.has_value()) wait.emplace(request.url);
    const Instant began = SteadyNow();
    auto answer = options.send ? options.send(request) : SendHttp(request);
    const bool was_silent = SteadyNow() - began >= kTryBeside;
    const bool busy = answer.ok() ? answer->status == 429 || answer->status >= 500
                                  : absl::IsUnavailable(answer.status());
    if (!busy || attempt >= options.tries) return answer;
    int64_t ms = pause_ms + static_cast<int64_t>(random() % static_cast<uint64_t>(pause_ms + 1));
    wait->Say(answer.ok() ? absl::StrCat("HTTP ", answer->status) : "no answer");
    if (answer.ok()) ms = std::max(ms, RetryAfterMs(*answer));
    if (options.sleep) {
      options.sleep(ms);
    } else if (!Pause(ms, request.cancelled)) {
      return CancelledError(request.url);
    }
    if (!was_silent) pause_ms *= 2;  // silence was a pause already
  }
}

}  // namespace atl
