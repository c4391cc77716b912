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
constexpr int kSizes = 4;  // at least

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

absl::StatusOr<LinkProfile> ProfileLink(PeerLink& link, const NodeId& peer,
                                        const LinkProfileOptions& options) {
  const auto bytes =
      std::make_shared<std::vector<std::byte>>(static_cast<size_t>(options.bytes_max));
  std::vector<TransferTime> times;
  double smallest = 0;  // its quickest time
  int sizes = 0;
  for (int64_t size = 1024; size <= options.bytes_max; size *= 4) {
    double quickest = 1e300;
    const Instant limit = SteadyNow() + options.size_limit;
    for (int run = 0; run <= options.runs && (run <= 2 || SteadyNow() < limit); ++run) {
      ATOLL_ASSIGN_OR_RETURN(const double seconds,
                             Probe(link, peer, bytes, size, options.message_timeout));
      if (run == 0) continue;
      times.push_back({size, seconds});
      quickest = std::min(quickest, seconds);
    }
    if (sizes == 0) smallest = quickest;
    if (++sizes >= kSizes && quickest >= smallest + Seconds(options.long_enough)) break;
  }
  ATOLL_ASSIGN_OR_RETURN(const HockneyFit fit, FitHockney(times));
  LinkProfile profile;
  profile.from = link.name();
  profile.to = peer;
  // Way there and word back: taken to be alike.
  profile.latency_ns = static_cast<int64_t>(fit.latency_s / 2 * 1e9);
  profile.bandwidth_bytes_per_s = fit.bytes_per_s;
  profile.residual_ratio = fit.residual_ratio;
  profile.samples = static_cast<int64_t>(times.size());
  return profile;
}

}  // namespace

LinksFound ProfileLinks(PeerLink& link, const std::vector<NodeId>& peers,
                        const LinkProfileOptions& options) {
  LinksFound found;
  for (size_t i = 0; i < peers.size(); ++i) {
    if (options.progress) options.progress(i, peers.size(), peers[i]);
    auto profile = ProfileLink(link, peers[i], options);
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
