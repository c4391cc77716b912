#include "kernels/host_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "common/bytes_text.h"
#include "common/machine/limits.h"

namespace atl {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = 2 << 20;

int64_t ContiguousBytes(const Tensor& x) {
  ATOLL_CHECK(x.contiguous(), "only contiguous tensors are copied");
  return x.size() * GetElementSize(x.dtype);
}

// Null: there is no memory. Large buffers are streamed through: huge pages save their address
// translations.
void* Get(int64_t bytes) {
  ATOLL_CHECK(bytes >= 0, "a buffer of ", bytes, " bytes");
  const int64_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  void* data = nullptr;
  if (bytes > INT64_MAX - kHugePage ||
      posix_memalign(&data, alignment, bytes == 0 ? 1 : bytes) != 0) {
    return nullptr;
  }
  if (alignment == kHugePage) madvise(data, bytes, MADV_HUGEPAGE);  // advice only
  return data;
}

}  // namespace

absl::StatusOr<Buffer> HostBackend::Allocate(int64_t bytes) {
  ATOLL_RETURN_IF_ERROR(ledger_.Take(bytes));
  void* const data = Get(bytes);
  if (data == nullptr) {
    return ledger_.Refused(
        bytes, std::min(int64_t{sysconf(_SC_AVPHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)},
                        ReadFreeMemory()));
  }
  ledger_.Placed(data, bytes);
  return Buffer(this, data, bytes, /*on_host=*/false);
}

absl::StatusOr<Buffer> HostBackend::AllocateHost(int64_t bytes) {
  void* const data = Get(bytes);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: no ", BytesText(bytes), " of host memory"));
  }
  return Buffer(this, data, bytes, /*on_host=*/true);
}

void HostBackend::Free(void* data, bool on_host) {
  if (!on_host) ledger_.GiveBack(data);
  std::free(data);
}

void HostBackend::CopyToDevice(Stream&, const Tensor& to, const void* host) {
  std::memcpy(to.data, host, ContiguousBytes(to));
}

void HostBackend::CopyToHost(Stream&, void* host, const Tensor& from) {
  std::memcpy(host, from.data, ContiguousBytes(from));
}

void HostBackend::Zero(Stream&, const Tensor& x) { std::memset(x.data, 0, ContiguousBytes(x)); }

absl::StatusOr<std::unique_ptr<Stream>> HostBackend::NewStream() {
  return std::make_unique<Stream>();
}

absl::StatusOr<std::unique_ptr<Event>> HostBackend::NewEvent() { return std::make_unique<Event>(); }

namespace {

class TimedEvent final : public Event {
 public:
  std::chrono::steady_clock::time_point at;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Event>> HostBackend::NewTimedEvent() {
  return std::make_unique<TimedEvent>();
}

Duration HostBackend::Elapsed(const Event& from, const Event& to) const {
  return dynamic_cast<const TimedEvent&>(to).at - dynamic_cast<const TimedEvent&>(from).at;
}

void HostBackend::Record(Stream&, Event& event) {
  if (auto* timed = dynamic_cast<TimedEvent*>(&event)) timed->at = std::chrono::steady_clock::now();
}

namespace {

template <typename Real>
void FindClipScale(const ClipScale& op) {
  const double norm = std::sqrt(static_cast<double>(*op.sum_of_squares.as<Real>()));
  *op.scale.as<Real>() = static_cast<Real>(std::min(1.0, op.max_norm / (norm + 1e-6)));
}

}  // namespace

void HostBackend::Run(Stream&, const ClipScale& op) {
  op.Check();
  op.scale.dtype == DType::kFloat64 ? FindClipScale<double>(op) : FindClipScale<float>(op);
}

}  // namespace atl
