// atoll-worker of a party that pushes other values than it trained: its pseudo-gradient times
// $ATOLL_PUSH_FACTOR. -1 turns the sign, 10 scales, and -0.5 pulls the merged update back with a
// norm like others': the inner product with theirs is negative.
//
// The linker puts HostileReadAll in the place of OuterState::ReadAll (--wrap): the product has no
// such switch. bench/islands/trial.py checks by the log that it did.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "worker/outer/outer_state.h"

namespace atl::worker {
namespace {

using Shards = std::vector<ShardPlacement>;

float GetFactor() {
  const char* text = std::getenv("ATOLL_PUSH_FACTOR");
  const double factor = text == nullptr ? NAN : std::strtod(text, nullptr);
  if (!std::isfinite(factor)) {
    std::fprintf(stderr, "hostile-worker: ATOLL_PUSH_FACTOR must be a number, such as -1\n");
    std::exit(2);
  }
  return static_cast<float>(factor);
}

}  // namespace

// Members, as the compiler calls them: where the answer is, the object, arguments.
absl::Status RealReadAll(OuterState* outer, const Shards& shards,
                         const OuterState::ReadParameters& read) asm("__real_" READ_ALL);
absl::Status HostileReadAll(OuterState* outer, const Shards& shards,
                            const OuterState::ReadParameters& read) asm("__wrap_" READ_ALL);

absl::Status HostileReadAll(OuterState* outer, const Shards& shards,
                            const OuterState::ReadParameters& read) {
  static const float factor = GetFactor();
  if (outer->tag().base == kNoVersion) return RealReadAll(outer, shards, read);
  static std::once_flag once;
  std::call_once(once, [] {
    std::fprintf(stderr, "hostile-worker pushes its pseudo-gradient times %g\n", factor);
  });
  return RealReadAll(outer, shards,
                     [&](int32_t layer, ElementRange range, std::span<float> out) -> absl::Status {
                       ATOLL_RETURN_IF_ERROR(read(layer, range, out));
                       std::vector<float> base(out.size());
                       ATOLL_RETURN_IF_ERROR(outer->Read(OuterKind::kBase, layer, range, base));
                       for (size_t i = 0; i < out.size(); ++i)
                         out[i] = base[i] - factor * (base[i] - out[i]);
                       return absl::OkStatus();
                     });
}

}  // namespace atl::worker
