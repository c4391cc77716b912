// Services that give keys for a time: STS for a web identity, a container's endpoint, and the
// metadata of an EC2 machine.

#ifndef ATOLL_COMMON_OBJECT_STORE_KEY_SERVICES_H_
#define ATOLL_COMMON_OBJECT_STORE_KEY_SERVICES_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/object_store/credentials.h"

namespace atl {

struct WebIdentity {
  std::string role, token_file, session;
  std::string endpoint;  // of STS
};

// UNAUTHENTICATED, which names the service: it gives none. Sets keys, source and end alone.
absl::StatusOr<S3Access> FetchWebIdentityKeys(const WebIdentity& identity, const FileText& file,
                                              const Fetch& fetch);

// `authorization`: of the header of that name; may be empty. INVALID_ARGUMENT: `url` is neither
// https nor of this machine or its link, to which a token may be sent.
absl::StatusOr<S3Access> FetchContainerKeys(const std::string& url,
                                            const std::string& authorization, const Fetch& fetch);

// Reads, by version 2 of the service at `endpoint` the keys of the machine's role. NOT_FOUND: it is
// not there.
absl::StatusOr<S3Access> FetchMachineKeys(const std::string& endpoint, const Fetch& fetch);

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_KEY_SERVICES_H_
