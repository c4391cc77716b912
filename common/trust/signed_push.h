// The leader of an island signs a contribution, so that neither its island, nor a server,
// nor the coordinator can say later that it sent something else: which job and version it is of,
// the data that it was trained on, and every byte that is pushed. Pure.

#ifndef ATOLL_COMMON_TRUST_SIGNED_PUSH_H_
#define ATOLL_COMMON_TRUST_SIGNED_PUSH_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"

namespace atl {

inline constexpr size_t kDigestBytes = 32;

// The digest of a part's bytes as they are pushed, and of how they are to be read.
std::string DigestPart(Encoding encoding, std::span<const std::byte> bytes);

// Returns the digest of all that is pushed, and of the tokens that its experts' weights go by;
// `parts` are sorted by shard and begin.
std::string DigestPush(const std::vector<PartDigest>& parts,
                       const std::vector<int64_t>& expert_tokens);

// The text that is signed, one fact a line; `signature` without its signature and key.
std::string MakeSignedText(const JobId& job, const ContributionId& contribution,
                           const std::vector<PositionRange>& consumed,
                           const PushSignature& signature);

// Completes the request by digest and signature. An error: the key cannot sign.
absl::Status SignPush(const std::string& key_pem, PushRequest* request);

}  // namespace atl

#endif  // ATOLL_COMMON_TRUST_SIGNED_PUSH_H_
