#include "worker/profiler/link_profiler.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "worker/profiler/hockney.h"

namespace atl::worker {
namespace {

constexpr absl::string_view kProbe = "probe";
constexpr int64_t kSmallest = 1024;
constexpr int64_t kFirstWarm = int64_t{64} << 10;
constexpr int kWarmRuns = 8;    // of each size, at most
constexpr int64_t kShrink = 8;  // from one counted size to the next

struct Outcome {
  absl::Status status;
  Duration took{0};
};

// Seconds until we hear that a message of so many bytes has arrived.
absl::StatusOr<double> Probe(PeerLink& link, const NodeId& peer,
                             const std::shared_ptr<std::vector<std::byte>>& bytes, int64_t size,
                             Duration timeout) {
  // Both ends share the promise: the link may call back after we have given up.
  const auto promise = std::make_shared<std::promise<Outcome>>();
  std::future<Outcome> future = promise->get_future();
  PeerMessage message;
  message.channel = PeerChannel::kTensor;
  message.header = std::string(kProbe);
  message.payload = std::span(*bytes).first(static_cast<size_t>(size));
  message.owner = bytes;
  const Instant start = SteadyNow();
  message.arrived = [promise, start](absl::Status status, PeerTiming) {
    promise->set_value({std::move(status), SteadyNow() - start});
  };
  ATOLL_RETURN_IF_ERROR(link.Send(peer, std::move(message)));
  if (future.wait_for(timeout) != std::future_status::ready) {
    return absl::DeadlineExceededError(
        absl::StrCat("a message of ", size, " bytes took longer than ", Seconds(timeout), " s"));
  }
  const Outcome outcome = future.get();
  ATOLL_RETURN_IF_ERROR(outcome.status);
  return Seconds(outcome.took);
}

// Times one link; lives as long as that takes.
class LinkTimer {
 public:
  LinkTimer(PeerLink& link, const NodeId& peer, const LinkProfileOptions& options)
      : link_(link),
        peer_(peer),
        options_(options),
        bytes_(std::make_shared<std::vector<std::byte>>(static_cast<size_t>(options.bytes_max))) {}

  absl::StatusOr<LinkProfile> Profile() {
    ATOLL_ASSIGN_OR_RETURN(const int64_t largest, WarmUp());
    std::vector<TransferTime> times;
    for (int64_t size = largest;; size = std::max(kSmallest, size / kShrink)) {
      const Instant limit = SteadyNow() + options_.size_limit;
      for (int run = 0; run < options_.runs && (run < 2 || SteadyNow() < limit); ++run) {
        ATOLL_ASSIGN_OR_RETURN(const double seconds, Time(size));
        times.push_back({size, seconds});
      }
      if (size == kSmallest) break;
    }
    ATOLL_ASSIGN_OR_RETURN(const HockneyFit fit, FitHockney(times));
    LinkProfile profile;
    profile.from = link_.name();
    profile.to = peer_;
    // Way there and word back: taken to be alike.
    profile.latency_ns = static_cast<int64_t>(fit.latency_s / 2 * 1e9);
    profile.bandwidth_bytes_per_s = fit.bytes_per_s;
    profile.residual_ratio = fit.residual_ratio;
    profile.samples = static_cast<int64_t>(times.size());
    return profile;
  }

 private:
  // Until messages go at the rate of the line; returns the largest size that is worth timing.
  absl::StatusOr<int64_t> WarmUp() {
    ATOLL_ASSIGN_OR_RETURN(const double smallest_s, Settled(kSmallest));
    const double enough_s = Seconds(options_.long_enough);
    // A sender finds a line's rate in whole round trips in which it always has something to send.
    const double warm_s = std::max(enough_s, 2 * smallest_s);
    int64_t size = std::min(kFirstWarm, options_.bytes_max);
    for (;;) {
      ATOLL_ASSIGN_OR_RETURN(const double seconds, Settled(size));
      const double more_s = seconds - smallest_s;
      if (more_s >= warm_s || 4 * size > options_.bytes_max) return AsLongAsNeeded(size, more_s);
      size *= 4;
    }
  }

  // A message that takes far longer than is needed may be more than the queues on the way hold, and
  // be measured by what is lost of it.
  int64_t AsLongAsNeeded(int64_t size, double more_s) const {
    for (; size > kFirstWarm && more_s >= 2 * Seconds(options_.long_enough); more_s /= 2) size /= 2;
    return size;
  }

  // The quickest of messages of this size, until another one is hardly quicker.
  absl::StatusOr<double> Settled(int64_t size) {
    const Instant limit = SteadyNow() + options_.size_limit;
    ATOLL_ASSIGN_OR_RETURN(double quickest, Time(size));
    for (int run = 1; run < kWarmRuns; ++run) {
      ATOLL_ASSIGN_OR_RETURN(const double seconds, Time(size));
      const bool same = seconds > 0.95 * quickest;
      quickest = std::min(quickest, seconds);
      if (same || SteadyNow() >= limit) break;
    }
    return quickest;
  }

  absl::StatusOr<double> Time(int64_t size) {
    return Probe(link_, peer_, bytes_, size, options_.message_timeout);
  }

  PeerLink& link_;
  const NodeId& peer_;
  const LinkProfileOptions& options_;
  const std::shared_ptr<std::vector<std::byte>> bytes_;
};

}  // namespace

LinksFound ProfileLinks(PeerLink& link, const std::vector<NodeId>& peers,
                        const LinkProfileOptions& options) {
  LinksFound found;
  for (size_t i = 0; i < peers.size(); ++i) {
    if (options.progress) options.progress(i, peers.size(), peers[i]);
    auto profile = LinkTimer(link, peers[i], options).Profile();
    if (profile.ok()) {
      found.links.push_back(*std::move(profile));
    } else {
      found.failed.push_back({peers[i], std::string(profile.status().message())});
    }
  }
  return found;
}

bool IsProbe(absl::string_view header) { return header == kProbe; }

}  // namespace atl::worker
