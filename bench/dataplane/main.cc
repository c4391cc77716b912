// Push and pull goodput of tensor links, of raw TCP and of gRPC streams: two processes on loopback,
// the same bytes, 1 MB chunks, in turn. Goodput is encoded tensor bytes over the time of the round.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "bench/dataplane/peer.h"
#include "common/check.h"

namespace atl::bench {
namespace {

constexpr int kRounds = 9;

struct Way {
  std::unique_ptr<Server> (*make_server)();
  std::unique_ptr<Client> (*make_client)(int port);
};
constexpr Way kWays[] = {{MakeTensorServer, MakeTensorClient},
                         {MakeTcpServer, MakeTcpClient},
                         {MakeGrpcServer, MakeGrpcClient}};
constexpr size_t kWayCount = std::size(kWays);

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

// A server and a client process of one way. Nothing is shared between ways: what one sets for its
// process (the allocator, threads) must not help another.
class Pair {
 public:
  explicit Pair(const Way& way) {
    const Pipe port;
    server_ = Fork([&] {
      const std::unique_ptr<Server> server = way.make_server();
      port.Put(server->port());
      while (true) pause();
    });
    client_ = Fork([&] {
      const std::unique_ptr<Client> client = way.make_client(port.Get<int>());
      while (true) seconds_.Put(Measure(*client, loads_.Get<Load>()));
    });
  }
  ~Pair() {
    for (pid_t child : {client_, server_}) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

  // GB/s of one round.
  double Goodput(const Load& load) {
    loads_.Put(load);
    return 2e-9 * static_cast<double>(load.tensor_bytes() * load.count) / seconds_.Get<double>();
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
    const auto start = std::chrono::steady_clock::now();
    client.Round(load);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Pipe loads_, seconds_;
  pid_t server_, client_;
};

using Pairs = std::array<std::unique_ptr<Pair>, kWayCount>;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

std::array<double, kWayCount> MedianGoodputs(const Pairs& pairs, const Load& load) {
  std::array<std::vector<double>, kWayCount> goodputs;
  for (int round = -1; round < kRounds; ++round) {  // the first is for warming up
    for (size_t way = 0; way < kWayCount; ++way) {
      const double goodput = pairs[way]->Goodput(load);
      if (round >= 0) goodputs[way].push_back(goodput);
    }
  }
  return {Median(goodputs[0]), Median(goodputs[1]), Median(goodputs[2])};
}

void PrintFigure(const char* name, double value, double goal) {
  std::printf("FIGURE dataplane.%s %.2f x goal >=%.2f %s\n", name, value, goal,
              value >= goal ? "ok" : "short");
}

void Run(const Pairs& pairs) {
  std::printf("%8s %9s %10s %10s %10s %8s %8s\n", "encoding", "tensor MB", "links GB/s", "TCP GB/s",
              "gRPC GB/s", "vs TCP", "vs gRPC");
  std::vector<double> vs_tcp, vs_grpc;
  for (Encoding encoding : {Encoding::kFloat32, Encoding::kBfloat16}) {
    for (int megabytes : {1, 4, 16, 64}) {
      const int64_t bytes = int64_t{megabytes} << 20;
      const Load load{encoding, bytes / BytesPerElement(encoding),
                      static_cast<int>(kTotalBytes / bytes)};
      const auto [links, tcp, grpc] = MedianGoodputs(pairs, load);
      std::printf("%8s %9d %10.2f %10.2f %10.2f %8.2f %8.2f\n",
                  encoding == Encoding::kFloat32 ? "fp32" : "bf16", megabytes, links, tcp, grpc,
                  links / tcp, links / grpc);
      std::fflush(stdout);
      vs_tcp.push_back(links / tcp);
      vs_grpc.push_back(links / grpc);
    }
  }
  // Of all sizes and both encodings.
  PrintFigure("vs_tcp", Median(vs_tcp), 0.6);
  PrintFigure("vs_grpc", Median(vs_grpc), 1.74);
}

}  // namespace
}  // namespace atl::bench

int main() {
  atl::bench::Pairs pairs;
  for (size_t i = 0; i < pairs.size(); ++i) {
    pairs[i] = std::make_unique<atl::bench::Pair>(atl::bench::kWays[i]);
  }
  atl::bench::Run(pairs);
  return 0;
}
