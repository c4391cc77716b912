// Calls of etcd's v3 API. Every attempt of a call has a deadline; a call that an endpoint does not
// answer goes to the next one, in turn, as long as the caller wants.

#ifndef ATOLL_COORDINATOR_ETCD_CLIENT_H_
#define ATOLL_COORDINATOR_ETCD_CLIENT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/control/tls.h"
#include "common/time.h"
#include "coordinator/etcd/api.pb.h"

namespace atl {

// The address of an etcd: "etcd://HOST:PORT,HOST:PORT/PREFIX".
struct EtcdAddress {
  std::vector<std::string> endpoints;
  std::string prefix = "atoll";  // of all keys; clusters that share an etcd have one each
};

absl::StatusOr<EtcdAddress> ParseEtcdAddress(const std::string& url);

class EtcdClient {
 public:
  // Returns whether to try once more.
  using GoOn = std::function<bool()>;

  // Connects at the first call. `tls`: of this end, or empty for plaintext, which is for loopback
  // unless tls.insecure says otherwise. The error names the flag or file.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Open(std::vector<std::string> endpoints,
                                                          const TlsOptions& tls);
  ~EtcdClient();

  // Any thread. Unavailable: no endpoint answered while `go_on` said so (a Txn may have been
  // carried out); ResourceExhausted: etcd has no space.
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request,
                                                    const GoOn& go_on);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                const GoOn& go_on);
  // Try once, at one endpoint; a failure makes the next call go to the next one.
  absl::StatusOr<int64_t> GrantLease(int64_t ttl_s);
  absl::Status RevokeLease(int64_t lease);
  // FailedPrecondition: there is no such lease.
  absl::Status KeepAlive(int64_t lease);

 private:
  struct Endpoint;
  EtcdClient();
  // Makes the call, described by a function of an endpoint and a context, until it has an answer.
  template <class Call>
  absl::Status Attempt(const Call& call, const GoOn& go_on);

  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::atomic<size_t> current_{0};  // index of the endpoint that answered last
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_CLIENT_H_
