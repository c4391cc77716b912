// Every way that messages go keeps the same promises.

#include <catch2/catch.hpp>
#include <map>
#include <thread>

#include "common/check.h"
#include "common/event_loop.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/fake_device.h"
#include "kernels/testing/fake_nccl.h"
#include "tests/island/layouts.h"
#include "tests/island/transport_cases.h"
#include "worker/group/peer_transport.h"
#include "worker/group/wire.h"
#include "worker/pipeline/device_transport.h"
#include "worker/pipeline/local_transport.h"

namespace atl::worker {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

// Two stages, four micro-batches, on these devices.
IslandPlan PlanOf(const std::string& a, const std::string& b, const std::string& nccl) {
  IslandPlan plan;
  PlanReplica replica;
  replica.stages.resize(2);
  replica.stages[0].devices = {a};
  replica.stages[1].devices = {b};
  replica.micro_batches = 4;
  replica.micro_batch_sequences = 1;
  plan.replicas = {replica};
  for (const std::string& device : {a, b}) {
    const NodeId worker = WorkerOfDevice(device);
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
struct Device {
  explicit Device(bool fake) : device("fake", NewReferenceBackend) {
    backend = fake ? device.NewBackend() : NewReferenceBackend();
    stream = *backend->NewStream();
  }
  Place PlaceOf(const std::string& name, Transport* transport) {
    return {name, backend.get(), stream.get(), transport};
  }

  testing::FakeDevice device;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};

// ---- On hosts ----

class LocalPair : public Pair {
 public:
  Place a() override { return a_.PlaceOf("w/0", &queue_); }
  Place b() override { return b_.PlaceOf("w/1", &queue_); }
  void Reset() override { queue_.Reset(); }

 private:
  LocalTransport queue_{1 << 20};
  Device a_{false}, b_{false};
};

// A worker's end of a peer link.
class LinkEnd final : private PeerHandler {
 public:
  explicit LinkEnd(const NodeId& worker)
      : transport(worker, 1 << 20,
                  [](const NodeId&, const LineCall&) { FAIL("no line is shared"); }) {
    PeerLinkOptions options;
    options.name = worker;
    options.incarnation = 1;
    link = PeerLink::Create(std::move(options), this).value();
    transport.Use(link.get());
    transport.BeginAt(1);
    transport.SetPlan(PlanOf("a/0", "b/0", ""));
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
  LinkEnd a{"a"}, b{"b"};
};

class PeerPair : public Pair {
 public:
  Place a() override { return a_.PlaceOf("a/0", &ends_.a.transport); }
  Place b() override { return b_.PlaceOf("b/0", &ends_.b.transport); }
  void Reset() override {
    ends_.a.transport.Reset();
    ends_.b.transport.Reset();
  }

 private:
  TwoEnds ends_;
  Device a_{false}, b_{false};
};

// ---- On fake devices ----

void Add(DeviceTransport& transport, const std::string& name, const Device& device) {
  transport.Add(name, device.device.NewBackend(), device.device.NewBackend());
}

void Prepare(DeviceTransport& transport, const IslandPlan& plan) {
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
    REQUIRE(transport_.WayOf("w/0", "w/1") == "peer copy: GPUs of one worker");
    REQUIRE_FALSE(transport_.Cuts("w/0", "w/1"));
  }
  Place a() override { return a_.PlaceOf("w/0", &transport_); }
  Place b() override { return b_.PlaceOf("w/1", &transport_); }
  void Reset() override { Prepare(transport_, PlanOf("w/0", "w/1", "")); }

 private:
  LocalTransport queue_{1 << 20};
  Device a_{true}, b_{true};
  DeviceTransport transport_{&queue_, kLong};
};

// Two workers with a device each, by way of the peer link; or a device and a CPU.
class LinkedPair : public Pair {
 public:
  explicit LinkedPair(bool to_host) : to_host_(to_host), b_(!to_host) {
    Add(first_, "a/0", a_);
    if (!to_host_) Add(second_, "b/0", b_);
    Reset();
    REQUIRE(first_.WayOf("a/0", "b/0") ==
            "pinned host memory and ZeroMQ: a has no GPUs that NCCL joins");
    REQUIRE(first_.Cuts("a/0", "b/0"));
  }
  Place a() override { return a_.PlaceOf("a/0", &first_); }
  Place b() override { return b_.PlaceOf("b/0", &second_); }
  void Reset() override {
    Prepare(first_, PlanOf("a/0", "b/0", ""));
    Prepare(second_, PlanOf("a/0", "b/0", ""));
  }

 private:
  const bool to_host_;
  TwoEnds ends_;
  Device a_{true}, b_;
  DeviceTransport first_{&ends_.a.transport, kLong}, second_{&ends_.b.transport, kLong};
};

// Two workers of one site.
class NcclPair : public Pair {
 public:
  NcclPair() {
    Add(first_, "a/0", a_);
    Add(second_, "b/0", b_);
    Reset();
    REQUIRE(second_.WayOf("b/0", "a/0") == "NCCL: GPUs of site north");
  }
  ~NcclPair() override {
    first_.Close();
    second_.Close();
  }
  Place a() override { return a_.PlaceOf("a/0", &first_); }
  Place b() override { return b_.PlaceOf("b/0", &second_); }
  void Reset() override {
    Prepare(first_, PlanOf("a/0", "b/0", "2.27"));
    Prepare(second_, PlanOf("a/0", "b/0", "2.27"));
    // What an engine does: every device joins its pairs in their order.
    std::map<std::string, std::string> ids;
    for (const PairGroup& pair : first_.PairsOf("a/0")) ids[pair.name] = *nccl_.NewId();
    const auto join = [&](DeviceTransport& transport, const std::string& device, Device& on) {
      for (const PairGroup& pair : transport.PairsOf(device)) {
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
  // Nobody is told of a member that is gone, as within a host.
  testing::FakeNccl nccl_{/*tells_of_the_lost=*/false};
  TwoEnds ends_;
  Device a_{true}, b_{true};
  DeviceTransport first_{&ends_.a.transport, kLong}, second_{&ends_.b.transport, kLong};
};

template <typename Make>
void RunAll(const Make& make) {
  for (const TransportCase& transport_case : TransportCases()) {
    DYNAMIC_SECTION(transport_case.name) {
      const std::unique_ptr<Pair> pair = make();
      transport_case.run(*pair);
    }
  }
}

TEST_CASE("queues within a process") {
  RunAll([] { return std::make_unique<LocalPair>(); });
}
TEST_CASE("the peer link") {
  RunAll([] { return std::make_unique<PeerPair>(); });
}
TEST_CASE("peer copies between devices of one worker") {
  RunAll([] { return std::make_unique<PeerCopyPair>(); });
}
TEST_CASE("devices by way of pinned host memory and the peer link") {
  RunAll([] { return std::make_unique<LinkedPair>(false); });
}
TEST_CASE("a device and a CPU") {
  RunAll([] { return std::make_unique<LinkedPair>(true); });
}
TEST_CASE("NCCL between workers of one site") {
  RunAll([] { return std::make_unique<NcclPair>(); });
}

// ---- What only devices have ----

TEST_CASE("Send does not wait for the device, nor a message for its receiver's stream") {
  LocalTransport queue(1 << 20);
  Device a(true), b(true);
  DeviceTransport transport(&queue, kLong);
  Add(transport, "w/0", a);
  Add(transport, "w/1", b);
  Prepare(transport, PlanOf("w/0", "w/1", ""));
  const Buffer buffer = *a.backend->Allocate(8);
  const Tensor x(buffer.data(), DType::kFloat32, 1, 2);
  std::mutex gate;
  gate.lock();
  testing::EnqueueOnFake(*a.backend, *a.stream, [&] { const std::lock_guard wait(gate); });
  a.backend->Zero(*a.stream, x);
  MessageTag tag;
  tag.step = tag.stage = 1;
  REQUIRE(transport.Send("w/0", "w/1", tag, *a.backend, *a.stream, x).ok());  // the gate is shut
  REQUIRE_FALSE(transport.Arrived("w/1", tag));
  gate.unlock();
  transport.Wait("w/1", {&tag, 1}, SteadyNow() + kLong);
  REQUIRE(transport.Arrived("w/1", tag));
  REQUIRE(a.backend->Synchronize(*a.stream).ok());
}

TEST_CASE("a member that dies in a send by NCCL is forgotten when somebody tells") {
  NcclPair pair;
  const Place a = pair.a();
  const Buffer buffer = *a.backend->Allocate(4);
  const Tensor x(buffer.data(), DType::kFloat32, 1, 1);
  a.backend->Zero(*a.stream, x);
  // Its end hears nothing of the announcement any more, so nobody receives.
  pair.b().transport->Abort("killed");
  MessageTag tag;
  tag.step = tag.stage = 1;
  REQUIRE(a.transport->Send(a.device, "b/0", tag, *a.backend, *a.stream, x).ok());
  a.transport->Abort("the peer link lost b");
  MessageTag gradient;
  gradient.step = 1;
  gradient.gradient = true;
  const absl::Status status =
      a.transport->Receive(a.device, gradient, *a.backend, *a.stream, x, SteadyNow() + kLong);
  REQUIRE(status == absl::AbortedError("the peer link lost b"));
  pair.Reset();  // ends what hung, and begins anew
  REQUIRE(a.transport->Send(a.device, "b/0", tag, *a.backend, *a.stream, x).ok());
  const Place b = pair.b();
  b.transport->Wait(b.device, {&tag, 1}, SteadyNow() + kLong);
  REQUIRE(b.transport->Arrived(b.device, tag));
}

MessageTag Activation(int32_t micro_batch) {
  MessageTag tag;
  tag.step = tag.stage = 1;
  tag.micro_batch = micro_batch;
  return tag;
}

TEST_CASE("an announcement is no message: links are judged by what goes over them") {
  NcclPair pair;
  const Place a = pair.a(), b = pair.b();
  const Buffer buffer = *a.backend->Allocate(4), received = *b.backend->Allocate(4);
  const Tensor x(buffer.data(), DType::kFloat32, 1, 1), y(received.data(), DType::kFloat32, 1, 1);
  a.backend->Zero(*a.stream, x);
  pair.host_of_a().log().Record(1);
  REQUIRE(a.transport->Send(a.device, b.device, Activation(0), *a.backend, *a.stream, x).ok());
  REQUIRE(
      b.transport->Receive(b.device, Activation(0), *b.backend, *b.stream, y, SteadyNow() + kLong)
          .ok());
  // Had it been logged, this would wait until it has been counted too.
  REQUIRE(pair.host_of_a().log().Take(SteadyNow() + kLong).empty());
  REQUIRE(pair.host_of_a().counters().empty());
  REQUIRE(pair.host_of_a().TakeTransfers(a.device, b.device).empty());
  REQUIRE(a.transport->TakeTransfers(a.device, b.device).empty());
}

// ---- What another worker sends ends at most the step ----

// A device that gets messages from another worker's, by way of a queue that the test fills.
struct Receiver {
  explicit Receiver(const std::string& nccl, int64_t max_bytes = 1 << 20, Duration timeout = kLong)
      : queue(max_bytes), transport(&queue, timeout) {
    Add(transport, "b/0", b);
    Prepare(transport, PlanOf("a/0", "b/0", nccl));
  }
  void Deliver(int32_t micro_batch, const std::vector<int64_t>& content) {
    const auto owner = std::make_shared<std::vector<int64_t>>(content);
    queue.Deliver("a/0", "b/0", Activation(micro_batch), DType::kFloat32,
                  std::as_bytes(std::span(*owner)), owner);
  }
  // As NCCL announces one float.
  void Announce(int32_t micro_batch, int64_t number) { Deliver(micro_batch, {number, 1}); }
  // Why it ended.
  std::string End() {
    const Buffer buffer = *b.backend->Allocate(4);
    const absl::Status status =
        transport.Receive("b/0", Activation(3), *b.backend, *b.stream,
                          Tensor(buffer.data(), DType::kFloat32, 1, 1), SteadyNow() + kLong);
    REQUIRE(absl::IsAborted(status));
    return std::string(status.message());
  }

  LocalTransport queue;
  Device b{true};
  DeviceTransport transport;
};

TEST_CASE("what the host transport gives up ends the waits of devices, with its reason") {
  Receiver receiver("", /*max_bytes=*/15);
  std::string why;
  {
    std::jthread waiting([&] { why = receiver.End(); });
    receiver.Deliver(0, {1, 2});
  }
  REQUIRE_THAT(why, Catch::StartsWith("messages that nobody has received hold 0 of 15 bytes"));
  REQUIRE(receiver.transport.Arrived("b/0", Activation(3)));  // it would fail at once
  // Not the next plan's concern.
  Prepare(receiver.transport, PlanOf("a/0", "b/0", ""));
  REQUIRE_FALSE(receiver.transport.Arrived("b/0", Activation(3)));
}

// A communicator whose other end has always sent.
class Giving final : public Communicator {
 public:
  int rank() const override { return 1; }
  int size() const override { return 2; }
  absl::Status AllReduceSum(Backend&, Stream&, const Tensor&) override { return absl::OkStatus(); }
  absl::Status AllReduceMax(Backend&, Stream&, const Tensor&) override { return absl::OkStatus(); }
  absl::Status Receive(Backend&, Stream&, const Tensor&, int) override { return absl::OkStatus(); }
  void Abort(const std::string&) override {}
};

TEST_CASE("announcements that the plan does not have end the step, not the worker") {
  {
    Receiver receiver("2.27");
    receiver.Announce(0, 0);
    REQUIRE_THAT(receiver.End(), Catch::EndsWith("it is announced before its step"));
  }
  {
    Receiver receiver("2.27");
    receiver.Announce(0, 4);
    REQUIRE_THAT(receiver.End(), Catch::EndsWith("more messages are announced than the plan has"));
  }
  {
    Receiver receiver("2.27");
    receiver.Deliver(0, {1});
    REQUIRE_THAT(receiver.End(), Catch::EndsWith("an announcement of another size"));
  }
  {
    Receiver receiver("2.27", 1 << 20, std::chrono::milliseconds(40));
    receiver.transport.UsePair("b/0", {"a/0 > b/0", "a/0", "b/0"}, std::make_unique<Giving>());
    for (const int m : {0, 1, 2, 4, 5}) receiver.Announce(m, m < 3 ? m : m - 1);
    REQUIRE_THAT(receiver.End(),
                 Catch::EndsWith("all 4 blocks hold messages that nobody receives"));
  }
}

TEST_CASE("a message that comes twice ends the step, not the worker") {
  Receiver receiver("");
  receiver.Deliver(0, {1});
  const MessageTag first = Activation(0);
  receiver.transport.Wait("b/0", {&first, 1}, SteadyNow() + kLong);
  receiver.Deliver(0, {1});
  REQUIRE_THAT(receiver.End(), Catch::EndsWith("the message of micro-batch 0 came twice"));

  // Also where the other one is from a device of this worker.
  LocalTransport queue(1 << 20);
  const std::byte byte{};
  queue.Deliver("x/0", "w/1", first, DType::kFloat32, {&byte, 1}, nullptr);
  const absl::Status sent =
      queue.SendBytes("w/0", "w/1", first, DType::kFloat32, {&byte, 1}, nullptr);
  REQUIRE(absl::IsAlreadyExists(sent));
}

TEST_CASE("a worker admits the messages of its plan, and no others") {
  PeerTransport transport("b", 1 << 20, [](const NodeId&, const LineCall&) {});
  const auto admits = [&](const MessageTag& tag, const std::string& from = "a/0",
                          const std::string& to = "b/0") {
    return transport
        .Admit(WorkerOfDevice(from), TensorHeaderOf({tag, from, to, DType::kFloat32}), 4)
        .ok();
  };
  REQUIRE_FALSE(admits(Activation(0)));  // there is no plan
  transport.SetPlan(PlanOf("a/0", "b/0", ""));
  transport.BeginAt(1);
  REQUIRE(admits(Activation(0)));
  REQUIRE(admits(Activation(3)));
  REQUIRE_FALSE(admits(Activation(4)));
  REQUIRE_FALSE(admits(Activation(-1)));
  REQUIRE_FALSE(admits(Activation(0), "a/1"));
  REQUIRE_FALSE(admits(Activation(0), "a/0", "b/1"));
  REQUIRE_FALSE(admits(Activation(0), "c/0"));
  const auto changed = [&](const auto& change) {
    MessageTag tag = Activation(0);
    change(tag);
    return admits(tag);
  };
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.step = 0; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.replica = 1; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.rank = 1; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.stage = 0; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.stage = 2; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.stage = INT32_MAX, tag.gradient = true; }));
  // The sender's word that its step is done, and not another one's.
  REQUIRE(changed([](MessageTag& tag) { tag.stage = kCommitStage; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.stage = kCommitStage, tag.micro_batch = 1; }));
}

}  // namespace
}  // namespace atl::worker
