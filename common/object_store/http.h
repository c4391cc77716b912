// HTTP requests through libcurl, repeated where the server may only be busy.

#ifndef ATOLL_COMMON_OBJECT_STORE_HTTP_H_
#define ATOLL_COMMON_OBJECT_STORE_HTTP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/files.h"

namespace atl {

using Cancelled = std::function<bool()>;  // empty: never

struct WebRequest {
  std::string method = "GET";
  std::string url;
  std::map<std::string, std::string> headers;
  std::span<const ByteSpan> body;      // the parts outlive the request
  int64_t answer_bytes_max = 1 << 20;  // a longer answer is an error
  bool follow_redirects = false;       // as far as ConfineRedirects lets it
  bool link_local = false;  // may reach such an address: of services that give keys, in 5 s at most
  Cancelled cancelled;      // polled about once a second, from this thread
};

// From now on a redirection is followed only to a URL for which `may_read` is true; else
// PERMISSION_DENIED. Of the whole process; empty: every redirection.
void ConfineRedirects(std::function<bool(const std::string& url)> may_read);

// Has `say` get from now on what requests of this process wait for (a server that is silent or
// busy, while they still try), and "" once none does; from any thread, one at a time. Empty: no
// more.
void WatchWaits(std::function<void(const std::string& what)> say);

// Formats the value of the header Range: "bytes=0-9".
std::string RangeText(int64_t offset, int64_t bytes);

struct WebAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  // Returns a header's value; "": there is none.
  std::string Header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

// The error that an answer of failure stands for, by its status.
absl::Status AnswerError(int http_status, const std::string& message);

// Adds a line of an answer's head, as it came: "name: value", or the line that begins an answer,
// which may follow an interim one. At most 200 headers are kept.
void AddHeadLine(absl::string_view line, WebAnswer* answer);

// One try. UNAVAILABLE: no answer (no connection, it broke off, too slow: below 1 KB/s for 10 s,
// or 30 s where something is sent).
// ABORTED: cancelled. Whatever the server answers is OK here.
absl::StatusOr<WebAnswer> SendHttp(const WebRequest& request);

struct RetryOptions {
  int tries = 5;
  int64_t first_pause_ms = 200;           // doubled from try to try, with a random part
  std::function<void(int64_t ms)> sleep;  // absent: this thread's
  // Makes one try; absent: SendHttp.
  std::function<absl::StatusOr<WebAnswer>(const WebRequest& request)> send;
};

// Calls `make` and sends what it returns (a signature has its time), until there is an answer that
// is neither 429 nor 5xx, or all tries are used up: the last answer, or the last error. ABORTED:
// cancelled.
absl::StatusOr<WebAnswer> SendHttpWithRetries(const std::function<WebRequest()>& make,
                                              const RetryOptions& options);

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_HTTP_H_
