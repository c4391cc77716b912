// Messages of another worker end at most the step.

#include <catch2/catch.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "tests/island/transport_pairs.h"
#include "worker/island/messages/wire.h"

namespace atl::worker {
namespace {

// A device that gets messages from another worker's, through a queue that the test fills.
struct Receiver {
  explicit Receiver(const std::string& nccl, int64_t max_bytes = 1 << 20, Duration timeout = kLong)
      : queue(max_bytes), transport(&queue, timeout) {
    Add(transport, "b/0", b);
    Prepare(transport, MakeTwoStagePlan("a/0", "b/0", nccl));
  }
  void Deliver(int32_t micro_batch, const std::vector<int64_t>& content) {
    const auto owner = std::make_shared<std::vector<int64_t>>(content);
    queue.Deliver("a/0", "b/0", Activation(micro_batch), DType::kFloat32,
                  std::as_bytes(std::span(*owner)), owner);
  }
  // Announces one float as NCCL does.
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
  PairedDevice b{true};
  DeviceTransport transport;
};

TEST_CASE("a failure of the host transport ends the waits of devices, with its reason") {
  constexpr int64_t kTooFew = LocalTransport::kMessageCost + 15;
  Receiver receiver("", kTooFew);
  std::string why;
  {
    std::jthread waiting([&] { why = receiver.End(); });
    receiver.Deliver(0, {1, 2});
  }
  REQUIRE_THAT(why, Catch::StartsWith(absl::StrCat("messages that were not received hold 0 of ",
                                                   kTooFew, " bytes")));
  REQUIRE(receiver.transport.Arrived("b/0", Activation(3)));  // it would fail at once
  // Not the next plan's concern.
  Prepare(receiver.transport, MakeTwoStagePlan("a/0", "b/0", ""));
  REQUIRE_FALSE(receiver.transport.Arrived("b/0", Activation(3)));
}

// A communicator whose other end has always sent.
class AlwaysSentCommunicator final : public Communicator {
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
    receiver.transport.UsePair("b/0", {"a/0 > b/0", "a/0", "b/0"},
                               std::make_unique<AlwaysSentCommunicator>());
    for (const int m : {0, 1, 2, 4, 5}) receiver.Announce(m, m < 3 ? m : m - 1);
    REQUIRE_THAT(receiver.End(),
                 Catch::EndsWith("all 4 blocks hold messages that were not received"));
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
  PeerTransport transport("b", 1 << 20, [](const NodeId&, const SharedLinkCall&) {});
  const auto admits = [&](const MessageTag& tag, const std::string& from = "a/0",
                          const std::string& to = "b/0", int64_t epoch = 7) {
    return transport
        .Admit(WorkerFromDevice(from), Serialize(TensorHeader{tag, from, to, 4, epoch}), 4)
        .ok();
  };
  const auto admits_votes = [&](const VoteTag& tag, int32_t element_bytes,
                                const std::string& to = "b/0") {
    return transport.Admit("a", Serialize(TensorHeader{tag, "a/0", to, element_bytes, 7}), 8).ok();
  };
  transport.BeginEpoch(7);
  transport.Reset();
  REQUIRE_FALSE(admits(Activation(0)));  // there is no plan
  transport.SetPlan(MakeTwoStagePlan("a/0", "b/0", ""));
  REQUIRE(admits(Activation(0)));
  REQUIRE(admits(Activation(3)));
  REQUIRE_FALSE(admits(Activation(4)));
  REQUIRE_FALSE(admits(Activation(-1)));
  REQUIRE_FALSE(admits(Activation(0), "a/1"));
  REQUIRE_FALSE(admits(Activation(0), "a/0", "b/1"));
  REQUIRE_FALSE(admits(Activation(0), "c/0"));
  REQUIRE_FALSE(admits(Activation(0), "a/0", "b/0", 6));
  REQUIRE_FALSE(admits(Activation(0), "a/0", "b/0", 8));
  const auto changed = [&](const auto& change) {
    MessageTag tag = Activation(0);
    change(tag);
    return admits(tag);
  };
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.replica = 1; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.rank = 1; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.stage = 0; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.stage = 2; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.stage = INT32_MAX, tag.gradient = true; }));
  REQUIRE_FALSE(changed([](MessageTag& tag) { tag.stage = -1; }));
  // The sender's commit votes, and not another one's.
  REQUIRE(admits_votes({1, 0}, 8));
  REQUIRE_FALSE(admits_votes({1, 0}, 4));
  REQUIRE_FALSE(admits_votes({1, 0}, 8, "b/1"));
  for (const int32_t sender : {-1, 1, 2}) {
    REQUIRE_FALSE(admits_votes({1, sender}, 8));
  }
}

}  // namespace
}  // namespace atl::worker
