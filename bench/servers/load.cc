// Islands of one worker each that hold no model, of real jobs at a real coordinator: what they push
// is sent to the job's parameter servers, which are daemons.
//
// Lines on its input: "pull V" pulls the parameters of version V, by the first island; its end ends
// the process. Its output is described in pusher.h.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <thread>
#include <vector>

#include "bench/members/connection.h"
#include "bench/servers/pusher.h"
#include "common/wall_clock.h"

namespace atl::bench {
namespace {

struct Load {
  std::string coordinator;
  TlsOptions tls;
  int islands = 4;
  FakeTimings timings;
  TensorClientOptions client;
};

// Each has buffers for a shard, so many islands share them.
constexpr int kPushersMax = 4;

int Run(const Load& load) {
  std::vector<std::unique_ptr<Pusher>> pushers;
  std::vector<std::unique_ptr<Connection<WorkerSide>>> workers;
  for (int i = 0; i < std::min(load.islands, kPushersMax); ++i) {
    pushers.push_back(std::make_unique<Pusher>(i, load.client));
  }
  for (int i = 0; i < load.islands; ++i) {
    auto channel = OpenChannel(load.tls, load.coordinator);
    if (!channel.ok()) {
      std::fprintf(stderr, "load: %s\n", std::string(channel.status().message()).c_str());
      return 1;
    }
    const auto staged = [pusher = pushers[i % kPushersMax].get()](
                            const ShardPlacement& at, const PushId& push, Encoding encoding) {
      pusher->Push(at, push, encoding);
    };
    workers.push_back(std::make_unique<Connection<WorkerSide>>(FakeWorker(&load.timings, i, staged),
                                                               *channel, UnixTimeMs()));
    workers.back()->Open();
  }
  std::thread([&workers] {
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
      for (auto& worker : workers) worker->Turn(SteadyNow());
    }
  }).detach();
  std::string word;
  for (int64_t version = 0; std::cin >> word >> version;) {
    if (word == "pull") pushers[0]->Pull(version);
  }
  std::_Exit(0);  // what is connected ends with the process
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  CLI::App app("Islands without a model, to load parameter servers with.", "load");
  atl::bench::Load load;
  double step_ms = 500;
  app.add_option("--coordinator", load.coordinator, "host:port")->required();
  app.add_option("--islands", load.islands)->check(CLI::Range(1, 512));
  app.add_option("--step-ms", step_ms, "of an island");
  atl::AddTlsFlags(app, &load.tls);
  CLI11_PARSE(app, argc, argv);
  load.timings.step = atl::FromSeconds(step_ms / 1e3);
  load.timings.push = {};
  load.client.security.allow_plaintext_beyond_loopback = load.tls.insecure;
  return atl::bench::Run(load);
}
