// An island of real engines in one process, one device per worker, whose computation is emulated by
// sleeping: every operation lasts exactly as long as it is said to, whatever the cores are busy
// with.

#ifndef ATOLL_BENCH_ISLAND_EMULATED_ISLAND_H_
#define ATOLL_BENCH_ISLAND_EMULATED_ISLAND_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/island/shaped_transport.h"
#include "coordinator/planning/planning.h"
#include "worker/pipeline/engine.h"

namespace atl::bench {

// A cluster: which site each worker is in and how fast its device is, and the link between sites,
// one for each direction. Within a site messages arrive at once.
struct IslandSetting {
  std::string name;
  std::vector<std::string> sites;  // by worker: w0, w1, ...
  std::vector<double> speeds;      // 1: times as below
  Link link;
};

// A GPT-2 whose blocks' F, B and W take 2 ms each for a sequence on a device of speed 1, and whose
// activations between stages have 131,072 bytes.
struct Task {
  int blocks = 14;
  int64_t batch = 16;
  Duration block = std::chrono::milliseconds(2);
};

PlanRequest MakePlanRequest(const IslandSetting& setting, const Task& task);

// Returns what all devices together compute in a step of this plan.
double WorkSeconds(const IslandSetting& setting, const Task& task, const IslandPlan& plan);

// Measured of one step.
struct Measured {
  double step_s = 0;
  double bubble = 0;  // 1 - busy / (devices * step)
};

class EmulatedIsland {
 public:
  EmulatedIsland(const IslandSetting& setting, const Task& task, const IslandPlan& plan);
  ~EmulatedIsland();

  Measured Step();

 private:
  const Task task_;
  ShapedTransport transport_;
  std::unique_ptr<worker::LocalCommunicators> communicators_;
  std::vector<std::unique_ptr<worker::Engine>> engines_;
  int64_t number_ = 0;
};

}  // namespace atl::bench

#endif  // ATOLL_BENCH_ISLAND_EMULATED_ISLAND_H_
