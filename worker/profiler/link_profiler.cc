#include "worker/profiler/link_profiler.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

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

// Seconds until the acknowledgement of a message of so many bytes.
absl::StatusOr<double> Probe(PeerLink& link, const NodeId& peer,
                             const std::shared_ptr<std::vector<std::byte>>& bytes, int64_t size,
                             Duration timeout) {
  // Both ends share the std::promise: the link may call back after the wait has timed out.
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

// Seconds that so many bytes take until the other end has said that it has them.
using TimeBytes = std::function<absl::StatusOr<double>(int64_t size)>;

// Times one link; exists as long as that takes.
class LinkTimer {
 public:
  LinkTimer(const NodeId& from, const NodeId& to, TimeBytes time, const LinkProfileOptions& options)
      : from_(from), to_(to), time_(std::move(time)), options_(options) {}

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
    profile.from = from_;
    profile.to = to_;
    // Both directions are taken to last equally long.
    profile.latency_ns = static_cast<int64_t>(fit.latency_s / 2 * 1e9);
    profile.times = TimesBySize(times, fit.latency_s / 2, fit.latency_s / 2);
    profile.bandwidth_bytes_per_s = fit.bytes_per_s;
    profile.residual_ratio = fit.residual_ratio;
    profile.samples = static_cast<int64_t>(times.size());
    return profile;
  }

 private:
  // Until messages go at the rate of the link; returns the largest size that is worth timing.
  absl::StatusOr<int64_t> WarmUp() {
    ATOLL_ASSIGN_OR_RETURN(const double smallest_s, MeasureStableTime(kSmallest));
    const double enough_s = Seconds(options_.long_enough);
    // A sender finds a link's rate in whole round trips in which it always has something to send.
    const double warm_s = std::max(enough_s, 2 * smallest_s);
    int64_t size = std::min(kFirstWarm, options_.bytes_max);
    for (;;) {
      ATOLL_ASSIGN_OR_RETURN(const double seconds, MeasureStableTime(size));
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
  absl::StatusOr<double> MeasureStableTime(int64_t size) {
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

  absl::StatusOr<double> Time(int64_t size) { return time_(size); }

  const NodeId& from_;
  const NodeId& to_;
  const TimeBytes time_;
  const LinkProfileOptions& options_;
};

void Add(absl::StatusOr<LinkProfile> profile, const NodeId& to, LinksFound& found) {
  if (profile.ok()) {
    found.links.push_back(*std::move(profile));
  } else {
    found.failed.push_back({to, std::string(profile.status().message())});
  }
}

constexpr Duration kTryAgain = std::chrono::milliseconds(100);

// A worker that takes samples of us; it may not have its request yet.
absl::StatusOr<std::unique_ptr<PeerSampler>> AwaitSampler(const PeerLink& link,
                                                          const IslandMember& member, int edge,
                                                          Duration limit) {
  const Instant deadline = SteadyNow() + limit;
  for (;;) {
    auto sampler = link.Sample(member, edge, deadline - SteadyNow());
    absl::Status status = sampler.status();
    if (status.ok()) {
      status = (*sampler)->Time(kSmallest, std::max(deadline - SteadyNow(), kTryAgain)).status();
    }
    if (status.ok()) return sampler;
    if (!absl::IsPermissionDenied(status) || SteadyNow() + kTryAgain >= deadline) return status;
    std::this_thread::sleep_for(kTryAgain);
  }
}

absl::StatusOr<LinkProfile> Sampled(const PeerLink& link, const IslandMember& member, int edge,
                                    const LinkProfileOptions& options, Duration connect_limit) {
  ATOLL_ASSIGN_OR_RETURN(const auto sampler, AwaitSampler(link, member, edge, connect_limit));
  const auto time = [&](int64_t size) { return sampler->Time(size, options.message_timeout); };
  return LinkTimer(link.name(), member.worker, time, options).Profile();
}

// Adds an edge to the link: large messages go over all edges at once, small ones over the first. No
// message's time is one edge's any more.
void AddEdge(const LinkProfile& edge, LinkProfile& sum) {
  sum.bandwidth_bytes_per_s += edge.bandwidth_bytes_per_s;
  sum.residual_ratio = std::max(sum.residual_ratio, edge.residual_ratio);
  sum.samples += edge.samples;
  sum.times.clear();
}

}  // namespace

LinksFound ProfileLinks(PeerLink& link, const std::vector<NodeId>& peers,
                        const LinkProfileOptions& options) {
  LinksFound found;
  const auto bytes =
      std::make_shared<std::vector<std::byte>>(static_cast<size_t>(options.bytes_max));
  for (size_t i = 0; i < peers.size(); ++i) {
    if (options.progress) options.progress(i, peers.size(), peers[i]);
    const auto time = [&](int64_t size) {
      return Probe(link, peers[i], bytes, size, options.message_timeout);
    };
    Add(LinkTimer(link.name(), peers[i], time, options).Profile(), peers[i], found);
  }
  return found;
}

LinksFound ProfileLinksDuringSteps(const PeerLink& link, const std::vector<IslandMember>& members,
                                   const LinkProfileOptions& options, Duration connect_limit) {
  LinksFound found;
  for (size_t i = 0; i < members.size(); ++i) {
    const NodeId& to = members[i].worker;
    if (options.progress) options.progress(i, members.size(), to);
    absl::StatusOr<LinkProfile> profile = Sampled(link, members[i], 0, options, connect_limit);
    for (int edge = 1; edge < link.EdgesTo(members[i]) && profile.ok(); ++edge) {
      const auto more = Sampled(link, members[i], edge, options, connect_limit);
      if (more.ok()) AddEdge(*more, *profile);  // else the link goes without it, too
    }
    Add(std::move(profile), to, found);
  }
  return found;
}

bool IsProbe(absl::string_view header) { return header == kProbe; }

}  // namespace atl::worker
