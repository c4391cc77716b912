// How long sealing and opening take by themselves, without any link.

#ifndef ATOLL_BENCH_SEAL_RATE_H_
#define ATOLL_BENCH_SEAL_RATE_H_

#include <algorithm>
#include <thread>
#include <vector>

#include "bench/measure.h"
#include "common/check.h"
#include "common/net/seal.h"

namespace atl::bench {

struct SealSeconds {
  double seal = 0;
  double open = 0;
};

// Times the sealing of `bytes` on each of `threads` at once, a chunk at a time, with the cipher
// that links use here.
inline SealSeconds TimeSealing(int threads, int64_t bytes, int64_t chunk_bytes) {
  const SealKey key{HasAes() ? SealCipher::kAes256Gcm : SealCipher::kChaCha20Poly1305, {1, 2, 3}};
  const auto count = static_cast<size_t>(std::max<int64_t>(1, bytes / chunk_bytes));
  const auto size = static_cast<size_t>(bytes) / count;
  struct Memory {
    std::vector<std::byte> plain, sealed, opened;
    std::vector<std::string> tags;
  };
  std::vector<Memory> memory(threads);
  for (Memory& each : memory) {
    each.plain.assign(count * size, std::byte{7});
    each.sealed = each.opened = each.plain;
    each.tags.resize(count);
  }
  const auto on_all = [&](const auto& work) {
    return MeasureSeconds([&] {
      std::vector<std::jthread> running;
      for (Memory& each : memory) {
        running.emplace_back([&] {
          for (size_t i = 0; i < count; ++i) work(each, i);
        });
      }
    });
  };
  SealSeconds seconds;
  seconds.seal = on_all([&](Memory& each, size_t i) {
    each.tags[i] = Seal(key, i, "header", std::span(each.plain).subspan(i * size, size),
                        &each.sealed[i * size]);
  });
  seconds.open = on_all([&](Memory& each, size_t i) {
    ATOLL_CHECK(Open(key, i, "header", std::span(each.sealed).subspan(i * size, size), each.tags[i],
                     &each.opened[i * size]));
  });
  return seconds;
}

}  // namespace atl::bench

#endif  // ATOLL_BENCH_SEAL_RATE_H_
