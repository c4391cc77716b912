// All-reduces between processes. The test forks before it has any threads.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/testing/reference/reference.h"
#include "worker/collectives/testing/peer_members.h"

namespace atl::worker {
namespace {

constexpr int kSize = 3;
constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

// Endpoints, as pipes carry them: fewer bytes than a pipe writes at once.
using Endpoint = std::array<char, 64>;

// Both ends of a pipe of fixed-size values.
class Pipe {
 public:
  Pipe() { ATOLL_CHECK(pipe(ends_) == 0); }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  template <class T>
  void Put(const T& value) {
    ATOLL_CHECK(write(ends_[1], &value, sizeof value) == sizeof value);
  }
  template <class T>
  T Take() {
    T value;
    ATOLL_CHECK(read(ends_[0], &value, sizeof value) == sizeof value);
    return value;
  }

 private:
  int ends_[2];
};

// The findings of one member; its process ends with it.
enum Seen { kAsExpected = 0, kNoGroup, kNoFirstSum, kWrongSum, kNoLoss, kLateLoss };

// Runs one member. Announces its endpoint, takes those of all, is made before any other one sums
// (`made`, `begin`), and says when its first sum is there or will not be.
Seen RunMember(int rank, Pipe& announced, Pipe& endpoints, Pipe& made, Pipe& begin, Pipe& summed) {
  testing::PeerWorker worker(absl::StrCat("w", rank), KeyPair());
  Endpoint own = {};
  worker.member.endpoint.copy(own.data(), own.size() - 1);
  announced.Put(own);
  PeerGroup group{.name = "group", .rank = rank, .timeout = kLong};
  std::vector<IslandMember> members;
  for (int other = 0; other < kSize; ++other) {
    members.push_back({absl::StrCat("w", other), 1, endpoints.Take<Endpoint>().data(), ""});
    group.workers.push_back(members.back().worker);
  }
  const bool met = worker.link->SetPeers({"job-1", 1, 1}, members).ok() &&
                   worker.link->AwaitPeers(SteadyNow() + kLong).ok();
  const auto member = NewPeerCommunicator(&worker.blocks, group);
  made.Put('!');
  (void)begin.Take<char>();
  if (!met) {
    summed.Put('!');
    return kNoGroup;
  }
  const auto backend = NewReferenceBackend();
  const auto stream = *backend->NewStream();
  std::vector<float> x(100'000, static_cast<float>(rank + 1));
  const Tensor tensor(x.data(), DType::kFloat32, 1, static_cast<int64_t>(x.size()));
  const absl::Status first = member->AllReduceSum(*backend, *stream, tensor);
  summed.Put('!');
  if (!first.ok()) return kNoFirstSum;
  for (const float sum : x) {
    if (sum != 6) return kWrongSum;
  }
  while (rank == kSize - 1) pause();  // until it is killed
  const absl::Status second = member->AllReduceSum(*backend, *stream, tensor);
  if (second.ok()) return kNoLoss;
  return second.code() == absl::StatusCode::kUnavailable ? kAsExpected : kLateLoss;
}

TEST_CASE("a_killed_process_ends_the_all_reduces_of_the_others") {
  std::array<Pipe, kSize> announced, endpoints;
  Pipe made, begin, summed;
  std::vector<pid_t> children;
  for (int rank = 0; rank < kSize; ++rank) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      _exit(RunMember(rank, announced[rank], endpoints[rank], made, begin, summed));
    }
    children.push_back(child);
  }
  for (Pipe& from : announced) {
    const auto endpoint = from.Take<Endpoint>();
    for (Pipe& to : endpoints) to.Put(endpoint);
  }
  for (int rank = 0; rank < kSize; ++rank) (void)made.Take<char>();
  for (int rank = 0; rank < kSize; ++rank) begin.Put('!');
  for (int rank = 0; rank < kSize; ++rank) (void)summed.Take<char>();
  kill(children.back(), SIGKILL);
  for (int rank = 0; rank < kSize; ++rank) {
    int status = 0;
    REQUIRE(waitpid(children[rank], &status, 0) == children[rank]);
    CAPTURE(rank);
    if (rank == kSize - 1) {
      REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    } else {
      REQUIRE(WIFEXITED(status));
      REQUIRE(WEXITSTATUS(status) == kAsExpected);
    }
  }
}

}  // namespace
}  // namespace atl::worker
