// Every transport of messages keeps the same contract.

#include <catch2/catch.hpp>
#include <mutex>

#include "common/event_loop.h"
#include "kernels/testing/fake_device.h"
#include "kernels/testing/gate.h"
#include "tests/island/transport_pairs.h"

namespace atl::worker {
namespace {

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
  PairedDevice a(true), b(true);
  DeviceTransport transport(&queue, kLong);
  Add(transport, "w/0", a);
  Add(transport, "w/1", b);
  Prepare(transport, MakeTwoStagePlan("w/0", "w/1", ""));
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

TEST_CASE("a Send waits for a slow link as long as the plan's steps may take") {
  TwoEnds ends;
  ends.BeginEpoch();
  PairedDevice a(true);
  testing::Gate gate;
  // No patience of its own.
  DeviceTransport transport(&ends.a.transport, Duration(0));
  transport.Add("a/0", a.device.NewBackend([&] { gate.Pass(); }), a.device.NewBackend());
  const Buffer buffer = *a.backend->Allocate(4);
  const Tensor x(buffer.data(), DType::kFloat32, 1, 1);
  a.backend->Zero(*a.stream, x);
  const auto send = [&](int32_t micro_batch) {
    return transport.Send("a/0", "b/0", Activation(micro_batch), *a.backend, *a.stream, x);
  };
  IslandPlan plan = MakeTwoStagePlan("a/0", "b/0", "");
  for (const bool long_steps : {false, true}) {
    plan.step_ns = long_steps ? kLong.count() / 10 : 0;
    Prepare(transport, plan);
    gate.Close();
    for (int m = 0; m < 4; ++m) REQUIRE(send(m).ToString() == "OK");  // all blocks are full
    if (!long_steps) {
      CHECK(send(4) == absl::DeadlineExceededError("messages do not leave a/0 within 0 s"));
    } else {
      std::jthread opens([&] { gate.Open(); });
      CHECK(send(4).ToString() == "OK");
    }
    gate.Open();
  }
}

TEST_CASE("a member that dies in a send by NCCL is forgotten when its failure is reported") {
  NcclPair pair;
  const Endpoint a = pair.a();
  const Buffer buffer = *a.backend->Allocate(4);
  const Tensor x(buffer.data(), DType::kFloat32, 1, 1);
  a.backend->Zero(*a.stream, x);
  // Its end does not get the announcement any more, so nothing is received.
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
  const Endpoint b = pair.b();
  b.transport->Wait(b.device, {&tag, 1}, SteadyNow() + kLong);
  REQUIRE(b.transport->Arrived(b.device, tag));
}

TEST_CASE("what an earlier attempt at a plan has sent reaches no later one") {
  TwoEnds ends;
  const PairedDevice device(false);
  const Buffer buffer = *device.backend->Allocate(4);
  const Tensor x(buffer.data(), DType::kFloat32, 1, 1);
  device.backend->Zero(*device.stream, x);
  const auto send = [&](int32_t micro_batch) {
    return ends.a.transport.Send("a/0", "b/0", Activation(micro_batch), *device.backend,
                                 *device.stream, x);
  };
  ends.BeginEpoch();
  ends.b.transport.Reset();
  REQUIRE(send(0).ok());  // late: the other end has begun anew
  ends.a.transport.Reset();
  REQUIRE(send(1).ok());
  const MessageTag next = Activation(1);  // the link keeps their order
  ends.b.transport.Wait("b/0", {&next, 1}, SteadyNow() + kLong);
  REQUIRE(ends.b.transport.Arrived("b/0", next));
  REQUIRE_FALSE(ends.b.transport.Arrived("b/0", Activation(0)));
}

TEST_CASE("messages are bounded in number, too") {
  LocalTransport queue(3 * LocalTransport::kMessageCost);
  const auto send = [&](int32_t micro_batch) {
    return queue.SendBytes("w/0", "w/1", Activation(micro_batch), DType::kFloat32, {}, nullptr);
  };
  for (int m = 0; m < 3; ++m) REQUIRE(send(m).ok());
  REQUIRE(absl::IsResourceExhausted(send(3)));
  REQUIRE(queue.Take("w/1", Activation(1)).ok());
  REQUIRE(send(3).ok());
}

TEST_CASE("an announcement is no message: links are judged by what goes over them") {
  NcclPair pair;
  const Endpoint a = pair.a(), b = pair.b();
  const Buffer buffer = *a.backend->Allocate(4), received = *b.backend->Allocate(4);
  const Tensor x(buffer.data(), DType::kFloat32, 1, 1), y(received.data(), DType::kFloat32, 1, 1);
  a.backend->Zero(*a.stream, x);
  pair.host_of_a().log().Record(1);
  REQUIRE(a.transport->Send(a.device, b.device, Activation(0), *a.backend, *a.stream, x).ok());
  REQUIRE(
      b.transport->Receive(b.device, Activation(0), *b.backend, *b.stream, y, SteadyNow() + kLong)
          .ok());
  // Traces show what NCCL has carried; had the announcement been logged, it would be there too.
  const std::vector<SentMessage> sent = pair.host_of_a().log().Take(SteadyNow() + kLong);
  REQUIRE(sent.size() == 1);
  REQUIRE(sent[0].there);
  REQUIRE(sent[0].to == "b/0");
  REQUIRE(sent[0].tag == Activation(0));
  REQUIRE(sent[0].bytes == 4);
  REQUIRE(sent[0].ready <= sent[0].start);
  REQUIRE(sent[0].start <= sent[0].arrived);
  REQUIRE(pair.host_of_a().TakeTransfers(a.device, b.device).empty());
  REQUIRE(a.transport->TakeTransfers(a.device, b.device).empty());
}

}  // namespace
}  // namespace atl::worker
