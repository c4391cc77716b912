// How a coordinator stores who may be in its cluster (TrustRecords of proto/trust.proto), in
// STATE_DIR/trust/registry or in the store that coordinators share: the message, then its SHA-256.

#ifndef ATOLL_COMMON_TRUST_RECORDS_H_
#define ATOLL_COMMON_TRUST_RECORDS_H_

#include <string>

#include "common/status.h"
#include "proto/trust.pb.h"

namespace atl {

absl::StatusOr<std::string> EncodeTrustRecords(const v1::TrustRecords& records);

// DATA_LOSS, which names `where`: they are damaged.
absl::StatusOr<v1::TrustRecords> DecodeTrustRecords(const std::string& where,
                                                    const std::string& bytes);

// Reads the file; NOT_FOUND: there is none.
absl::StatusOr<v1::TrustRecords> ReadTrustRecords(const std::string& path);

}  // namespace atl

#endif  // ATOLL_COMMON_TRUST_RECORDS_H_
