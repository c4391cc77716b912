// NCCL itself, and copies between GPUs, on the GPUs of this machine: what one or two of them can
// show. nccl_member_test has the rest, with threads in NCCL's place.

#include "kernels/cuda/nccl.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <map>
#include <thread>
#include <vector>

#include "common/event_loop.h"
#include "common/rng.h"
#include "kernels/cuda/cuda.h"
#include "kernels/testing/communicator_cases.h"
#include "kernels/testing/on_device.h"
#include "tests/catch/skip.h"

namespace atl::testing {
namespace {

using Floats = std::vector<float>;

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs
// NCCL takes seconds to join; a wait without a result takes so long.
constexpr Duration kShort = std::chrono::seconds(10);

// Returns whether this machine has so many GPUs; the case is skipped otherwise.
bool HasGpus(size_t wanted) {
  const auto devices = CudaDevices();
  if (!devices.ok()) {
    SkipCase(std::string(devices.status().message()));
    return false;
  }
  if (devices->size() >= wanted) return true;
  SkipCase(absl::StrCat(wanted, " GPUs are needed, and there are ", devices->size()));
  return false;
}

Tensor ToTensor(Floats& x) {
  return {x.data(), DType::kFloat32, 1, static_cast<int64_t>(x.size())};
}

// A member on the GPU of its rank.
absl::StatusOr<DeviceMember> Join(const std::string& id, int rank, int size, Duration timeout) {
  DeviceMember made;
  ATOLL_ASSIGN_OR_RETURN(made.backend, NewCudaBackend({.device = std::to_string(rank)}));
  ATOLL_ASSIGN_OR_RETURN(made.stream, made.backend->NewStream());
  NcclGroup group;
  group.name = "test";
  group.id = id;
  group.rank = rank;
  group.size = size;
  group.timeout = timeout;
  ATOLL_ASSIGN_OR_RETURN(made.member, JoinNccl(*made.backend, group));
  return made;
}

absl::Status Sum(DeviceMember& member, Floats& x) {
  return member.With(ToTensor(x), [&](const Tensor& on_device) {
    return member.member->AllReduceSum(*member.backend, *member.stream, on_device);
  });
}

void RequireOk(const absl::Status& status) {
  INFO(status);
  REQUIRE(status.ok());
}

// ---- A member that is killed. First in this file: CUDA does not survive a fork, so the process
// must not have touched it before. ----

// Reads an id, joins as rank 1, sums once, says so, and waits to be killed.
[[noreturn]] void BeKilled(int in, int out) {
  std::string id(128, '\0');
  size_t have = 0;
  while (have < id.size()) {
    const ssize_t got = read(in, id.data() + have, id.size() - have);
    if (got <= 0) _exit(0);  // there are not enough GPUs
    have += static_cast<size_t>(got);
  }
  auto member = Join(id, 1, 2, kLong);
  Floats x = {2};
  const bool fine = member.ok() && Sum(*member, x).ok() && x[0] == 3;
  const char outcome = fine ? 'y' : 'n';
  if (write(out, &outcome, 1) != 1) _exit(1);
  for (;;) pause();
}

TEST_CASE("a collective ends in time after another process was killed") {
  int to_child[2], from_child[2];
  REQUIRE(pipe(to_child) == 0);
  REQUIRE(pipe(from_child) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    close(to_child[1]);
    BeKilled(to_child[0], from_child[1]);
  }
  close(to_child[0]);
  close(from_child[1]);
  if (HasGpus(2)) {
    const auto id = NewNcclId();
    RequireOk(id.status());
    REQUIRE(id->size() == 128);
    REQUIRE(write(to_child[1], id->data(), id->size()) == 128);
    auto member = Join(*id, 0, 2, kShort);
    RequireOk(member.status());
    Floats x = {1};
    RequireOk(Sum(*member, x));
    REQUIRE(x[0] == 3);
    char outcome = 0;
    REQUIRE(read(from_child[0], &outcome, 1) == 1);
    REQUIRE(outcome == 'y');
    kill(child, SIGKILL);
    const absl::Status status = Sum(*member, x);
    INFO(status);
    REQUIRE((absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)));
    REQUIRE(Sum(*member, x) == status);  // the first reason stays
  }
  close(to_child[1]);
  close(from_child[0]);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// ---- One GPU ----

TEST_CASE("a GPU alone is a group") {
  if (!HasGpus(1)) return;
  auto member = Join(*NewNcclId(), 0, 1, kLong);
  RequireOk(member.status());
  Floats x = {1, -2, 3.5f};
  RequireOk(Sum(*member, x));
  REQUIRE(x == Floats{1, -2, 3.5f});
  member->member->Abort("a new plan");
  const absl::Status status = Sum(*member, x);
  REQUIRE(absl::IsAborted(status));
  REQUIRE(status.message() == "a new plan");
}

TEST_CASE("who comes alone waits until the timeout, and the device goes on") {
  if (!HasGpus(1)) return;
  const auto alone = Join(*NewNcclId(), 0, 2, kShort);
  INFO(alone.status());
  REQUIRE(absl::IsDeadlineExceeded(alone.status()));
  auto next = Join(*NewNcclId(), 0, 1, kLong);
  RequireOk(next.status());
  Floats x = {4};
  RequireOk(Sum(*next, x));
  REQUIRE(x[0] == 4);
}

// ---- Two GPUs or more ----

// Differences of NCCL that kernels/cuda/nccl.h states.
const std::map<std::string, std::string>& Otherwise() {
  static const std::map<std::string, std::string> cases = {
      {"sums in f64 and bf16", "bf16 is summed as bf16"},
      {"what is not a finite number passes", "its maximum prefers numbers to NaN"},
      {"a member that is destroyed ends the others' wait at once",
       "within a host no member is notified of a failed one"},
      {"Abort ends waits at once, for good", "within a host no member is notified of a failed one"},
  };
  return cases;
}

Members JoinAll(int size, Duration timeout) {
  const std::string id = *NewNcclId();
  std::vector<absl::StatusOr<DeviceMember>> joined(static_cast<size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] { joined[rank] = Join(id, rank, size, timeout); });
    }
  }
  Members members;
  for (auto& member : joined) {
    RequireOk(member.status());
    members.push_back(std::make_unique<OnDevice>(*std::move(member)));
  }
  return members;
}

TEST_CASE("groups of this machine's GPUs keep the contract of communicators") {
  if (!HasGpus(2)) return;
  const CommunicatorLimits limits{static_cast<int>(CudaDevices()->size()), kShort};
  for (const CommunicatorCase& communicator_case : CommunicatorCases(limits)) {
    if (Otherwise().count(communicator_case.name) > 0) continue;
    DYNAMIC_SECTION(communicator_case.name) { communicator_case.run(JoinAll); }
  }
}

TEST_CASE("a GPU's memory arrives at another GPU as it was") {
  if (!HasGpus(2)) return;
  auto first = NewCudaBackend({.device = "0"}), second = NewCudaBackend({.device = "1"});
  RequireOk(first.status());
  RequireOk(second.status());
  REQUIRE((*second)->CanAccessPeer(**first));
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{3} << 20}) {
    CAPTURE(count);
    Floats sent(count), got(count);
    Rng rng(count);
    for (float& x : sent) x = static_cast<float>(rng.Normal());
    const auto bytes = static_cast<int64_t>(4 * count);
    const auto there = *(*first)->NewStream(), here = *(*second)->NewStream();
    const Buffer from = *(*first)->Allocate(bytes), to = *(*second)->Allocate(bytes);
    const Tensor source(from.data(), DType::kFloat32, 1, static_cast<int64_t>(count));
    const Tensor target(to.data(), DType::kFloat32, 1, static_cast<int64_t>(count));
    (*first)->CopyToDevice(*there, source, sent.data());
    const auto written = *(*first)->NewEvent();
    (*first)->Record(*there, *written);
    (*second)->Wait(*here, *written);
    (*second)->CopyFromPeer(*here, target, **first, source);
    (*second)->CopyToHost(*here, got.data(), target);
    RequireOk((*second)->Synchronize(*here));
    RequireOk((*first)->Synchronize(*there));
    REQUIRE(got == sent);
  }
}

}  // namespace
}  // namespace atl::testing
