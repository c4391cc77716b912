#include "kernels/host_backend.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace atl {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = 2 << 20;

int64_t ContiguousBytes(const Tensor& x) {
  ATOLL_CHECK(x.contiguous(), "only contiguous tensors are copied");
  return x.size() * SizeOf(x.dtype);
}

}  // namespace

absl::StatusOr<Buffer> HostBackend::Allocate(int64_t bytes) {
  ATOLL_CHECK(bytes >= 0, "a buffer of ", bytes, " bytes");
  // Large buffers are streamed through: huge pages save their address translations.
  const int64_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  void* data = nullptr;
  if (bytes > INT64_MAX - kHugePage ||
      posix_memalign(&data, alignment, bytes == 0 ? 1 : bytes) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a buffer of ", bytes, " bytes"));
  }
  if (alignment == kHugePage) madvise(data, bytes, MADV_HUGEPAGE);  // a wish, not a need
  return Buffer(this, data, bytes, /*on_host=*/false);
}

void HostBackend::Free(void* data, bool) { std::free(data); }

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

}  // namespace atl
