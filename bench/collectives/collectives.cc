// Sums over workers: the peer link, in plaintext and encrypted, against Gloo, on loopback. All
// members are threads of this process, and take turns with the members of the other kinds.

#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/measure.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "kernels/reference/reference.h"
#include "worker/collectives/gloo.h"
#include "worker/collectives/testing/peer_members.h"

namespace atl::bench {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);

using Members = std::vector<std::unique_ptr<Communicator>>;

class MapRendezvous final : public worker::Rendezvous {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, Instant deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline - SteadyNow(), [&] { return values_.contains(key); })) {
      return absl::DeadlineExceededError(key);
    }
    return values_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

Members NewGlooMembers(int size) {
  MapRendezvous rendezvous;
  Members members(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto member = worker::GlooCommunicator::Create(
          worker::GlooDevice::Create("127.0.0.1", false).value(),
          {.name = "group", .rank = rank, .size = size, .timeout = kTimeout});
      ATOLL_CHECK(member->Join(rendezvous).ok());
      members[rank] = std::move(member);
    });
  }
  threads.clear();
  return members;
}

// Runs `calls` all-reduces of all members' numbers.
void SumAll(Members& members, std::vector<std::vector<float>>& numbers, int calls) {
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto backend = NewReferenceBackend();
      const auto stream = backend->NewStream().value();
      const Tensor x(numbers[rank].data(), DType::kFloat32, 1,
                     static_cast<int64_t>(numbers[rank].size()));
      for (int call = 0; call < calls; ++call) {
        ATOLL_CHECK(members[rank]->AllReduceSum(*backend, *stream, x).ok());
      }
    });
  }
}

struct Row {
  double plain = 0;  // speeds against Gloo
  double sealed = 0;
};

Row Measure(int size, int64_t bytes) {
  Members gloo = NewGlooMembers(size);
  Members plain = worker::testing::NewPeerMembers(size, kTimeout, false);
  Members sealed = worker::testing::NewPeerMembers(size, kTimeout, true);
  std::vector<std::vector<float>> numbers(size, std::vector<float>(bytes / 4));
  const int calls = static_cast<int>(std::max<int64_t>(1, (8 << 20) / bytes));
  const auto run = [&](Members& members) {
    return [&numbers, &members, calls] { SumAll(members, numbers, calls); };
  };
  constexpr int kRounds = 15;
  const Comparison by_plain = Compare(run(gloo), run(plain), kRounds);
  const Comparison by_sealed = Compare(run(gloo), run(sealed), kRounds);
  const auto rate = [&](double seconds) { return 1e-6 * calls * bytes / seconds; };
  std::printf("%7d %9lld kB %9.0f %9.0f %9.0f   %9.2f %9.2f\n", size,
              static_cast<long long>(bytes >> 10), rate(by_sealed.base_seconds),
              rate(by_plain.work_seconds), rate(by_sealed.work_seconds), by_plain.speed,
              by_sealed.speed);
  std::fflush(stdout);
  return {by_plain.speed, by_sealed.speed};
}

void Run() {
  std::printf("Sums over workers on loopback, MB/s of a member's tensor\n");
  std::printf("workers      tensor      Gloo     plain encrypted   plain/Gloo encrypted/Gloo\n");
  double plain = 1e9, sealed = 1e9;
  for (const int size : {2, 4}) {
    for (const int64_t bytes : {int64_t{4} << 10, int64_t{1} << 20, int64_t{32} << 20}) {
      const Row row = Measure(size, bytes);
      if (bytes < (1 << 20)) continue;
      plain = std::min(plain, row.plain);
      sealed = std::min(sealed, row.sealed);
    }
  }
  PrintFigureAtLeast("collectives.peer_vs_gloo", plain, "ratio", 0.5);
  PrintFigureAtLeast("collectives.encrypted_vs_gloo", sealed, "ratio", 0.2);
}

}  // namespace
}  // namespace atl::bench

int main() { atl::bench::Run(); }
