#include "common/object_store/signature.h"

#include <openssl/hmac.h>

#include <array>
#include <ctime>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"

namespace atl {
namespace {

constexpr size_t kSha256Bytes = 32;

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

std::string Sha256Hex(const std::string& text) {
  const ByteSpan buffer = std::as_bytes(std::span(text));
  return atl::Sha256Hex({&buffer, 1});
}

std::string Hmac(const std::string& key, const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned int bytes = 0;
  const auto* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data(), &bytes);
  ATOLL_CHECK(made != nullptr && bytes == kSha256Bytes);
  return {reinterpret_cast<const char*>(out.data()), bytes};
}

std::string TimeText(int64_t unix_seconds, const char* format) {
  const auto time = static_cast<time_t>(unix_seconds);
  std::tm utc{};
  gmtime_r(&time, &utc);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &utc)};
}

}  // namespace

std::string ByteDigest::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  ATOLL_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &bytes) == 1);
  return {reinterpret_cast<const char*>(digest.data()), bytes};
}

std::string DigestBytes(const EVP_MD* kind, std::span<const ByteSpan> buffers) {
  ByteDigest digest(kind);
  for (const ByteSpan& buffer : buffers) digest.Add(buffer);
  return digest.Finish();
}

std::string Sha256Hex(std::span<const ByteSpan> buffers) {
  return Hex(DigestBytes(EVP_sha256(), buffers));
}

std::string UriEscape(std::string_view text, bool keep_slash) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = absl::ascii_isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~' ||
                       (keep_slash && c == '/');
    absl::StrAppendFormat(&result, plain ? "%c" : "%%%02X", byte);
  }
  return result;
}

std::string QueryText(const std::map<std::string, std::string>& query) {
  std::map<std::string, std::string> escaped;  // the escaped names' order counts
  for (const auto& [name, value] : query) {
    escaped.emplace(UriEscape(name, false), UriEscape(value, false));
  }
  std::string text;
  for (const auto& [name, value] : escaped) {
    absl::StrAppend(&text, text.empty() ? "" : "&", name, "=", value);
  }
  return text;
}

std::map<std::string, std::string> SignS3(const S3Request& request, const S3Access& access,
                                          int64_t unix_seconds) {
  const std::string time = TimeText(unix_seconds, "%Y%m%dT%H%M%SZ");
  const std::string day = time.substr(0, 8);
  std::map<std::string, std::string> added = {{"x-amz-date", time},
                                              {"x-amz-content-sha256", request.payload_sha256}};
  if (!access.session_token.empty()) added["x-amz-security-token"] = access.session_token;
  std::map<std::string, std::string> all = request.headers;
  all.insert(added.begin(), added.end());
  all["host"] = request.host;
  std::string headers, names;
  for (const auto& [name, value] : all) {
    absl::StrAppend(&headers, name, ":", absl::StripAsciiWhitespace(value), "\n");
    absl::StrAppend(&names, names.empty() ? "" : ";", name);
  }
  const std::string canonical = absl::StrCat(request.method, "\n", UriEscape(request.path, true),
                                             "\n", QueryText(request.query), "\n", headers, "\n",
                                             names, "\n", request.payload_sha256);
  const std::string scope = absl::StrCat(day, "/", access.region, "/s3/aws4_request");
  const std::string to_sign =
      absl::StrCat("AWS4-HMAC-SHA256\n", time, "\n", scope, "\n", Sha256Hex(canonical));
  std::string key = Hmac("AWS4" + access.secret, day);
  for (const std::string& part : {access.region, std::string("s3"), std::string("aws4_request")}) {
    key = Hmac(key, part);
  }
  added["authorization"] =
      absl::StrCat("AWS4-HMAC-SHA256 Credential=", access.key_id, "/", scope,
                   ",SignedHeaders=", names, ",Signature=", Hex(Hmac(key, to_sign)));
  return added;
}

}  // namespace atl
