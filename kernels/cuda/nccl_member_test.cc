// Members of NCCL's groups keep the contract of kernels/communicator.h, with threads in NCCL's
// place and devices whose streams work later.

#include <atomic>
#include <catch2/catch.hpp>
#include <latch>
#include <thread>
#include <vector>

#include "common/event_loop.h"
#include "kernels/cuda/nccl_api.h"
#include "kernels/testing/communicator_cases.h"
#include "kernels/testing/fake_nccl.h"
#include "kernels/testing/on_device.h"
#include "kernels/testing/reference/reference.h"

namespace atl::testing {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs
constexpr Duration kShort = std::chrono::milliseconds(60);

// An NCCL that can stop taking in anything more, and then releases no member before the test says
// so.
class StuckNccl final : public NcclApi {
 public:
  void Stick() { stuck_ = true; }
  void AwaitCaller() { called_.wait(); }
  void LetGo() { let_go_.count_down(); }

  absl::StatusOr<std::string> NewId() override { return inner_.NewId(); }
  absl::StatusOr<Member> Begin(Backend& backend, const NcclGroup& group) override {
    return inner_.Begin(backend, group);
  }
  absl::StatusOr<bool> IsEnqueued(Member member) override {
    if (!stuck_) return inner_.IsEnqueued(member);
    if (!seen_.exchange(true)) called_.count_down();
    return false;
  }
  absl::Status AllReduce(Member member, Backend& backend, Stream& stream, const Tensor& x,
                         bool sum) override {
    return inner_.AllReduce(member, backend, stream, x, sum);
  }
  absl::Status ReduceScatter(Member member, Backend& backend, Stream& stream, const Tensor& x,
                             const Cuts& cuts) override {
    return inner_.ReduceScatter(member, backend, stream, x, cuts);
  }
  absl::Status AllGather(Member member, Backend& backend, Stream& stream, const Tensor& x,
                         const Cuts& cuts) override {
    return inner_.AllGather(member, backend, stream, x, cuts);
  }
  absl::Status Send(Member member, Backend& backend, Stream& stream, const Tensor& x,
                    int to) override {
    return inner_.Send(member, backend, stream, x, to);
  }
  absl::Status Receive(Member member, Backend& backend, Stream& stream, const Tensor& x,
                       int from) override {
    return inner_.Receive(member, backend, stream, x, from);
  }
  void Abort(Member member) override {
    if (stuck_) let_go_.wait();
    inner_.Abort(member);
  }

 private:
  FakeNccl inner_{false};
  std::atomic<bool> stuck_ = false, seen_ = false;
  std::latch called_{1}, let_go_{1};
};

// A device of its own, and a member on it.
struct Gpu : DeviceMember {
  Gpu() {
    const auto device = std::make_shared<FakeDevice>("gpu", NewReferenceBackend);
    below = device;
    backend = device->NewBackend();
    stream = *backend->NewStream();
  }
  absl::Status Join(NcclApi& nccl, const std::string& id, int rank, int size, Duration timeout,
                    std::function<bool()> given_up = nullptr) {
    auto joined =
        JoinNcclBy(nccl, *backend, {"layer/3", id, rank, size, timeout, std::move(given_up)});
    if (joined.ok()) member = *std::move(joined);
    return joined.status();
  }
  template <typename Call>
  absl::Status With(std::vector<float>* values, const Call& call) {
    return DeviceMember::With(
        {values->data(), DType::kFloat32, 1, static_cast<int64_t>(values->size())}, call);
  }
  absl::Status Sum(std::vector<float>* values) {
    return With(values,
                [&](const Tensor& x) { return member->AllReduceSum(*backend, *stream, x); });
  }
};

std::vector<std::unique_ptr<Gpu>> Joined(NcclApi& nccl, int size, Duration timeout) {
  const std::string id = *nccl.NewId();
  std::vector<std::unique_ptr<Gpu>> gpus;
  for (int rank = 0; rank < size; ++rank) gpus.push_back(std::make_unique<Gpu>());
  std::vector<absl::Status> statuses(gpus.size());
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back(
          [&, rank] { statuses[rank] = gpus[rank]->Join(nccl, id, rank, size, timeout); });
    }
  }
  for (const absl::Status& status : statuses) REQUIRE(status.ToString() == "OK");
  return gpus;
}

TEST_CASE("members of NCCL's groups keep the contract of communicators") {
  for (const CommunicatorCase& communicator_case : CommunicatorCases()) {
    DYNAMIC_SECTION(communicator_case.name) {
      FakeNccl nccl(/*reports_aborts=*/true);
      communicator_case.run([&](int size, Duration timeout) {
        Members members;
        for (auto& gpu : Joined(nccl, size, timeout)) {
          members.push_back(std::make_unique<OnDevice>(std::move(*gpu)));
        }
        return members;
      });
    }
  }
}

TEST_CASE("who comes alone waits for the others until the deadline") {
  FakeNccl nccl(true);
  Gpu gpu;
  const absl::Status late = gpu.Join(nccl, *nccl.NewId(), 1, 2, kShort);
  REQUIRE(absl::IsDeadlineExceeded(late));
  REQUIRE(late.message() == "rank 1 of 2 in group layer/3: not all 2 members joined in time");
  REQUIRE(absl::IsInvalidArgument(gpu.Join(nccl, "no id", 0, 2, kShort)));
}

TEST_CASE("a member that comes alone waits no longer than its timeout") {
  FakeNccl nccl(true);
  Gpu gpu;
  std::atomic<bool> given_up = false;
  absl::Status status;
  {
    std::jthread joining([&] {
      status = gpu.Join(nccl, *nccl.NewId(), 0, 2, kLong, [&] { return given_up.load(); });
    });
    given_up = true;
  }
  REQUIRE(absl::IsAborted(status));
}

TEST_CASE("Abort does not wait for NCCL, whatever that does") {
  StuckNccl nccl;
  auto gpus = Joined(nccl, 2, kLong);
  nccl.Stick();
  std::vector<float> x = {1};
  absl::Status status;
  {
    std::jthread sending([&] { status = gpus[0]->Sum(&x); });
    nccl.AwaitCaller();
    // Neither for a call to be taken in nor for NCCL to let its members go.
    for (auto& gpu : gpus) gpu->member->Abort("the peer link lost w2");
    nccl.LetGo();
  }
  REQUIRE(status == absl::AbortedError("the peer link lost w2"));
}

TEST_CASE("sends and receives match by their order") {
  FakeNccl nccl(true);
  auto gpus = Joined(nccl, 2, kLong);
  std::vector<float> first = {1, 2}, second = {3}, got_first(2), got_second(1);
  {
    std::jthread sender([&] {
      const auto send = [&](const Tensor& x) {
        return gpus[0]->member->Send(*gpus[0]->backend, *gpus[0]->stream, x, 1);
      };
      ATOLL_CHECK(gpus[0]->With(&first, send).ok() && gpus[0]->With(&second, send).ok());
    });
    const auto receive = [&](const Tensor& x) {
      return gpus[1]->member->Receive(*gpus[1]->backend, *gpus[1]->stream, x, 0);
    };
    REQUIRE(gpus[1]->With(&got_first, receive).ok());
    REQUIRE(gpus[1]->With(&got_second, receive).ok());
  }
  REQUIRE(got_first == std::vector<float>{1, 2});
  REQUIRE(got_second == std::vector<float>{3});
}

// Within a host no member is notified of a failed one.
TEST_CASE("a silent failure ends at another member's report, or at the deadline") {
  for (const bool reported : {true, false}) {
    CAPTURE(reported);
    FakeNccl nccl(/*reports_aborts=*/false);
    auto gpus = Joined(nccl, 2, reported ? kLong : kShort);
    gpus[1].reset();
    std::vector<float> x = {1};
    absl::Status status;
    {
      std::jthread waiting([&] { status = gpus[0]->Sum(&x); });
      if (reported) gpus[0]->member->Abort("the peer link lost w2");
    }
    CAPTURE(status.ToString());
    if (reported) REQUIRE(status == absl::AbortedError("the peer link lost w2"));
    if (!reported) REQUIRE(absl::IsDeadlineExceeded(status));
    REQUIRE(gpus[0]->Sum(&x) == status);  // the first reason stays
  }
}

TEST_CASE("a receive without a sender ends with the group") {
  FakeNccl nccl(true);
  auto gpus = Joined(nccl, 2, kLong);
  std::vector<float> x = {1};
  absl::Status status;
  {
    std::jthread waiting([&] {
      status = gpus[0]->With(&x, [&](const Tensor& on_device) {
        return gpus[0]->member->Receive(*gpus[0]->backend, *gpus[0]->stream, on_device, 1);
      });
    });
    gpus[1].reset();
  }
  REQUIRE(absl::IsUnavailable(status));
}

}  // namespace
}  // namespace atl::testing
