// The base of backends that compute on the host: memory, and streams that are always idle because
// every operation runs inside its call.

#ifndef ATOLL_KERNELS_HOST_BACKEND_H_
#define ATOLL_KERNELS_HOST_BACKEND_H_

#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/memory_ledger.h"

namespace atl {

class HostBackend : public Backend {
 public:
  // `limit_bytes`: of all buffers together but AllocateHost's, which are no device's; 0: no bound.
  HostBackend(const std::string& name, int64_t limit_bytes) : ledger_(name, limit_bytes) {}

  bool Supports(DType compute) const override { return compute == DType::kFloat32; }
  bool memory_on_host() const override { return true; }

  absl::StatusOr<Buffer> Allocate(int64_t bytes) override;
  absl::StatusOr<Buffer> AllocateHost(int64_t bytes) override;
  MemoryUse Memory() const override { return ledger_.use(); }
  void ForgetPeak() override { ledger_.ForgetPeak(); }
  void CopyToDevice(Stream& stream, const Tensor& to, const void* host) override;
  void CopyToHost(Stream& stream, void* host, const Tensor& from) override;
  void Zero(Stream& stream, const Tensor& x) override;

  absl::StatusOr<std::unique_ptr<Stream>> NewStream() override;
  absl::StatusOr<std::unique_ptr<Event>> NewEvent() override;
  absl::StatusOr<std::unique_ptr<Event>> NewTimedEvent() override;
  Duration Elapsed(const Event& from, const Event& to) const override;
  void Record(Stream&, Event& event) override;
  void Wait(Stream&, const Event&) override {}
  bool Passed(const Event&) const override { return true; }
  absl::Status Synchronize(Stream&) override { return absl::OkStatus(); }

  // Operations too rare or too small to be worth a second version.
  using Backend::Run;
  void Run(Stream&, const ClipScale& op) override;
  void Run(Stream&, const RouteForward& op) override;
  void Run(Stream&, const CountExperts& op) override;
  void Run(Stream&, const RouteBackward& op) override;
  void Run(Stream&, const BalanceExperts& op) override;
  void Run(Stream&, const GroupTokens& op) override;

 private:
  void Free(void* data, bool on_host) override;

  MemoryLedger ledger_;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_HOST_BACKEND_H_
