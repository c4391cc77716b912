// NCCL made of threads, for tests: groups of fake devices, whose streams wait for each other as
// GPUs do. Sums are in the order of ranks.

#ifndef ATOLL_KERNELS_TESTING_FAKE_NCCL_H_
#define ATOLL_KERNELS_TESTING_FAKE_NCCL_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/nccl_api.h"
#include "kernels/testing/fake_device.h"

namespace atl::testing {

class FakeNccl final : public NcclApi {
 public:
  // `reports_aborts`: members are notified when one of theirs aborts, as NCCL does over sockets;
  // without, as within a host, they wait for ever.
  explicit FakeNccl(bool reports_aborts) : reports_aborts_(reports_aborts) {}

  int groups() const;  // ids made so far

  absl::StatusOr<std::string> NewId() override;
  absl::StatusOr<Member> Begin(Backend& backend, const NcclGroup& group) override;
  absl::StatusOr<bool> IsEnqueued(Member member) override;
  absl::Status AllReduce(Member member, Backend& backend, Stream& stream, const Tensor& x,
                         bool sum) override;
  absl::Status ReduceScatter(Member member, Backend& backend, Stream& stream, const Tensor& x,
                             const Cuts& cuts) override;
  absl::Status AllGather(Member member, Backend& backend, Stream& stream, const Tensor& x,
                         const Cuts& cuts) override;
  absl::Status Send(Member member, Backend& backend, Stream& stream, const Tensor& x,
                    int to) override;
  absl::Status Receive(Member member, Backend& backend, Stream& stream, const Tensor& x,
                       int from) override;
  void Abort(Member member) override;

 private:
  struct Group;
  struct Joined;

  absl::Status Together(Member member, Backend& backend, Stream& stream, const Tensor& x,
                        std::function<void(const std::vector<Tensor>&)> all);

  const bool reports_aborts_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Group>> groups_;  // guarded by mutex_
};

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_FAKE_NCCL_H_
