#include "coordinator/simulator/transport.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace atl::sim {
namespace {

// Rounds up to whole nanoseconds, forgiving the last bits of a product.
Nanos CeilNs(double ns) { return static_cast<Nanos>(std::ceil(ns - 1e-6)); }

}  // namespace

Transport::Transport(const Network& network, EventQueue& events, std::vector<MessageSpan>* record)
    : network_(network),
      events_(events),
      record_(record),
      links_(network.links.size()),
      lanes_(static_cast<size_t>(network.lanes)),
      trunk_free_ns_(network.trunks.size(), 0) {
  for (size_t i = 0; i < links_.size(); ++i) {
    const Link& link = network.links[i];
    LinkState& state = links_[i];
    bool trunks = false;
    for (const Edge& edge : link.edges) trunks = trunks || !edge.trunks.empty();
    state.bytes_per_ns = link.edges[0].bytes_per_s * 1e-9;
    state.edge_free_ns.assign(link.edges.size(), 0);
    state.service = link.lane >= 0           ? Service::kLane
                    : trunks                 ? Service::kQueued
                    : link.edges.size() == 1 ? Service::kPrivate
                                             : Service::kPrivateSplit;
  }
}

void Transport::Send(Nanos now, int link, int64_t bytes, uint64_t token, uint64_t send_priority,
                     const MessageSpan& span) {
  LinkState& state = links_[link];
  // A split transfer's parts have their own effective bytes (PlanSplit).
  const std::vector<Edge>& edges = network_.links[link].edges;
  const auto own = static_cast<double>(bytes);
  const double carried = edges.size() == 1 ? EffectiveBytes(edges[0].sizes, own) : own;
  Waiting message{send_priority, next_sequence_++, link, carried, token, -1};
  if (record_ != nullptr) {
    message.record = static_cast<int>(record_->size());
    record_->push_back(span);
    record_->back().ready_ns = now;
  }
  switch (state.service) {
    case Service::kPrivate:
    case Service::kPrivateSplit:
      Start(now, message);
      break;
    case Service::kQueued:
      state.queue.push_back(message);
      if (!state.busy) StartNext(now, link);
      break;
    case Service::kLane: {
      const int lane = network_.links[link].lane;
      LaneState& turnstile = lanes_[lane];
      turnstile.heap.push_back(message);
      std::push_heap(turnstile.heap.begin(), turnstile.heap.end(), Later());
      if (!turnstile.dirty) dirty_lanes_.push_back(lane);
      turnstile.dirty = true;
      break;
    }
  }
}

void Transport::Handle(Nanos now, const Event& event) {
  switch (event.kind) {
    case EventKind::kLinkFree:
      StartNext(now, static_cast<int>(event.token));
      break;
    case EventKind::kLaneFree: {
      LaneState& lane = lanes_[event.token];
      lane.busy = false;
      if (!lane.dirty) dirty_lanes_.push_back(static_cast<int>(event.token));
      lane.dirty = true;
      break;
    }
    default:
      ATOLL_CHECK(false, "not the transport's event");
  }
}

void Transport::EndOfInstant(Nanos now) {
  for (size_t i = 0; i < dirty_lanes_.size(); ++i) {
    lanes_[dirty_lanes_[i]].dirty = false;
    StartLane(now, dirty_lanes_[i]);
  }
  dirty_lanes_.clear();
}

void Transport::StartNext(Nanos now, int link) {
  LinkState& state = links_[link];
  state.busy = state.head < state.queue.size();
  if (!state.busy) {
    state.queue.clear();
    state.head = 0;
    return;
  }
  const Waiting message = state.queue[state.head++];
  Start(now, message);
}

void Transport::StartLane(Nanos now, int lane) {
  LaneState& turnstile = lanes_[lane];
  if (turnstile.busy || turnstile.heap.empty()) return;
  std::pop_heap(turnstile.heap.begin(), turnstile.heap.end(), Later());
  const Waiting message = turnstile.heap.back();
  turnstile.heap.pop_back();
  turnstile.busy = true;
  Start(now, message);
}

void Transport::Start(Nanos now, const Waiting& message) {
  LinkState& state = links_[message.link];
  const Link& link = network_.links[message.link];
  if (state.service == Service::kPrivate) {  // most links: only the link's own latency
    const Nanos start_ns = std::max(now, state.free_ns);
    const Nanos sent_ns = start_ns + CeilNs(message.bytes / state.bytes_per_ns);
    if (record_ != nullptr) (*record_)[message.record].start_ns = start_ns;
    Sent(sent_ns, sent_ns + link.edges[0].latency_ns, message);
    state.free_ns = sent_ns;
    return;
  }
  Commit(link.edges.size() > 1 ? PlanSplit(now, message) : Plan(now, message), message);
}

Transport::Transfer Transport::Plan(Nanos now, const Waiting& message) const {
  const LinkState& state = links_[message.link];
  const Edge& edge = network_.links[message.link].edges[0];
  Transfer transfer;
  transfer.start_ns = std::max(now, state.free_ns);
  if (edge.trunks.empty()) {
    transfer.sent_ns = transfer.start_ns + CeilNs(message.bytes / state.bytes_per_ns);
  } else {
    for (const int t : edge.trunks) {
      transfer.start_ns = std::max(transfer.start_ns, trunk_free_ns_[t]);
    }
    transfer.sent_ns = Serialise(edge, transfer.start_ns, message.bytes);
  }
  transfer.arrive_ns = transfer.sent_ns + edge.latency_ns;
  return transfer;
}

Transport::Transfer Transport::PlanSplit(Nanos now, const Waiting& message) const {
  const LinkState& state = links_[message.link];
  const Link& link = network_.links[message.link];
  std::vector<EdgeOffer> offers;
  std::vector<Nanos> starts;
  for (size_t e = 0; e < link.edges.size(); ++e) {
    const Edge& edge = link.edges[e];
    Nanos start_ns = std::max({now, state.free_ns, state.edge_free_ns[e]});
    double rate = edge.bytes_per_s * 1e-9;
    for (const int t : edge.trunks) {
      start_ns = std::max(start_ns, trunk_free_ns_[t]);
      rate = std::min(rate, TrunkRate(t, start_ns));
    }
    starts.push_back(start_ns);
    // During an outage an edge offers next to nothing rather than a division by zero.
    offers.push_back({static_cast<double>(start_ns - now + edge.latency_ns), std::max(rate, 1e-12),
                      edge.conflict_set, edge.sizes.get()});
  }
  Split split = SplitTransfer(message.bytes, offers);
  Transfer transfer;
  transfer.start_ns = transfer.sent_ns = now;
  // Without bytes no edge carries anything, but the message still takes the quickest edge's
  // latency.
  transfer.arrive_ns = message.bytes > 0 ? now : now + CeilNs(split.arrival_ns);
  transfer.left_ns.assign(link.edges.size(), 0);
  for (size_t e = 0; e < link.edges.size(); ++e) {
    if (split.bytes[e] <= 0) continue;
    const Edge& edge = link.edges[e];
    transfer.left_ns[e] = Serialise(edge, starts[e], EffectiveBytes(edge.sizes, split.bytes[e]));
    transfer.sent_ns = std::max(transfer.sent_ns, transfer.left_ns[e]);
    transfer.arrive_ns = std::max(transfer.arrive_ns, transfer.left_ns[e] + edge.latency_ns);
  }
  transfer.bytes = std::move(split.bytes);
  return transfer;
}

void Transport::Commit(const Transfer& transfer, const Waiting& message) {
  LinkState& state = links_[message.link];
  const Link& link = network_.links[message.link];
  if (record_ != nullptr) (*record_)[message.record].start_ns = transfer.start_ns;
  Sent(transfer.sent_ns, transfer.arrive_ns, message);
  if (link.edges.size() == 1) {
    for (const int t : link.edges[0].trunks) trunk_free_ns_[t] = transfer.sent_ns;
    Release(transfer.sent_ns, message.link);
    return;
  }
  for (size_t e = 0; e < link.edges.size(); ++e) {
    if (transfer.bytes[e] <= 0) continue;
    const Edge& edge = link.edges[e];
    for (const int t : edge.trunks) trunk_free_ns_[t] = transfer.left_ns[e];
    for (size_t other = 0; other < link.edges.size(); ++other) {
      const bool excluded =
          edge.conflict_set >= 0 && link.edges[other].conflict_set == edge.conflict_set;
      if (other == e || excluded) state.edge_free_ns[other] = transfer.left_ns[e];
    }
  }
  if (state.service != Service::kPrivateSplit) Release(transfer.sent_ns, message.link);
}

void Transport::Sent(Nanos sent_ns, Nanos arrive_ns, const Waiting& message) {
  events_.Push(arrive_ns, EventKind::kArrive, message.token);
  if (record_ != nullptr) {
    (*record_)[message.record].sent_ns = sent_ns;
    (*record_)[message.record].arrive_ns = arrive_ns;
  }
}

void Transport::Release(Nanos free_ns, int link) {
  LinkState& state = links_[link];
  if (state.service == Service::kLane) {
    events_.Push(free_ns, EventKind::kLaneFree, network_.links[link].lane);
  } else if (state.service == Service::kQueued) {
    events_.Push(free_ns, EventKind::kLinkFree, link);
  } else {
    state.free_ns = free_ns;
  }
}

double Transport::TrunkRate(int trunk, Nanos now) const {
  const Trunk& t = network_.trunks[trunk];
  const auto after =
      std::upper_bound(t.trace.begin(), t.trace.end(), now,
                       [](Nanos n, const BandwidthStep& s) { return n < s.from_ns; });
  return (after == t.trace.begin() ? t.bytes_per_s : std::prev(after)->bytes_per_s) * 1e-9;
}

Nanos Transport::Serialise(const Edge& edge, Nanos start_ns, double bytes) const {
  Nanos at = start_ns;
  while (true) {
    double rate = edge.bytes_per_s * 1e-9;
    Nanos until = kForever;
    for (const int t : edge.trunks) {
      rate = std::min(rate, TrunkRate(t, at));
      for (const BandwidthStep& step : network_.trunks[t].trace) {
        if (step.from_ns > at) until = std::min(until, step.from_ns);
      }
    }
    const double span = static_cast<double>(until - at);
    if (until == kForever || bytes <= rate * span) return at + CeilNs(bytes / rate);
    bytes -= rate * span;
    at = until;
  }
}

}  // namespace atl::sim
