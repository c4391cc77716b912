// The rates of a tensor link, measured by pushes and pulls that no job keeps: of kProbeJob, which
// is no job's id (those end with a number). A server answers from memory, whatever jobs it has.

#ifndef ATOLL_COMMON_NET_TENSOR_LINK_PROBE_H_
#define ATOLL_COMMON_NET_TENSOR_LINK_PROBE_H_

#include <atomic>
#include <memory>
#include <vector>

#include "common/net/tensor/tensor_client.h"
#include "common/net/tensor/tensor_server.h"

namespace atl {

inline constexpr char kProbeJob[] = "link-probe";
inline constexpr int64_t kProbeElementsMax = int64_t{4} << 20;  // 16 MiB

struct LinkRates {
  double push_bytes_per_s = 0;
  double pull_bytes_per_s = 0;
};

// Pushes and pulls tensors that double in size, one at a time, for about `limit` in each direction,
// and returns the highest rates. A transfer ends after 4 times `limit`: then the error says which.
// Blocks. Not on the client's network thread.
absl::StatusOr<LinkRates> MeasureLink(TensorClient& client, const ServerAddress& server,
                                      Duration limit);

// A server's end. Calls come on the server's network thread, but for Serve.
class ProbeAnswers {
 public:
  // Serves probes; before that they get no answer. `server` outlives the calls that follow.
  void Serve(TensorServer* server) { server_ = server; }

  absl::Status Admit(int64_t element_count) const;
  void OnPush(ReplyToken token) const;
  void OnPull(const PullRequest& request, ReplyToken token);

 private:
  std::atomic<TensorServer*> server_ = nullptr;
  std::weak_ptr<const std::vector<float>> values_;  // while a probe uses them
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TENSOR_LINK_PROBE_H_
