#include "common/net/tensor/link_probe.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rng.h"

namespace atl {
namespace {

using Clock = std::chrono::steady_clock;
using Values = std::shared_ptr<const std::vector<float>>;

constexpr int64_t kFirstElements = 16 << 10;  // 64 KiB

// Numbers that a compressing tunnel does not shrink.
Values ProbeValues() {
  Rng rng(1);
  auto values = std::make_shared<std::vector<float>>(kProbeElementsMax);
  for (float& value : *values) value = static_cast<float>(rng.Below(1 << 20));
  return values;
}

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

}  // namespace

absl::StatusOr<LinkRates> MeasureLink(TensorClient& client, const ServerAddress& server,
                                      Duration limit) {
  const Values values = ProbeValues();
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
  LinkRates rates;
  ATOLL_ASSIGN_OR_RETURN(rates.push_bytes_per_s, HighestRate(limit, push));
  ATOLL_ASSIGN_OR_RETURN(rates.pull_bytes_per_s, HighestRate(limit, pull));
  return rates;
}

absl::Status ProbeAnswers::Admit(int64_t element_count) const {
  if (element_count <= kProbeElementsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a probe has at most ", kProbeElementsMax, " elements"));
}

void ProbeAnswers::OnPush(ReplyToken token) const {
  TensorServer* server = server_;
  if (server != nullptr) server->AcknowledgePush(token, PushStatus::kDuplicate);
}

void ProbeAnswers::OnPull(const PullRequest& request, ReplyToken token) {
  TensorServer* server = server_;
  if (server == nullptr) return;
  if (request.begin < 0 || request.elements < 1 ||
      request.begin > kProbeElementsMax - request.elements) {
    return server->RefusePull(token, PullRefusal::kUnknown, kNoVersion,
                              absl::StrCat("a probe has at most ", kProbeElementsMax, " elements"));
  }
  Values values = values_.lock();
  if (values == nullptr) values_ = values = ProbeValues();
  const std::span<const float> part = std::span(*values).subspan(
      static_cast<size_t>(request.begin), static_cast<size_t>(request.elements));
  server->ReplyPull(token, 0, part, std::move(values));
}

}  // namespace atl
