#include "kernels/deltas.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/codecs/codec.h"

namespace atl {
namespace {

// A multiple of every codec's block.
constexpr int64_t kTaskElements = 1 << 16;

// Calls work(begin, elements, first byte) for each task's part of the elements.
template <class Work>
void ForParts(Encoding encoding, int64_t size, ThreadPool& pool, const Work& work) {
  pool.For((size + kTaskElements - 1) / kTaskElements, [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    work(begin, std::min(kTaskElements, size - begin), EncodedBytes(encoding, begin));
  });
}

}  // namespace

void EncodeDelta(Encoding encoding, std::span<const float> delta, std::span<float> residual,
                 std::span<std::byte> out, ThreadPool& pool) {
  const Codec& codec = GetCodec(encoding);
  const auto size = static_cast<int64_t>(delta.size());
  ATOLL_CHECK((residual.empty() || residual.size() == delta.size()) &&
              static_cast<int64_t>(out.size()) == EncodedBytes(encoding, size));
  ForParts(encoding, size, pool, [&](int64_t begin, int64_t count, int64_t byte) {
    codec.encode(delta.data() + begin, residual.empty() ? nullptr : residual.data() + begin,
                 out.data() + byte, count);
  });
}

void DecodeDelta(const DeltaView& delta, std::span<float> out, ThreadPool& pool) {
  const Codec& codec = GetCodec(delta.encoding);
  ATOLL_CHECK(static_cast<int64_t>(out.size()) == delta.size);
  const auto* bytes = static_cast<const std::byte*>(delta.data);
  ForParts(delta.encoding, delta.size, pool, [&](int64_t begin, int64_t count, int64_t byte) {
    codec.decode(bytes + byte, out.data() + begin, count);
  });
}

absl::Status CheckDelta(const DeltaView& delta) {
  if (!IsQuantized(delta.encoding)) return absl::OkStatus();
  return GetCodec(delta.encoding).check(static_cast<const std::byte*>(delta.data), delta.size);
}

}  // namespace atl
