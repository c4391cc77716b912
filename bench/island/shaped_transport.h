// Emulated links between the devices of one process: messages take as long as they would over links
// of a given latency and bandwidth.

#ifndef ATOLL_BENCH_ISLAND_SHAPED_TRANSPORT_H_
#define ATOLL_BENCH_ISLAND_SHAPED_TRANSPORT_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/island/shared_link_scheduler.h"
#include "worker/pipeline/local_transport.h"
#include "worker/pipeline/testing/local_communicators.h"

namespace atl::bench {

struct Link {
  double latency_s = 0;
  double bytes_per_s = 0;
};

// The link that all messages from one device to another share with those of the same name. An empty
// name: no shared link, messages arrive at once.
struct SharedLink {
  std::string name;
  Link shape;
};
using LinkLookup = std::function<SharedLink(const std::string& from, const std::string& to)>;

// A link is shared as TCP connections share one: messages from one worker to another are one
// connection, which carries one message after the other; all that have something to send get the
// same part of the bandwidth. The last byte arrives a latency after it has left.
class ShapedTransport : public worker::Transport {
 public:
  ShapedTransport(LinkLookup lookup, int64_t max_bytes);
  ~ShapedTransport() override;

  // Workers follow the plan's send order on shared links, as those of worker/island do. Their
  // scheduler's messages arrive at once.
  void UseSendOrder(const IslandPlan& plan);

  absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                    Backend& backend, Stream& stream, const Tensor& payload) override;
  bool Arrived(const std::string& device, const MessageTag& tag) override {
    return inner_.Arrived(device, tag);
  }
  void Wait(const std::string& device, std::span<const MessageTag> tags,
            Instant deadline) override {
    inner_.Wait(device, tags, deadline);
  }
  absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                       Stream& stream, const Tensor& into, Instant deadline) override {
    return inner_.Receive(device, tag, backend, stream, into, deadline);
  }
  absl::Status SendVotes(const std::string& from, const std::string& to, const VoteTag& tag,
                         const std::vector<double>& votes) override;
  absl::StatusOr<std::vector<double>> ReceiveVotes(const std::string& device, const VoteTag& tag,
                                                   Instant deadline) override {
    return inner_.ReceiveVotes(device, tag, deadline);
  }
  void Abort(const std::string& reason) override { inner_.Abort(reason); }
  void Reset() override { inner_.Reset(); }
  std::vector<worker::Transfer> TakeTransfers(const std::string& from,
                                              const std::string& to) override;

 private:
  struct InFlightMessage {
    std::string from, to;
    int64_t bytes = 0;
    std::function<void()> arrive;
    std::optional<bool> gradient;  // absent: commit votes
    double seconds = 0;            // from the first byte's departure to the last one's arrival
  };

  using Left = std::function<void()>;
  struct QueuedMessage {
    InFlightMessage message;
    double left_bytes;  // to send
    Instant begun;
    Left left;
  };
  struct LinkState {
    Link shape;
    Instant at;  // up to which the queues are played
    std::map<std::pair<NodeId, NodeId>, std::deque<QueuedMessage>>
        queues;  // by connection, not empty
  };

  void Put(const SharedLink& shared_link, InFlightMessage message, Left left);
  static std::optional<Instant> NextDeparture(const LinkState& link);
  void Depart(Instant now, std::vector<Left>* departed);
  void Deliver();

  const LinkLookup lookup_;
  worker::LocalTransport inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, LinkState> links_;             // all below guarded by mutex_
  std::multimap<Instant, InFlightMessage> in_flight_;  // by arrival
  std::map<std::pair<std::string, std::string>, std::deque<worker::Transfer>> arrived_;
  bool stopping_ = false;
  std::map<NodeId, std::unique_ptr<worker::SharedLinkScheduler>>
      schedulers_;  // made before anything is sent
  std::thread thread_;
};

}  // namespace atl::bench

#endif  // ATOLL_BENCH_ISLAND_SHAPED_TRANSPORT_H_
