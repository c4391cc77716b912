#include "common/object_store/s3_store.h"

#include <openssl/evp.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/object_store/signature.h"
#include "common/object_store/xml.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr int64_t kAnswerBytesMax = 8 << 20;
constexpr int64_t kListPage = 1000;
constexpr int64_t kPartsMax = 10000;

std::string Md5Base64(std::span<const ByteSpan> buffers) {
  return absl::Base64Escape(DigestBytes(EVP_md5(), buffers));
}

int64_t Bytes(std::span<const ByteSpan> buffers) {
  int64_t bytes = 0;
  for (const ByteSpan& buffer : buffers) bytes += static_cast<int64_t>(buffer.size());
  return bytes;
}

// Bytes [begin, begin + count) of the parts.
std::vector<ByteSpan> Slice(std::span<const ByteSpan> buffers, int64_t begin, int64_t count) {
  std::vector<ByteSpan> slice;
  for (const ByteSpan& buffer : buffers) {
    const auto size = static_cast<int64_t>(buffer.size());
    const int64_t from = std::min(begin, size), bytes = std::min(count, size - from);
    if (bytes > 0) {
      slice.push_back(buffer.subspan(static_cast<size_t>(from), static_cast<size_t>(bytes)));
    }
    begin -= from;
    count -= bytes;
  }
  return slice;
}

class S3Store : public ObjectStore {
 public:
  explicit S3Store(S3Options options)
      : options_(std::move(options)),
        keys_(options_.access, options_.renew, options_.unix_seconds) {
    const std::string& given = options_.access.endpoint;
    endpoint_ = given.empty()
                    ? absl::StrCat("https://s3.", options_.access.region, ".amazonaws.com")
                    : given;
    host_ = endpoint_.substr(endpoint_.find("://") + 3);
  }

  std::string url() const override {
    return absl::StrCat("s3://", options_.bucket, options_.prefix.empty() ? "" : "/",
                        options_.prefix);
  }
  absl::StatusOr<ObjectInfo> Stat(const std::string& name, const CallOptions& call) override;
  absl::Status Read(const std::string& name, int64_t offset, std::span<std::byte> out,
                    const CallOptions& call) override;
  absl::Status Write(const std::string& name, std::span<const ByteSpan> buffers) override;
  absl::StatusOr<std::vector<ObjectInfo>> List(const std::string& prefix, int64_t most,
                                               const CallOptions& call) override;
  absl::Status Remove(const std::string& name) override;

 private:
  using Map = std::map<std::string, std::string>;

  std::string Key(const std::string& name) const {
    return options_.prefix.empty() ? name : absl::StrCat(options_.prefix, "/", name);
  }
  // `key` empty: the bucket itself.
  absl::StatusOr<WebAnswer> Send(const std::string& method, const std::string& key,
                                 const Map& query, const Map& headers,
                                 std::span<const ByteSpan> body, const Cancelled& cancelled = {},
                                 int64_t answer_bytes_max = kAnswerBytesMax) const;
  // The error that an answer of failure stands for.
  absl::Status Error(const WebAnswer& answer, const std::string& what,
                     const std::string& name) const;
  absl::Status Put(const std::string& name, std::span<const ByteSpan> buffers) const;
  absl::Status PutParts(const std::string& name, std::span<const ByteSpan> buffers,
                        int64_t bytes) const;
  absl::Status PutAllParts(const std::string& name, const std::string& upload,
                           std::span<const ByteSpan> buffers, int64_t bytes) const;

  // Stat's HEAD alone.
  absl::StatusOr<WebAnswer> SendHead(const std::string& name, const CallOptions& call) const {
    return Send("HEAD", Key(name), {}, {}, {}, call.cancelled);
  }

  const S3Options options_;
  mutable S3Keys keys_;
  std::string endpoint_, host_;
};

absl::StatusOr<WebAnswer> S3Store::Send(const std::string& method, const std::string& key,
                                        const Map& query, const Map& headers,
                                        std::span<const ByteSpan> body, const Cancelled& cancelled,
                                        int64_t answer_bytes_max) const {
  S3Request request;
  request.method = method;
  request.host = host_;
  request.path = absl::StrCat("/", options_.bucket, key.empty() ? "" : "/", key);
  request.query = query;
  request.headers = headers;
  request.payload_sha256 = Sha256Hex(body);
  const std::string text = QueryText(query);
  WebRequest http;
  http.method = method;
  http.url = absl::StrCat(endpoint_, UriEscape(request.path, true), text.empty() ? "" : "?", text);
  http.body = body;
  http.answer_bytes_max = answer_bytes_max;
  http.cancelled = cancelled;
  S3Access access = keys_.Get();
  const auto send = [&] {
    return SendHttpWithRetries(
        [&] {
          const int64_t now = options_.unix_seconds ? options_.unix_seconds() : std::time(nullptr);
          http.headers = headers;
          for (const auto& [name, value] : SignS3(request, access, now)) {
            http.headers[name] = value;
          }
          return http;
        },
        options_.retry);
  };
  auto answer = send();
  const bool refused =
      answer.ok() && (answer->status == 400 || answer->status == 401 || answer->status == 403);
  if (!refused || !keys_.Renew(access)) return answer;
  access = keys_.Get();
  return send();
}

absl::Status S3Store::Error(const WebAnswer& answer, const std::string& what,
                            const std::string& name) const {
  const std::string code = XmlText(answer.body, "Code");
  const std::string message = absl::StrCat(
      what, " ", url(), name.empty() ? "" : "/", name, " at ", endpoint_, ": HTTP ", answer.status,
      code.empty() ? "" : " ", code, " ", XmlText(answer.body, "Message"));
  if (code == "NoSuchBucket") {
    return absl::FailedPreconditionError(
        absl::StrCat(message, "; is the bucket's name \"", options_.bucket, "\" right?"));
  }
  if (const std::string region = answer.Header("x-amz-bucket-region");
      answer.status >= 300 && !region.empty() && region != options_.access.region) {
    return absl::FailedPreconditionError(absl::StrCat(message, "; set AWS_REGION=", region));
  }
  if (code == "ExpiredToken" || code == "TokenRefreshRequired") {  // new ones may come soon
    return absl::UnavailableError(
        absl::StrCat(message, "; renew the keys of ", keys_.Get().source));
  }
  if (code == "RequestTimeTooSkewed") {
    return absl::FailedPreconditionError(absl::StrCat(message, "; set this machine's clock"));
  }
  const bool refused = answer.status == 401 || answer.status == 403;
  return AnswerError(
      answer.status,
      message + (refused ? "; are the key and its rights to the bucket right?" : ""));
}

absl::StatusOr<ObjectInfo> S3Store::Stat(const std::string& name, const CallOptions& call) {
  ATOLL_RETURN_IF_ERROR(CheckObjectName(name));
  ATOLL_ASSIGN_OR_RETURN(WebAnswer answer, SendHead(name, call));
  if (answer.status != 200) {
    // An answer to HEAD does not say what is wrong.
    ATOLL_ASSIGN_OR_RETURN(
        const WebAnswer why,
        Send("GET", Key(name), {}, {{"range", RangeText(0, 1 << 16)}}, {}, call.cancelled));
    if (why.status >= 300) return Error(why, "looking for", name);
    ATOLL_ASSIGN_OR_RETURN(answer, SendHead(name, call));  // a server that was busy, or new keys
    if (answer.status != 200) return Error(answer, "looking for", name);
  }
  ObjectInfo info{name, 0, answer.Header("etag"), true};
  if (!absl::SimpleAtoi(answer.Header("content-length"), &info.bytes) || info.bytes < 0 ||
      info.tag.empty()) {
    return absl::InternalError(
        absl::StrCat(url(), "/", name, ": the server gives no length or no ETag"));
  }
  return info;
}

absl::Status S3Store::Read(const std::string& name, int64_t offset, std::span<std::byte> out,
                           const CallOptions& call) {
  ATOLL_RETURN_IF_ERROR(CheckObjectName(name));
  if (out.empty()) return absl::OkStatus();
  const auto bytes = static_cast<int64_t>(out.size());
  Map headers = {{"range", RangeText(offset, bytes)}};
  if (!call.tag.empty()) headers["if-match"] = call.tag;
  ATOLL_ASSIGN_OR_RETURN(
      const WebAnswer answer,
      Send("GET", Key(name), {}, headers, {}, call.cancelled, std::max(bytes, kAnswerBytesMax)));
  const bool whole = answer.status == 200 && offset == 0;  // the range was all of it
  const bool answered = answer.status == 206 || whole;
  // Servers that do not know If-Match still say what they gave.
  if (answer.status == 412 ||
      (answered && !call.tag.empty() && answer.Header("etag") != call.tag)) {
    return ChangedError(absl::StrCat(url(), "/", name));
  }
  if (!answered) return Error(answer, "reading", name);
  if (static_cast<int64_t>(answer.body.size()) != bytes) {
    return absl::OutOfRangeError(absl::StrCat("reading ", url(), "/", name, ": has ",
                                              answer.body.size(), " bytes from byte ", offset,
                                              " on, not ", bytes));
  }
  std::copy_n(reinterpret_cast<const std::byte*>(answer.body.data()), bytes, out.begin());
  return absl::OkStatus();
}

absl::Status S3Store::Put(const std::string& name, std::span<const ByteSpan> buffers) const {
  ATOLL_ASSIGN_OR_RETURN(
      const WebAnswer answer,
      Send("PUT", Key(name), {}, {{"content-md5", Md5Base64(buffers)}}, buffers));
  return answer.status == 200 ? absl::OkStatus() : Error(answer, "writing", name);
}

absl::Status S3Store::PutAllParts(const std::string& name, const std::string& upload,
                                  std::span<const ByteSpan> buffers, int64_t bytes) const {
  const int64_t part_bytes = std::max(options_.part_bytes, (bytes + kPartsMax - 1) / kPartsMax);
  std::string list = "<CompleteMultipartUpload>";
  for (int64_t part = 0; part * part_bytes < bytes; ++part) {
    const auto slice = Slice(buffers, part * part_bytes, part_bytes);
    ATOLL_ASSIGN_OR_RETURN(
        const WebAnswer answer,
        Send("PUT", Key(name), {{"partNumber", absl::StrCat(part + 1)}, {"uploadId", upload}},
             {{"content-md5", Md5Base64(slice)}}, slice));
    const std::string tag = answer.Header("etag");
    if (answer.status != 200 || tag.empty()) return Error(answer, "writing", name);
    absl::StrAppend(&list, "<Part><PartNumber>", part + 1, "</PartNumber><ETag>", XmlEscape(tag),
                    "</ETag></Part>");
  }
  list += "</CompleteMultipartUpload>";
  const ByteSpan body = std::as_bytes(std::span(list));
  ATOLL_ASSIGN_OR_RETURN(const WebAnswer answer,
                         Send("POST", Key(name), {{"uploadId", upload}},
                              {{"content-type", "application/xml"}}, {&body, 1}));
  // S3 may answer 200 and an error inside.
  if (answer.status != 200 || !XmlElements(answer.body, "Error").empty()) {
    return Error(answer, "completing", name);
  }
  return absl::OkStatus();
}

absl::Status S3Store::PutParts(const std::string& name, std::span<const ByteSpan> buffers,
                               int64_t bytes) const {
  ATOLL_ASSIGN_OR_RETURN(const WebAnswer begun, Send("POST", Key(name), {{"uploads", ""}}, {}, {}));
  const std::string upload = XmlText(begun.body, "UploadId");
  if (begun.status != 200 || upload.empty()) return Error(begun, "beginning to write", name);
  const absl::Status status = PutAllParts(name, upload, buffers, bytes);
  if (!status.ok()) {
    // An unfinished upload costs money until it is aborted. The first error is the one to report.
    (void)Send("DELETE", Key(name), {{"uploadId", upload}}, {}, {});
  }
  return status;
}

absl::Status S3Store::Write(const std::string& name, std::span<const ByteSpan> buffers) {
  ATOLL_RETURN_IF_ERROR(CheckObjectName(name));
  const int64_t bytes = Bytes(buffers);
  return bytes <= options_.part_bytes ? Put(name, buffers) : PutParts(name, buffers, bytes);
}

absl::StatusOr<std::vector<ObjectInfo>> S3Store::List(const std::string& prefix, int64_t most,
                                                      const CallOptions& call) {
  std::vector<ObjectInfo> objects;
  std::string token;
  const std::string below = options_.prefix.empty() ? "" : options_.prefix + "/";
  do {
    Map query = {{"list-type", "2"},
                 {"prefix", below + prefix},
                 {"max-keys",
                  absl::StrCat(std::min(kListPage, most - static_cast<int64_t>(objects.size())))}};
    if (!token.empty()) query["continuation-token"] = token;
    ATOLL_ASSIGN_OR_RETURN(const WebAnswer answer, Send("GET", "", query, {}, {}, call.cancelled));
    if (answer.status != 200) return Error(answer, "listing", prefix);
    const size_t before = objects.size();
    for (const std::string_view entry : XmlElements(answer.body, "Contents")) {
      if (std::ssize(objects) == most) break;  // more than were requested
      std::string key = XmlText(entry, "Key");
      ObjectInfo info{key, 0, XmlText(entry, "ETag"), true};
      if (!absl::StartsWith(key, below) || !absl::SimpleAtoi(XmlText(entry, "Size"), &info.bytes) ||
          info.bytes < 0) {
        return absl::InternalError(absl::StrCat("listing ", url(), ": the server answers \"", key,
                                                "\" with size \"", XmlText(entry, "Size"), "\""));
      }
      info.name = key.substr(below.size());
      objects.push_back(std::move(info));
    }
    token = XmlText(answer.body, "NextContinuationToken");
    if (objects.size() == before) break;
  } while (!token.empty() && static_cast<int64_t>(objects.size()) < most);
  return objects;
}

absl::Status S3Store::Remove(const std::string& name) {
  ATOLL_RETURN_IF_ERROR(CheckObjectName(name));
  ATOLL_ASSIGN_OR_RETURN(const WebAnswer answer, Send("DELETE", Key(name), {}, {}, {}));
  const bool deleted = answer.status == 200 || answer.status == 204 ||
                       (answer.status == 404 && XmlText(answer.body, "Code") != "NoSuchBucket");
  return deleted ? absl::OkStatus() : Error(answer, "removing", name);
}

}  // namespace

std::unique_ptr<ObjectStore> NewS3Store(S3Options options) {
  return std::make_unique<S3Store>(std::move(options));
}

}  // namespace atl
