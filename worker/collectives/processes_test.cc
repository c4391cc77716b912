// Gloo between processes. The test forks before it has any threads.

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "common/event_loop.h"
#include "kernels/reference/reference.h"
#include "worker/collectives/gloo.h"

namespace atl::worker {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs
constexpr int kSize = 3;

// A rendezvous in memory that forked processes share. Keys end in "/rank", which is the slot.
class SharedRendezvous final : public Rendezvous {
 public:
  SharedRendezvous() {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ATOLL_CHECK(memory != MAP_FAILED);
    shared_ = new (memory) Shared;
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared_->mutex, &mutex);
    pthread_condattr_t changed;
    pthread_condattr_init(&changed);
    pthread_condattr_setclock(&changed, CLOCK_MONOTONIC);
    pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&shared_->changed, &changed);
  }
  ~SharedRendezvous() override { munmap(shared_, sizeof(Shared)); }

  absl::Status Set(const std::string& key, const std::string& value) override {
    Slot& slot = GetSlot(key);
    ATOLL_CHECK(value.size() <= sizeof(slot.bytes));
    pthread_mutex_lock(&shared_->mutex);
    std::memcpy(slot.bytes, value.data(), value.size());
    slot.size = value.size();
    pthread_cond_broadcast(&shared_->changed);
    pthread_mutex_unlock(&shared_->mutex);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(const std::string& key, Instant deadline) override {
    Slot& slot = GetSlot(key);
    const int64_t ns = deadline.time_since_epoch().count();
    const timespec until = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    pthread_mutex_lock(&shared_->mutex);
    int late = 0;
    while (slot.size == 0 && late == 0) {
      late = pthread_cond_timedwait(&shared_->changed, &shared_->mutex, &until);
    }
    const std::string value(slot.bytes, slot.size);
    pthread_mutex_unlock(&shared_->mutex);
    if (value.empty()) return absl::DeadlineExceededError(absl::StrCat(key, " is not set"));
    return value;
  }

 private:
  struct Slot {
    size_t size = 0;
    char bytes[4096] = {};
  };
  struct Shared {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Slot slots[kSize];
  };
  Slot& GetSlot(const std::string& key) { return shared_->slots[key.back() - '0']; }

  Shared* shared_;
};

// Runs one member in a process of its own. Its exit status says what it saw.
enum Seen { kAsExpected = 0, kNoGroup, kNoFirstSum, kWrongSum, kNoLoss, kLateLoss };

// `done` is called once the first sum is there, or will not be.
template <typename Done>
Seen LiveAs(int rank, Rendezvous& rendezvous, const Done& done) {
  const auto device = GlooDevice::Create("127.0.0.1", false);
  if (!device.ok()) return kNoGroup;
  const auto member = GlooCommunicator::Create(
      *device, {.name = "group", .rank = rank, .size = kSize, .timeout = kLong});
  if (!member->Join(rendezvous).ok()) return kNoGroup;
  const auto backend = NewReferenceBackend();
  const auto stream = *backend->NewStream();
  std::vector<float> x(100'000, static_cast<float>(rank + 1));
  const Tensor tensor(x.data(), DType::kFloat32, 1, static_cast<int64_t>(x.size()));
  const absl::Status first = member->AllReduceSum(*backend, *stream, tensor);
  done();
  if (!first.ok()) return kNoFirstSum;
  for (const float sum : x) {
    if (sum != 6) return kWrongSum;
  }
  while (rank == kSize - 1) pause();  // until it is killed
  const absl::Status second = member->AllReduceSum(*backend, *stream, tensor);
  if (second.ok()) return kNoLoss;
  return second.code() == absl::StatusCode::kUnavailable ? kAsExpected : kLateLoss;
}

TEST_CASE("processes sum, and learn at once that one of them was killed") {
  SharedRendezvous rendezvous;
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < kSize; ++rank) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      close(pipe_ends[0]);
      _exit(LiveAs(rank, rendezvous, [&] {
        if (write(pipe_ends[1], "!", 1) != 1) _exit(kNoFirstSum);
      }));
    }
    children.push_back(child);
  }
  close(pipe_ends[1]);
  // All have their sum, or have ended.
  char outcome = 0;
  for (int rank = 0; rank < kSize; ++rank) (void)!read(pipe_ends[0], &outcome, 1);
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
  close(pipe_ends[0]);
}

}  // namespace
}  // namespace atl::worker
