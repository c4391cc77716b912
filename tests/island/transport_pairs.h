// Pairs of devices, one for each transport, for the tests of transports.

#ifndef ATOLL_TESTS_ISLAND_TRANSPORT_PAIRS_H_
#define ATOLL_TESTS_ISLAND_TRANSPORT_PAIRS_H_

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/event_loop.h"
#include "kernels/testing/fake_device.h"
#include "kernels/testing/fake_nccl.h"
#include "kernels/testing/reference/reference.h"
#include "tests/island/layouts.h"
#include "tests/island/transport_cases.h"
#include "worker/island/member/peer_transport.h"
#include "worker/pipeline/device_transport.h"
#include "worker/pipeline/local_transport.h"

namespace atl::worker {

inline constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

// Two stages, four micro-batches, on these devices.
inline IslandPlan MakeTwoStagePlan(const std::string& a, const std::string& b,
                                   const std::string& nccl) {
  IslandPlan plan;
  PlanReplica replica;
  replica.stages.resize(2);
  replica.stages[0].devices = {a};
  replica.stages[1].devices = {b};
  replica.micro_batches = 4;
  replica.micro_batch_sequences = 1;
  plan.replicas = {replica};
  for (const std::string& device : {a, b}) {
    const NodeId worker = WorkerFromDevice(device);
    if (!plan.members.empty() && plan.members[0].worker == worker) continue;
    IslandMember member;
    member.worker = worker;
    member.site = "north";
    member.nccl = nccl;
    plan.members.push_back(member);
  }
  return plan;
}

// A backend of the host or of a fake device, and a stream.
struct PairedDevice {
  explicit PairedDevice(bool fake) : device("fake", NewReferenceBackend) {
    backend = fake ? device.NewBackend() : NewReferenceBackend();
    stream = *backend->NewStream();
  }
  Endpoint MakeEndpoint(const std::string& name, Transport* transport) {
    return {name, backend.get(), stream.get(), transport};
  }

  testing::FakeDevice device;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};

// ---- On hosts ----

class LocalPair : public Pair {
 public:
  Endpoint a() override { return a_.MakeEndpoint("w/0", &queue_); }
  Endpoint b() override { return b_.MakeEndpoint("w/1", &queue_); }
  void Reset() override { queue_.Reset(); }

 private:
  LocalTransport queue_{1 << 20};
  PairedDevice a_{false}, b_{false};
};

// A worker's end of a peer link.
class LinkEnd final : private PeerHandler {
 public:
  explicit LinkEnd(const NodeId& worker)
      : transport(worker, 1 << 20,
                  [](const NodeId&, const SharedLinkCall&) { FAIL("no line is shared"); }) {
    PeerLinkOptions options;
    options.name = worker;
    options.incarnation = 1;
    link = PeerLink::Create(std::move(options), this).value();
    transport.Use(link.get());
    transport.SetPlan(MakeTwoStagePlan("a/0", "b/0", ""));
  }
  IslandMember Address() const { return {link->name(), 1, link->endpoint(), ""}; }

  PeerTransport transport;
  std::unique_ptr<PeerLink> link;

 private:
  absl::Status Admit(const NodeId& from, PeerChannel, absl::string_view header,
                     int64_t payload_bytes) override {
    return transport.Admit(from, header, payload_bytes);
  }
  void OnMessage(PeerDelivery delivery) override { transport.OnMessage(std::move(delivery)); }
  void OnPeerLost(const NodeId&, const std::string& reason) override { transport.Abort(reason); }
};

struct TwoEnds {
  TwoEnds() {
    const std::vector<IslandMember> members = {a.Address(), b.Address()};
    for (LinkEnd* end : {&a, &b}) {
      REQUIRE(end->link->SetPeers({"job", 1, 1}, members).ToString() == "OK");
    }
    for (LinkEnd* end : {&a, &b}) {
      REQUIRE(end->link->AwaitPeers(SteadyNow() + kLong).ToString() == "OK");
    }
  }
  // Begins an epoch as members do before they set up a plan: what is still in flight is of another
  // attempt.
  void BeginEpoch() {
    ++epoch_;
    for (LinkEnd* end : {&a, &b}) end->transport.BeginEpoch(epoch_);
  }
  LinkEnd a{"a"}, b{"b"};

 private:
  int64_t epoch_ = 0;
};

class PeerPair : public Pair {
 public:
  Endpoint a() override { return a_.MakeEndpoint("a/0", &ends_.a.transport); }
  Endpoint b() override { return b_.MakeEndpoint("b/0", &ends_.b.transport); }
  void Reset() override {
    ends_.BeginEpoch();
    ends_.a.transport.Reset();
    ends_.b.transport.Reset();
  }

 private:
  TwoEnds ends_;
  PairedDevice a_{false}, b_{false};
};

// ---- On fake devices ----

inline void Add(DeviceTransport& transport, const std::string& name, const PairedDevice& device) {
  transport.Add(name, device.device.NewBackend(), device.device.NewBackend());
}

inline void Prepare(DeviceTransport& transport, const IslandPlan& plan) {
  REQUIRE(transport.Prepare(plan, 4 * kMessageElements).ToString() == "OK");
  transport.Reset();
}

// Two devices of one worker.
class PeerCopyPair : public Pair {
 public:
  PeerCopyPair() {
    Add(transport_, "w/0", a_);
    Add(transport_, "w/1", b_);
    Reset();
    REQUIRE(transport_.DescribeTransport("w/0", "w/1") == "peer copy: GPUs of one worker");
    REQUIRE_FALSE(transport_.Cuts("w/0", "w/1"));
  }
  Endpoint a() override { return a_.MakeEndpoint("w/0", &transport_); }
  Endpoint b() override { return b_.MakeEndpoint("w/1", &transport_); }
  void Reset() override { Prepare(transport_, MakeTwoStagePlan("w/0", "w/1", "")); }

 private:
  LocalTransport queue_{1 << 20};
  PairedDevice a_{true}, b_{true};
  DeviceTransport transport_{&queue_, kLong};
};

// Two workers with a device each, over the peer link; or a device and a CPU.
class LinkedPair : public Pair {
 public:
  explicit LinkedPair(bool to_host) : to_host_(to_host), b_(!to_host) {
    Add(first_, "a/0", a_);
    if (!to_host_) Add(second_, "b/0", b_);
    Reset();
    REQUIRE(first_.DescribeTransport("a/0", "b/0") ==
            "pinned host memory and ZeroMQ: a has no GPUs that NCCL joins");
    REQUIRE(first_.Cuts("a/0", "b/0"));
  }
  Endpoint a() override { return a_.MakeEndpoint("a/0", &first_); }
  Endpoint b() override { return b_.MakeEndpoint("b/0", &second_); }
  void Reset() override {
    ends_.BeginEpoch();
    Prepare(first_, MakeTwoStagePlan("a/0", "b/0", ""));
    Prepare(second_, MakeTwoStagePlan("a/0", "b/0", ""));
  }

 private:
  const bool to_host_;
  TwoEnds ends_;
  PairedDevice a_{true}, b_;
  DeviceTransport first_{&ends_.a.transport, kLong}, second_{&ends_.b.transport, kLong};
};

// Two workers of one site.
class NcclPair : public Pair {
 public:
  NcclPair() {
    Add(first_, "a/0", a_);
    Add(second_, "b/0", b_);
    Reset();
    REQUIRE(second_.DescribeTransport("b/0", "a/0") == "NCCL: GPUs of site north");
  }
  ~NcclPair() override {
    first_.Close();
    second_.Close();
  }
  Endpoint a() override { return a_.MakeEndpoint("a/0", &first_); }
  Endpoint b() override { return b_.MakeEndpoint("b/0", &second_); }
  void Reset() override {
    ends_.BeginEpoch();
    Prepare(first_, MakeTwoStagePlan("a/0", "b/0", "2.27"));
    Prepare(second_, MakeTwoStagePlan("a/0", "b/0", "2.27"));
    // Every device joins its pairs in their order, as an engine has it.
    std::map<std::string, std::string> ids;
    for (const PairGroup& pair : first_.ListPairGroups("a/0")) ids[pair.name] = *nccl_.NewId();
    const auto join = [&](DeviceTransport& transport, const std::string& device, PairedDevice& on) {
      for (const PairGroup& pair : transport.ListPairGroups(device)) {
        const int rank = pair.from == device ? 0 : 1;
        auto made = JoinNcclBy(nccl_, *on.backend, {pair.name, ids[pair.name], rank, 2, kLong});
        ATOLL_CHECK(made.ok(), made.status().ToString());
        transport.UsePair(device, pair, *std::move(made));
      }
    };
    REQUIRE(ids.size() == 2);
    std::jthread one([&] { join(first_, "a/0", a_); });
    std::jthread two([&] { join(second_, "b/0", b_); });
  }
  PeerTransport& host_of_a() { return ends_.a.transport; }

 private:
  // The failure of a member is not reported, as within a host.
  testing::FakeNccl nccl_{/*reports_aborts=*/false};
  TwoEnds ends_;
  PairedDevice a_{true}, b_{true};
  DeviceTransport first_{&ends_.a.transport, kLong, &ends_.a.transport.log()},
      second_{&ends_.b.transport, kLong, &ends_.b.transport.log()};
};

inline MessageTag Activation(int32_t micro_batch) {
  MessageTag tag;
  tag.step = tag.stage = 1;
  tag.micro_batch = micro_batch;
  return tag;
}

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_TRANSPORT_PAIRS_H_
