// The rates of a tensor link, measured by pushes and pulls of kProbeJob, that no server keeps.

#ifndef ATOLL_COMMON_NET_TENSOR_LINK_PROBE_H_
#define ATOLL_COMMON_NET_TENSOR_LINK_PROBE_H_

#include <memory>
#include <vector>

#include "common/net/tensor/tensor_client.h"

namespace atl {

struct LinkRates {
  double push_bytes_per_s = 0;
  double pull_bytes_per_s = 0;
};

// Pushes and pulls tensors that double in size, one at a time, for about `limit` in each direction,
// and returns the highest rates. A transfer ends after 4 times `limit`: then the error says which.
// DATA_LOSS: packets as large as the path's ends allow get lost, while small ones arrive.
// Blocks. Not on the client's network thread.
absl::StatusOr<LinkRates> MeasureLink(TensorClient& client, const ServerAddress& server,
                                      Duration limit);

// Returns kProbeElementsMax numbers that a compressing tunnel does not shrink.
std::shared_ptr<const std::vector<float>> MakeProbeValues();

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_LINK_PROBE_H_
