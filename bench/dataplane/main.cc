// Push and pull goodput of tensor links, plain and encrypted, of raw TCP and of gRPC streams; the
// method is in README.md.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <vector>

#include "bench/dataplane/peer.h"
#include "bench/gigabit.h"
#include "bench/measure.h"
#include "bench/seal_rate.h"
#include "common/check.h"

namespace atl::bench {
namespace {

struct Transport {
  std::unique_ptr<Server> (*make_server)();
  std::unique_ptr<Client> (*make_client)(int port);
};
constexpr Transport kTransports[] = {{MakeTensorServer, MakeTensorClient},
                                     {MakeTcpServer, MakeTcpClient},
                                     {MakeGrpcServer, MakeGrpcClient},
                                     {MakeSealedServer, MakeSealedClient},
                                     {MakeRelayedServer, MakeRelayedClient}};
constexpr size_t kTransportCount = std::size(kTransports);
constexpr size_t kPlain = 0, kTcp = 1, kGrpc = 2, kSealed = 3, kRelayed = 4;

struct Pipe {
  int ends[2];
  Pipe() { ATOLL_CHECK(pipe(ends) == 0); }
  template <typename T>
  void Put(const T& value) const {
    ATOLL_CHECK(write(ends[1], &value, sizeof value) == sizeof value);
  }
  template <typename T>
  T Get() const {
    T value;
    ATOLL_CHECK(read(ends[0], &value, sizeof value) == sizeof value,
                "a process of the benchmark died");
    return value;
  }
};

// A server and a client process of one transport. Transports share nothing: what one sets for its
// process (the allocator, threads) must not help another.
class Pair {
 public:
  explicit Pair(const Transport& transport) {
    const Pipe port;
    server_ = Fork([&] {
      const std::unique_ptr<Server> server = transport.make_server();
      port.Put(server->port());
      while (true) pause();
    });
    client_ = Fork([&] {
      const std::unique_ptr<Client> client = transport.make_client(port.Get<int>());
      while (true) seconds_.Put(Measure(*client, loads_.Get<Load>()));
    });
  }
  ~Pair() {
    for (pid_t child : {client_, server_}) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

  // The result of one round.
  struct Result {
    double goodput_gb_per_s;
    double cpu_s_per_gb;  // of both processes, the kernel's part included
  };
  Result Run(const Load& load) {
    const double gigabytes = 2e-9 * static_cast<double>(load.tensor_bytes() * load.count);
    const double cpu_before = CpuSeconds();
    loads_.Put(load);
    const double seconds = seconds_.Get<double>();
    return {gigabytes / seconds, (CpuSeconds() - cpu_before) / gigabytes};
  }

 private:
  template <typename Body>
  static pid_t Fork(Body body) {
    const pid_t child = fork();
    ATOLL_CHECK(child >= 0);
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    std::abort();
  }
  static double Measure(Client& client, const Load& load) {
    return MeasureSeconds([&] { client.Round(load); });
  }
  double CpuSeconds() const {
    double seconds = 0;
    for (pid_t child : {client_, server_}) {
      clockid_t clock;
      timespec used;
      ATOLL_CHECK(clock_getcpuclockid(child, &clock) == 0 && clock_gettime(clock, &used) == 0);
      seconds += static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
    }
    return seconds;
  }

  Pipe loads_, seconds_;
  pid_t server_, client_;
};

using Pairs = std::array<std::unique_ptr<Pair>, kTransportCount>;
// In one round.
struct Results {
  std::array<Pair::Result, kTransportCount> transports;
  double seal_gb_per_s, open_gb_per_s;  // by themselves, on one thread
};

// Every round has all transports, each time in another order.
std::vector<Results> RunRounds(const Pairs& pairs, const Load& load, int count) {
  std::vector<Results> rounds(count);
  for (int round = -1; round < count; ++round) {  // the first is for warming up
    for (size_t turn = 0; turn < kTransportCount; ++turn) {
      const size_t transport = (turn + round + 1) % kTransportCount;
      const Pair::Result result = pairs[transport]->Run(load);
      if (round >= 0) rounds[round].transports[transport] = result;
    }
    if (round < 0) continue;
    const SealSeconds alone = TimeSealing(1, kTotalBytes, kChunkBytes);
    rounds[round].seal_gb_per_s = 1e-9 * kTotalBytes / alone.seal;
    rounds[round].open_gb_per_s = 1e-9 * kTotalBytes / alone.open;
  }
  return rounds;
}

template <typename Value>
double MedianOverRounds(const std::vector<Results>& rounds, Value value) {
  std::vector<double> values;
  for (const Results& round : rounds) values.push_back(value(round));
  return Median(values);
}

// One transport's goodput over that of another, within a round.
double Ratio(const std::vector<Results>& rounds, size_t transport, size_t of = kPlain) {
  return MedianOverRounds(rounds, [=](const Results& round) {
    return round.transports[of].goodput_gb_per_s / round.transports[transport].goodput_gb_per_s;
  });
}

// Encrypted goodput over what it would be if sending, sealing and opening went one after the other.
double RatioToParts(const std::vector<Results>& rounds) {
  return MedianOverRounds(rounds, [](const Results& round) {
    const double parts = 1 / (1 / round.transports[kPlain].goodput_gb_per_s +
                              1 / round.seal_gb_per_s + 1 / round.open_gb_per_s);
    return round.transports[kSealed].goodput_gb_per_s / parts;
  });
}

void PrintRow(const Load& load, const std::vector<Results>& rounds) {
  std::printf("%8s %9lld", load.encoding == Encoding::kFloat32 ? "fp32" : "bf16",
              static_cast<long long>(load.tensor_bytes() >> 20));
  for (size_t transport = 0; transport < kTransportCount; ++transport) {
    std::printf(" %10.2f", MedianOverRounds(rounds, [transport](auto& r) {
                  return r.transports[transport].goodput_gb_per_s;
                }));
  }
  std::printf(" %6.2f %6.2f", MedianOverRounds(rounds, [](auto& r) { return r.seal_gb_per_s; }),
              MedianOverRounds(rounds, [](auto& r) { return r.open_gb_per_s; }));
  std::printf(" %8.2f %8.2f %8.2f  ", Ratio(rounds, kTcp), Ratio(rounds, kGrpc),
              RatioToParts(rounds));
  for (size_t transport = 0; transport < kTransportCount; ++transport) {
    std::printf(" %6.2f", MedianOverRounds(rounds, [transport](auto& r) {
                  return r.transports[transport].cpu_s_per_gb;
                }));
  }
  std::printf("\n");
  std::fflush(stdout);
}

void PrintLoad(const char* when) {
  double load_average = 0;
  ATOLL_CHECK(getloadavg(&load_average, 1) == 1);
  std::printf("load average %s: %.1f on %ld cores\n", when, load_average,
              sysconf(_SC_NPROCESSORS_ONLN));
}

// Encrypted over plain goodput where 1 Gbit/s is what limits: in a network namespace of its own, by
// a queueing discipline on its loopback device. 0: this system does not allow one.
double RatioAtOneGigabit() {
  const Pipe result;
  const pid_t child = fork();
  ATOLL_CHECK(child >= 0);
  if (child == 0) {
    const bool shaped = EnterGigabitNetwork();
    std::vector<double> ratios;
    if (shaped) {
      Pair plain(kTransports[kPlain]), sealed(kTransports[kSealed]);
      const Load load{Encoding::kFloat32, int64_t{4} << 20, static_cast<int>(kTotalBytes >> 24)};
      for (int round = -1; round < 5; ++round) {
        std::fprintf(stderr, "1 Gbit/s: half a minute  \r");
        const double by_plain = plain.Run(load).goodput_gb_per_s;
        const double by_sealed = sealed.Run(load).goodput_gb_per_s;
        if (round >= 0) ratios.push_back(by_sealed / by_plain);
      }
    }
    result.Put(shaped ? Median(ratios) : 0.0);
    _exit(0);
  }
  const double ratio = result.Get<double>();
  waitpid(child, nullptr, 0);
  return ratio;
}

void Run(const Pairs& pairs) {
  PrintLoad("before");
  std::printf("%8s %9s %10s %10s %10s %10s %10s %6s %6s %8s %8s %8s   CPU s/GB of each\n",
              "encoding", "tensor MB", "links GB/s", "TCP GB/s", "gRPC GB/s", "encrypted",
              "relayed", "seal", "open", "vs TCP", "vs gRPC", "vs parts");
  std::vector<Results> stated;  // what the figures are about
  for (Encoding encoding : {Encoding::kFloat32, Encoding::kBfloat16}) {
    for (int megabytes : {1, 4, 16, 64}) {
      const int64_t bytes = int64_t{megabytes} << 20;
      const Load load{encoding, bytes / BytesPerElement(encoding),
                      static_cast<int>(kTotalBytes / bytes)};
      const bool counts = encoding == Encoding::kFloat32 && megabytes >= 16;
      std::fprintf(stderr, "%d MB: at most a minute\r", megabytes);
      const std::vector<Results> rounds = RunRounds(pairs, load, counts ? 21 : 7);
      PrintRow(load, rounds);
      if (counts) stated.insert(stated.end(), rounds.begin(), rounds.end());
    }
  }
  PrintLoad("after");
  PrintFigureAtLeast("dataplane.vs_tcp", Ratio(stated, kTcp), "x", 0.6);
  PrintFigureAtLeast("dataplane.vs_grpc", Ratio(stated, kGrpc), "x", 1.74);
  PrintFigureAtLeast("dataplane.encrypted_vs_parts", RatioToParts(stated), "x", 0.9);
  PrintFigureAtLeast("dataplane.relayed_vs_direct", Ratio(stated, kSealed, kRelayed), "x", 0.45);
  if (const double ratio = RatioAtOneGigabit(); ratio > 0) {
    PrintFigureAtLeast("dataplane.encrypted_vs_plain_1gbit", ratio, "x", 0.95);
  } else {
    std::fprintf(stderr, "no network namespace can be made here: 1 Gbit/s is not measured\n");
  }
}

}  // namespace
}  // namespace atl::bench

int main() {
  atl::bench::MakeKeys();
  atl::bench::Pairs pairs;
  for (size_t i = 0; i < pairs.size(); ++i) {
    pairs[i] = std::make_unique<atl::bench::Pair>(atl::bench::kTransports[i]);
  }
  atl::bench::Run(pairs);
  return 0;
}
