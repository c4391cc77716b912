#include "common/object_store/web_store.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/object_store/xml.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr size_t kUrlBytesMax = 16 << 10;  // signatures and tokens take kilobytes
constexpr int64_t kWebAnswerBytesMax = 1 << 20;

// A strong ETag, in its quotes; else a weak one with the time of the last change.
std::string GetWebTag(const WebAnswer& answer) {
  const std::string etag = answer.Header("etag");
  return absl::StartsWith(etag, "\"") ? etag : absl::StrCat(etag, answer.Header("last-modified"));
}

class WebStore : public ObjectStore {
 public:
  explicit WebStore(WebOptions options) : options_(std::move(options)) {}
  std::string url() const override { return options_.url; }

  absl::StatusOr<ObjectInfo> Stat(const std::string& name, const CallOptions& call) override {
    ATOLL_ASSIGN_OR_RETURN(WebAnswer answer, Send("HEAD", name, {}, kWebAnswerBytesMax, call));
    ObjectInfo info{name, -1, ""};
    // Servers that make the body only for GET say 0 of it.
    const bool has_length = answer.status == 200 &&
                            absl::SimpleAtoi(answer.Header("content-length"), &info.bytes) &&
                            info.bytes > 0;
    if (answer.status == 404) return Error(answer, name);
    if (!has_length) {
      const absl::Status head = answer.status == 200 ? absl::OkStatus() : Error(answer, name);
      ATOLL_ASSIGN_OR_RETURN(info.bytes, ReadFirstByte(name, head, call, &answer));
    }
    const std::string encoding = answer.Header("content-encoding");
    if (!encoding.empty() && encoding != "identity" && encoding != "gzip" && encoding != "zstd") {
      return absl::FailedPreconditionError(absl::StrCat(
          Url(name), ": the server gives it in Content-Encoding: ", encoding, "; copy the file"));
    }
    info.tag = GetWebTag(answer);
    if (info.tag.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          Url(name),
          ": the server gives neither ETag nor Last-Modified, so a change could not be "
          "noticed; copy the file"));
    }
    info.exact_tag = absl::StartsWith(info.tag, "\"");
    return info;
  }

  absl::Status Read(const std::string& name, int64_t offset, std::span<std::byte> out,
                    const CallOptions& call) override {
    if (out.empty()) return absl::OkStatus();
    const auto bytes = static_cast<int64_t>(out.size());
    std::map<std::string, std::string> headers = {{"range", RangeText(offset, bytes)}};
    if (absl::StartsWith(call.tag, "\"")) headers["if-match"] = call.tag;
    ATOLL_ASSIGN_OR_RETURN(const WebAnswer answer,
                           Send("GET", name, headers, bytes + kWebAnswerBytesMax, call));
    const bool answered = answer.status == 200 || answer.status == 206;
    if (answer.status == 412 || (answered && !call.tag.empty() && GetWebTag(answer) != call.tag)) {
      return ChangedError(Url(name));
    }
    if (!answered) return Error(answer, name);
    if (answer.status == 200 && (offset > 0 || static_cast<int64_t>(answer.body.size()) != bytes)) {
      return NoRanges(name);
    }
    if (static_cast<int64_t>(answer.body.size()) != bytes) {
      return absl::OutOfRangeError(absl::StrCat(Url(name), ": has ", answer.body.size(),
                                                " bytes from byte ", offset, " on, not ", bytes));
    }
    std::copy_n(reinterpret_cast<const std::byte*>(answer.body.data()), bytes, out.begin());
    return absl::OkStatus();
  }

 private:
  std::string Url(const std::string& name) const { return absl::StrCat(options_.url, "/", name); }

  // The object's length, from what the server says of a range. `head`: what it said of HEAD.
  absl::StatusOr<int64_t> ReadFirstByte(const std::string& name, const absl::Status& head,
                                        const CallOptions& call, WebAnswer* answer) const {
    auto got = Send("GET", name, {{"range", "bytes=0-0"}}, kWebAnswerBytesMax, call);
    // A server that gives all of a longer one.
    if (absl::IsInvalidArgument(got.status())) return NoRanges(name);
    ATOLL_RETURN_IF_ERROR(got.status());
    *answer = *std::move(got);
    const std::string range = answer->Header("content-range");  // "bytes 0-0/1234", "bytes */0"
    int64_t bytes = -1;
    const bool sized = absl::StartsWith(range, "bytes ") &&
                       absl::SimpleAtoi(range.substr(range.find('/') + 1), &bytes) && bytes >= 0;
    if (answer->status == 206 && sized) return bytes;
    if (answer->status == 416 && (sized ? bytes == 0 : head.ok())) return 0;
    if (answer->status == 200 && answer->body.empty()) return 0;
    if (answer->status == 200 || answer->status == 206) return NoRanges(name);
    const absl::Status error = Error(*answer, name);
    // The refusal of HEAD says less than that of GET.
    return head.ok() || answer->status != 405 ? error : head;
  }
  absl::Status NoRanges(const std::string& name) const {
    return absl::FailedPreconditionError(
        absl::StrCat(Url(name), ": the server gives no ranges of it; copy the file"));
  }

  absl::StatusOr<WebAnswer> Send(const char* method, const std::string& name,
                                 std::map<std::string, std::string> headers, int64_t bytes_max,
                                 const CallOptions& call) const {
    WebRequest request;
    request.method = method;
    request.url = EscapeUrl(Url(name));
    if (name.empty() || request.url.size() > kUrlBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(Url(name), ": cannot name an object"));
    }
    request.headers = options_.headers;
    request.headers.merge(headers);
    request.headers["accept-encoding"] = "identity";
    request.answer_bytes_max = bytes_max;
    request.follow_redirects = true;
    request.cancelled = call.cancelled;
    return SendHttpWithRetries([&] { return request; }, options_.retry);
  }
  absl::Status Error(const WebAnswer& answer, const std::string& name) const {
    const std::string code = XmlText(answer.body, "Code");
    const std::string message =
        absl::StrCat(Url(name), ": HTTP ", answer.status, code.empty() ? "" : " ", code,
                     code.empty() ? "" : " ", XmlText(answer.body, "Message"));
    if (answer.status == 401 || answer.status == 403) {
      const bool is_signed =
          absl::StrContains(name, "Signature=") || absl::StrContains(name, "sig=");
      const std::string hint =
          is_signed ? "has the address that was signed ended?" : options_.refusal_hint;
      return absl::PermissionDeniedError(
          absl::StrCat(message, "; the server does not let this machine read it",
                       hint.empty() ? "" : ": ", hint));
    }
    return AnswerError(answer.status, message);
  }

  const WebOptions options_;
};

}  // namespace

std::unique_ptr<ObjectStore> NewWebStore(WebOptions options) {
  return std::make_unique<WebStore>(std::move(options));
}

std::string EscapeUrl(const std::string& url) {
  std::string escaped;
  for (const char c : url) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte > 0x20 && byte < 0x7f &&
                       std::string_view("\"<>\\^`{|}").find(c) == std::string_view::npos;
    if (plain) {
      escaped += c;
    } else {
      absl::StrAppendFormat(&escaped, "%%%02X", byte);
    }
  }
  return escaped;
}

}  // namespace atl
