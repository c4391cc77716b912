#include "common/net/tensor/link_probe.h"

#include <algorithm>
#include <chrono>
#include <future>

#include "absl/strings/str_cat.h"
#include "common/rng.h"

namespace atl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kFirstElements = 16 << 10;  // 64 KiB
constexpr int64_t kSmallElements = 16;        // fit into any packet

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// `transfer(elements, number)` blocks until so many have been transferred.
template <class Transfer>
absl::StatusOr<double> HighestRate(Duration limit, const Transfer& transfer) {
  const Clock::time_point begin = Clock::now();
  double best = 0;
  int64_t elements = kFirstElements;
  for (int64_t number = 0; Clock::now() - begin < limit; ++number) {
    const Clock::time_point sent = Clock::now();
    ATOLL_RETURN_IF_ERROR(transfer(elements, number));
    best = std::max(best, static_cast<double>(elements) * sizeof(float) / SecondsSince(sent));
    elements = std::min(2 * elements, kProbeElementsMax);
  }
  return best;
}

// REQUIRES: a small transfer has just succeeded.
absl::StatusOr<double> NameHole(absl::StatusOr<double> rate) {
  if (!absl::IsDeadlineExceeded(rate.status())) return rate;
  return absl::DataLossError(
      absl::StrCat("small packets arrive, large ones get lost: ", rate.status().message()));
}

}  // namespace

std::shared_ptr<const std::vector<float>> MakeProbeValues() {
  Rng rng(1);
  auto values = std::make_shared<std::vector<float>>(kProbeElementsMax);
  for (float& value : *values) value = static_cast<float>(rng.Below(1 << 20));
  return values;
}

absl::StatusOr<LinkRates> MeasureLink(TensorClient& client, const ServerAddress& server,
                                      Duration limit) {
  const auto values = MakeProbeValues();
  const Duration timeout = 4 * limit;
  const auto push = [&](int64_t elements, int64_t number) {
    auto done = std::make_shared<std::promise<absl::Status>>();
    PushId id{kProbeJob, 0, 1, 1, number, 0};
    client.Push(server, id, Encoding::kFloat32,
                std::span(*values).first(static_cast<size_t>(elements)), values, timeout,
                [done](const PushResult& result) { done->set_value(result.status); });
    return done->get_future().get();
  };
  // Kept by `done`: a pull that has timed out may still be written to.
  const auto buffer = std::make_shared<std::vector<float>>(kProbeElementsMax);
  const auto pull = [&](int64_t elements, int64_t) {
    auto done = std::make_shared<std::promise<absl::Status>>();
    PullRequest request{.job = kProbeJob};
    request.elements = elements;
    client.Pull(server, request, std::span(*buffer).first(static_cast<size_t>(elements)), timeout,
                [done, buffer](const PullResult& result) { done->set_value(result.status); });
    return done->get_future().get();
  };
  // Small ones go first: they would wait behind a lost packet.
  ATOLL_RETURN_IF_ERROR(pull(kSmallElements, 0));
  LinkRates rates;
  ATOLL_ASSIGN_OR_RETURN(rates.push_bytes_per_s, NameHole(HighestRate(limit, push)));
  ATOLL_ASSIGN_OR_RETURN(rates.pull_bytes_per_s, NameHole(HighestRate(limit, pull)));
  return rates;
}

}  // namespace atl
