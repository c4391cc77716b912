// Who we are to S3, from where AWS's tools take it: environment variables, a web identity, the
// files
// ~/.aws/credentials and ~/.aws/config, a container's endpoint, an EC2 machine's role.

#ifndef ATOLL_COMMON_OBJECT_STORE_CREDENTIALS_H_
#define ATOLL_COMMON_OBJECT_STORE_CREDENTIALS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/object_store/http.h"

namespace atl {

struct S3Access {
  std::string key_id, secret, session_token;
  std::string region = "us-east-1";
  std::string endpoint;        // such as http://localhost:4568; empty: Amazon's of the region
  std::string source;          // of the keys; human-readable
  int64_t expires_unix_s = 0;  // 0: not known

  bool SameKeys(const S3Access& other) const {
    return key_id == other.key_id && secret == other.secret && session_token == other.session_token;
  }
};

// `variable` is getenv, `file` gives a file's text, `fetch` an answer; tests put others in their
// place.
using Variable = std::function<std::optional<std::string>(const std::string& name)>;
using FileText = std::function<std::optional<std::string>(const std::string& path)>;
using Fetch = std::function<absl::StatusOr<WebAnswer>(const WebRequest& request)>;

// Reads, in this order, AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; a web
// identity (AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE, which STS changes into keys); keys or a web
// identity of the profile AWS_PROFILE in the files, also where AWS_SHARED_CREDENTIALS_FILE and
// AWS_CONFIG_FILE say; a container's endpoint (AWS_CONTAINER_CREDENTIALS_FULL_URI or
// _RELATIVE_URI); the role of an EC2 machine, unless AWS_EC2_METADATA_DISABLED is true. Besides:
// AWS_REGION (or AWS_DEFAULT_REGION), AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL_STS (or
// AWS_ENDPOINT_URL). UNAUTHENTICATED: there is no key, or the profile has one of a kind that is not
// supported, which it names.
absl::StatusOr<S3Access> FindS3Access(const Variable& variable, const FileText& file,
                                      const Fetch& fetch = {});

// From this process's environment. Keys that a service has given are kept until 5 minutes before
// their end, and fetched again before that only where `anew`, at most every 10 seconds.
absl::StatusOr<S3Access> FindS3Access(bool anew = false);

// Keys that are read again before they end, and once they are refused. Thread-safe.
class S3Keys {
 public:
  // `find` reads them (`anew`: what was fetched, too); absent: they stay. `unix_seconds`: absent,
  // the system's clock.
  using Find = std::function<absl::StatusOr<S3Access>(bool anew)>;
  S3Keys(S3Access access, Find find, std::function<int64_t()> unix_seconds);

  // Reads them again when a minute has passed, or they end within 5. Those before where that fails.
  S3Access Get();

  // Returns whether there are keys other than `refused`, which a server did not accept.
  bool Renew(const S3Access& refused);

 private:
  int64_t Now() const;
  // REQUIRES: mutex_ is held.
  void Read(bool anew);

  const Find find_;
  const std::function<int64_t()> unix_seconds_;
  std::mutex mutex_;
  S3Access access_;
  int64_t read_at_ = 0;
};

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_CREDENTIALS_H_
