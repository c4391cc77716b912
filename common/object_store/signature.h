// AWS Signature Version 4, for S3.

#ifndef ATOLL_COMMON_OBJECT_STORE_SIGNATURE_H_
#define ATOLL_COMMON_OBJECT_STORE_SIGNATURE_H_

#include <openssl/evp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/files.h"
#include "common/object_store/credentials.h"

namespace atl {

struct S3Request {
  std::string method;                          // "GET"
  std::string host;                            // with its port, where that is not the usual one
  std::string path;                            // "/bucket/name", not yet escaped
  std::map<std::string, std::string> query;    // likewise
  std::map<std::string, std::string> headers;  // more of them, names in lower case
  std::string payload_sha256;                  // in hexadecimal
};

// The headers to send beside the request's own: authorization, x-amz-date, x-amz-content-sha256
// and, with temporary credentials, x-amz-security-token. `unix_seconds`: now.
std::map<std::string, std::string> SignS3(const S3Request& request, const S3Access& access,
                                          int64_t unix_seconds);

// Each byte as %XX but letters, digits and "-._~"; '/' too where `keep_slash`.
std::string UriEscape(std::string_view text, bool keep_slash);

// "a=b&c=" of the query, as it is signed and sent.
std::string QueryText(const std::map<std::string, std::string>& query);

// A digest of bytes that are added, by OpenSSL.
class ByteDigest {
 public:
  explicit ByteDigest(const EVP_MD* kind) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    ATOLL_CHECK(EVP_DigestInit_ex(context_.get(), kind, nullptr) == 1);
  }
  void Add(ByteSpan bytes) {
    ATOLL_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }
  std::string Finish();  // its bytes

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

std::string DigestBytes(const EVP_MD* kind, std::span<const ByteSpan> buffers);
std::string Sha256Hex(std::span<const ByteSpan> buffers);

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_SIGNATURE_H_
