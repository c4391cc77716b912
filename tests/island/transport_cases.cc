#include "tests/island/transport_cases.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <thread>

#include "common/check.h"
#include "common/event_loop.h"

namespace atl::worker {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs
constexpr Duration kShort = std::chrono::milliseconds(40);

using Floats = std::vector<float>;

MessageTag Tag(int32_t micro_batch, bool gradient = false, int64_t step = 1) {
  MessageTag tag;
  tag.step = step;
  tag.stage = gradient ? 0 : 1;
  tag.micro_batch = micro_batch;
  tag.gradient = gradient;
  return tag;
}

Floats Numbers(size_t count, float first) {
  Floats values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// Puts the values on the device and sends them; the memory is overwritten at once, on the stream.
absl::Status Send(const Endpoint& from, const Endpoint& to, const MessageTag& tag,
                  const Floats& values) {
  ATOLL_ASSIGN_OR_RETURN(const Buffer buffer,
                         from.backend->Allocate(static_cast<int64_t>(4 * values.size())));
  const Tensor x(buffer.data(), DType::kFloat32, 1, static_cast<int64_t>(values.size()));
  from.backend->CopyToDevice(*from.stream, x, values.data());
  const absl::Status sent =
      from.transport->Send(from.device, to.device, tag, *from.backend, *from.stream, x);
  from.backend->Zero(*from.stream, x);
  ATOLL_RETURN_IF_ERROR(from.backend->Synchronize(*from.stream));
  return sent;
}

absl::StatusOr<Floats> Receive(const Endpoint& at, const MessageTag& tag, size_t count,
                               Duration patience = kLong) {
  Floats values(count);
  ATOLL_ASSIGN_OR_RETURN(const Buffer buffer,
                         at.backend->Allocate(static_cast<int64_t>(4 * count)));
  const Tensor x(buffer.data(), DType::kFloat32, 1, static_cast<int64_t>(count));
  ATOLL_RETURN_IF_ERROR(
      at.transport->Receive(at.device, tag, *at.backend, *at.stream, x, SteadyNow() + patience));
  at.backend->CopyToHost(*at.stream, values.data(), x);
  ATOLL_RETURN_IF_ERROR(at.backend->Synchronize(*at.stream));
  return values;
}

void RequireReceived(const Endpoint& at, const MessageTag& tag, const Floats& values) {
  const auto received = Receive(at, tag, values.size());
  INFO(received.status());
  REQUIRE(received.ok());
  REQUIRE(*received == values);
}

void Await(const Endpoint& at, const MessageTag& tag) {
  at.transport->Wait(at.device, {&tag, 1}, SteadyNow() + kLong);
  REQUIRE(at.transport->Arrived(at.device, tag));
}

void InAnyOrder(Pair& pair) {
  for (int m = 0; m < 4; ++m) {
    REQUIRE(Send(pair.a(), pair.b(), Tag(m), Numbers(100 + m, 10.f * m)).ok());
  }
  for (const int m : {2, 0, 3, 1}) {
    RequireReceived(pair.b(), Tag(m), Numbers(100 + m, 10.f * m));
  }
}

void BothWaysAtOnce(Pair& pair) {
  const auto exchange = [](const Endpoint& own, const Endpoint& other, bool gradient) {
    for (int m = 0; m < 4; ++m) {
      ATOLL_CHECK(Send(own, other, Tag(m, gradient), Numbers(kMessageElements, m)).ok());
    }
    for (int m = 0; m < 4; ++m) {
      const auto received = Receive(own, Tag(m, !gradient), kMessageElements);
      ATOLL_CHECK(received.ok() && *received == Numbers(kMessageElements, m));
    }
  };
  std::jthread first([&] { exchange(pair.a(), pair.b(), false); });
  std::jthread second([&] { exchange(pair.b(), pair.a(), true); });
}

// More than any pool or window holds at once, one after the other.
void ManySteps(Pair& pair) {
  std::jthread sender([&] {
    for (int step = 1; step <= 30; ++step) {
      for (int m = 0; m < 4; ++m) {
        ATOLL_CHECK(
            Send(pair.a(), pair.b(), Tag(m, false, step), Numbers(50, 100.f * step + m)).ok());
      }
      // A step's messages are received before the next one's are sent.
      ATOLL_CHECK(Receive(pair.a(), Tag(0, true, step), 1).ok());
    }
  });
  for (int step = 1; step <= 30; ++step) {
    for (int m = 0; m < 4; ++m) {
      RequireReceived(pair.b(), Tag(m, false, step), Numbers(50, 100.f * step + m));
    }
    REQUIRE(Send(pair.b(), pair.a(), Tag(0, true, step), {1}).ok());
  }
}

void ArrivedAndWait(Pair& pair) {
  REQUIRE_FALSE(pair.b().transport->Arrived(pair.b().device, Tag(0)));
  REQUIRE(Send(pair.a(), pair.b(), Tag(1), {1, 2}).ok());
  const std::vector<MessageTag> either = {Tag(0), Tag(1)};
  pair.b().transport->Wait(pair.b().device, either, SteadyNow() + kLong);
  REQUIRE(pair.b().transport->Arrived(pair.b().device, Tag(1)));
  REQUIRE_FALSE(pair.b().transport->Arrived(pair.b().device, Tag(0)));
  RequireReceived(pair.b(), Tag(1), {1, 2});
  REQUIRE_FALSE(pair.b().transport->Arrived(pair.b().device, Tag(1)));
}

void Deadline(Pair& pair) {
  const absl::Status late = Receive(pair.b(), Tag(3), 1, kShort).status();
  REQUIRE(absl::IsDeadlineExceeded(late));
  REQUIRE(late.message().find("micro-batch 3") != absl::string_view::npos);
}

void WrongSize(Pair& pair) {
  REQUIRE(Send(pair.a(), pair.b(), Tag(0), {1, 2, 3}).ok());
  Await(pair.b(), Tag(0));
  REQUIRE(absl::IsInvalidArgument(Receive(pair.b(), Tag(0), 2).status()));
}

void AbortEndsWaits(Pair& pair) {
  absl::Status status;
  {
    std::jthread waiting([&] { status = Receive(pair.b(), Tag(0), 1).status(); });
    pair.b().transport->Abort("a new plan");
  }
  REQUIRE(absl::IsAborted(status));
  REQUIRE(status.message().find("a new plan") != absl::string_view::npos);
  REQUIRE(pair.b().transport->Arrived(pair.b().device, Tag(0)));  // it would fail at once
}

void ResetForgets(Pair& pair) {
  REQUIRE(Send(pair.a(), pair.b(), Tag(0), {1}).ok());
  REQUIRE(Send(pair.a(), pair.b(), Tag(1), {2}).ok());
  Await(pair.b(), Tag(0));
  pair.a().transport->Abort("a new plan");
  pair.b().transport->Abort("a new plan");
  pair.Reset();
  REQUIRE_FALSE(pair.b().transport->Arrived(pair.b().device, Tag(0)));
  REQUIRE(Send(pair.a(), pair.b(), Tag(0, false, 9), {7, 8}).ok());
  RequireReceived(pair.b(), Tag(0, false, 9), {7, 8});
}

}  // namespace

std::vector<TransportCase> TransportCases() {
  return {{"messages are identified by their tags, not by their order", InAnyOrder},
          {"both ways at once", BothWaysAtOnce},
          {"many steps", ManySteps},
          {"Arrived looks, Wait waits for any", ArrivedAndWait},
          {"a deadline names what did not come", Deadline},
          {"a message of another size is refused", WrongSize},
          {"Abort ends waits, for good", AbortEndsWaits},
          {"Reset forgets what was not received", ResetForgets}};
}

}  // namespace atl::worker
