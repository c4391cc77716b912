#include "common/object_store/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr long kConnectSeconds = 10;
constexpr long kSlowBytesPerSecond = 1024;
constexpr long kSlowSeconds = 30;
constexpr size_t kHeadersMax = 200;

struct Transfer {
  const HttpRequest* request;
  HttpAnswer answer;
  size_t piece = 0, offset = 0;  // of the body, sent so far
  bool too_long = false;
};

size_t TakeBody(char* data, size_t size, size_t count, void* user) {
  auto* transfer = static_cast<Transfer*>(user);
  const size_t bytes = size * count;
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
  const size_t colon = line.find(':');
  if (colon != absl::string_view::npos && transfer->answer.headers.size() < kHeadersMax) {
    transfer->answer.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return size * count;
}

size_t GiveBody(char* to, size_t size, size_t count, void* user) {
  auto* transfer = static_cast<Transfer*>(user);
  const std::span<const ByteSpan> pieces = transfer->request->body;
  size_t given = 0;
  while (given < size * count && transfer->piece < pieces.size()) {
    const ByteSpan rest = pieces[transfer->piece].subspan(transfer->offset);
    const size_t bytes = std::min(rest.size(), size * count - given);
    if (bytes > 0) std::memcpy(to + given, rest.data(), bytes);
    given += bytes;
    transfer->offset += bytes;
    if (bytes == rest.size()) {
      ++transfer->piece;
      transfer->offset = 0;
    }
  }
  return given;
}

struct HeaderList {
  curl_slist* list = nullptr;
  ~HeaderList() { curl_slist_free_all(list); }
  void Add(const std::string& line) { list = curl_slist_append(list, line.c_str()); }
};

}  // namespace

absl::StatusOr<HttpAnswer> SendHttp(const HttpRequest& request) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  // A thread keeps its handle, and with it connections.
  thread_local const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> handle(curl_easy_init(),
                                                                                curl_easy_cleanup);
  CURL* curl = handle.get();
  if (curl == nullptr) return absl::ResourceExhaustedError("libcurl has no memory");
  curl_easy_reset(curl);
  Transfer transfer{.request = &request};
  HeaderList headers;
  for (const auto& [name, value] : request.headers) headers.Add(absl::StrCat(name, ": ", value));
  headers.Add("Expect:");
  int64_t bytes = 0;
  for (const ByteSpan& piece : request.body) bytes += static_cast<int64_t>(piece.size());
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kSlowSeconds);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, TakeBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, TakeHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  if (request.method == "HEAD") {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(bytes));
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, GiveBody);
    curl_easy_setopt(curl, CURLOPT_READDATA, &transfer);
  } else {
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.list);
  const CURLcode result = curl_easy_perform(curl);
  if (transfer.too_long) {
    return absl::InvalidArgumentError(absl::StrCat(request.url, ": the answer is longer than ",
                                                   request.answer_bytes_max, " bytes"));
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

absl::StatusOr<HttpAnswer> SendHttpWithRetries(const std::function<HttpRequest()>& make,
                                               const RetryOptions& options) {
  thread_local std::minstd_rand random{std::random_device{}()};
  int64_t pause_ms = options.first_pause_ms;
  for (int attempt = 1;; ++attempt) {
    auto answer = SendHttp(make());
    const bool busy = answer.ok() ? answer->status == 429 || answer->status >= 500
                                  : absl::IsUnavailable(answer.status());
    if (!busy || attempt >= options.tries) return answer;
    const int64_t ms =
        pause_ms + static_cast<int64_t>(random() % static_cast<uint64_t>(pause_ms + 1));
    if (options.sleep) {
      options.sleep(ms);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    }
    pause_ms *= 2;
  }
}

}  // namespace atl
