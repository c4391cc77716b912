// All-reduces over workers: the peer link, in plaintext and encrypted, against Gloo, on loopback.
// All members are threads of this process, and take turns with the members of the other kinds.
// Gloo (libgloo-dev) is a peer here; the product does not use it.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/collectives/gloo_group.h"
#include "bench/collectives/message_pair.h"
#include "bench/collectives/two_edges.h"
#include "bench/gigabit.h"
#include "bench/measure.h"
#include "bench/seal_rate.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "kernels/testing/reference/reference.h"
#include "worker/collectives/testing/peer_members.h"

namespace atl::bench {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);

using Members = std::vector<std::unique_ptr<Communicator>>;

// Runs `calls` all-reduces of all members' numbers.
void AllReduceAll(Members& members, std::vector<std::vector<float>>& numbers, int calls) {
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

// Medians over rounds, in which all kinds take turns.
struct Row {
  double gloo = 0, plain = 0, sealed = 0;        // seconds of a call
  double plain_vs_gloo = 0, sealed_vs_gloo = 0;  // of the same round: above 1, it is faster
  // Encrypted calls against what they would take if plain ones, sealing and opening went one after
  // the other.
  double sealed_vs_parts = 0;
};

constexpr int kRounds = 15;
constexpr Duration kRowMax = std::chrono::seconds(30);  // then fewer rounds count, 3 at least
constexpr int64_t kChunkBytes = int64_t{512} << 10;     // about those of collectives

Row Measure(int size, int64_t bytes) {
  GlooGroup gloo(size, kTimeout);
  Members plain = worker::testing::NewPeerMembers(size, kTimeout, false);
  Members sealed = worker::testing::NewPeerMembers(size, kTimeout, true);
  std::vector<std::vector<float>> numbers(size, std::vector<float>(bytes / 4));
  const int calls = static_cast<int>(std::clamp<int64_t>((8 << 20) / bytes, 1, 200));
  const auto time = [&](Members& members) {
    return MeasureSeconds([&] { AllReduceAll(members, numbers, calls); }) / calls;
  };
  // A member sends its parts to their owners, and its own result to all others.
  const int64_t sent = 2 * bytes * (size - 1) / size;
  std::vector<double> gloos, plains, seals, by_plain, by_sealed, by_parts;
  const Instant start = SteadyNow();
  for (int round = -1; round < kRounds; ++round) {
    if (round > 2 && SteadyNow() - start > kRowMax) break;
    const double g = MeasureSeconds([&] { gloo.AllReduceAll(numbers, calls); }) / calls;
    const double p = time(plain), s = time(sealed);
    const SealSeconds alone = TimeSealing(size, sent * calls, std::min(sent, kChunkBytes));
    if (round < 0) continue;  // warms up
    const double parts = p + (alone.seal + alone.open) / calls;
    gloos.push_back(g);
    plains.push_back(p);
    seals.push_back(s);
    by_plain.push_back(g / p);
    by_sealed.push_back(g / s);
    by_parts.push_back(parts / s);
  }
  return {Median(gloos),    Median(plains),    Median(seals),
          Median(by_plain), Median(by_sealed), Median(by_parts)};
}

void Print(int size, int64_t bytes, const Row& row) {
  const auto rate = [&](double seconds) { return 1e-6 * static_cast<double>(bytes) / seconds; };
  std::printf("%7d %9lld kB %9.0f %9.0f %9.0f   %10.2f %14.2f %15.2f\n", size,
              static_cast<long long>(bytes >> 10), rate(row.gloo), rate(row.plain),
              rate(row.sealed), row.plain_vs_gloo, row.sealed_vs_gloo, row.sealed_vs_parts);
  std::fflush(stdout);
}

// Encrypted over plain rates where 1 Gbit/s is what limits: medians of rounds in turn. 0: this
// system does not allow such a network.
struct OneGigabit {
  double all_reduce = 0;  // of 8 MB between two workers
  double stages = 0;      // messages of 1 MiB, as activations and gradients go between stages
};

OneGigabit MeasureOneGigabit() {
  if (!EnterGigabitNetwork()) return {};
  constexpr int kGigabitRounds = 7;
  constexpr int64_t kBytes = int64_t{8} << 20;
  Members plain = worker::testing::NewPeerMembers(2, kTimeout, false);
  Members sealed = worker::testing::NewPeerMembers(2, kTimeout, true);
  std::vector<std::vector<float>> numbers(2, std::vector<float>(kBytes / 4));
  const Comparison all_reduce = Compare([&] { AllReduceAll(plain, numbers, 4); },
                                        [&] { AllReduceAll(sealed, numbers, 4); }, kGigabitRounds);
  MessagePair open({}), closed({.encrypted = true});
  const auto message = std::make_shared<std::vector<std::byte>>(size_t{1} << 20);
  const Comparison stages = Compare([&] { open.Stream(message, 64); },
                                    [&] { closed.Stream(message, 64); }, kGigabitRounds);
  return {all_reduce.speed, stages.speed};
}

// In a process of its own, which may enter another network. REQUIRES: one thread.
template <class Result>
Result InChild(Result (*measure)()) {
  int ends[2];
  ATOLL_CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  ATOLL_CHECK(child >= 0);
  if (child == 0) {
    const Result result = measure();
    ATOLL_CHECK(write(ends[1], &result, sizeof result) == sizeof result);
    _exit(0);
  }
  close(ends[1]);
  Result result;
  ATOLL_CHECK(read(ends[0], &result, sizeof result) == sizeof result, "the measurement died");
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return result;
}

void Run() {
  std::fprintf(stderr, "1 Gbit/s and two edges: 50 seconds\r");
  const OneGigabit one_gigabit = InChild(MeasureOneGigabit);  // first: they fork
  const TwoEdges two_edges = InChild(MeasureTwoEdges);
  std::printf("All-reduces over workers on loopback, MB/s of a member's tensor\n");
  std::printf("workers      tensor      Gloo     plain encrypted   plain/Gloo encrypted/Gloo ");
  std::printf("encrypted/parts\n");
  double plain = 1e9, sealed = 1e9, parts = 1e9;
  for (const int size : {2, 4}) {
    for (const int64_t bytes : {int64_t{4} << 10, int64_t{1} << 20, int64_t{32} << 20}) {
      std::fprintf(stderr, "%d workers, %lld kB: at most a minute\r", size,
                   static_cast<long long>(bytes >> 10));
      const Row row = Measure(size, bytes);
      Print(size, bytes, row);
      plain = std::min(plain, row.plain_vs_gloo);
      if (bytes < (1 << 20)) continue;  // latency, not bytes, takes the time
      sealed = std::min(sealed, row.sealed_vs_gloo);
      parts = std::min(parts, row.sealed_vs_parts);
    }
  }
  PrintFigureAtLeast("collectives.peer_vs_gloo", plain, "ratio", 1.0);
  PrintFigureAtLeast("collectives.encrypted_vs_gloo", sealed, "ratio", 0.2);
  PrintFigureAtLeast("collectives.encrypted_vs_parts", parts, "ratio", 0.9);
  if (one_gigabit.all_reduce > 0) {
    PrintFigureAtLeast("collectives.encrypted_vs_plain_1gbit", one_gigabit.all_reduce, "ratio",
                       0.95);
    PrintFigureAtLeast("collectives.stages_encrypted_vs_plain_1gbit", one_gigabit.stages, "ratio",
                       0.95);
  } else {
    std::fprintf(stderr, "no network namespace can be made here: 1 Gbit/s is not measured\n");
  }
  if (two_edges.streamed > 0) {
    std::printf("messages of 4 MiB one by one over edges of 100 and 50 Mbit/s: %.2f of the sum\n",
                two_edges.one_by_one);
    PrintFigureAtLeast("collectives.two_edges_over_sum", two_edges.streamed, "ratio", 0.9);
  } else {
    std::fprintf(stderr, "no shaped network can be made here: two edges are not measured\n");
  }
}

}  // namespace
}  // namespace atl::bench

int main() { atl::bench::Run(); }
