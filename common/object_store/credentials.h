// Who we are to S3, from where AWS's tools take it: environment variables, then the files
// ~/.aws/credentials and ~/.aws/config.

#ifndef ATOLL_COMMON_OBJECT_STORE_CREDENTIALS_H_
#define ATOLL_COMMON_OBJECT_STORE_CREDENTIALS_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace atl {

struct S3Access {
  std::string key_id, secret, session_token;
  std::string region = "us-east-1";
  std::string endpoint;  // such as http://localhost:4568; empty: Amazon's of the region
};

// Reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION (or
// AWS_DEFAULT_REGION), AWS_ENDPOINT_URL_S3 (or AWS_ENDPOINT_URL), AWS_PROFILE, and the files, also
// where AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE say. UNAUTHENTICATED: there is no key.
// `variable` is getenv, `file` gives a file's text; tests put others in their place.
using Variable = std::function<std::optional<std::string>(const std::string& name)>;
using FileText = std::function<std::optional<std::string>(const std::string& path)>;
absl::StatusOr<S3Access> FindS3Access(const Variable& variable, const FileText& file);

// From this process's environment.
absl::StatusOr<S3Access> FindS3Access();

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_CREDENTIALS_H_
