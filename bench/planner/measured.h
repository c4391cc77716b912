// Plans that others ran on GPUs: their measured steps and memory beside what is predicted of the
// same plans, from the same profiles, by the way that `atoll simulate --layout` takes.

#ifndef ATOLL_BENCH_PLANNER_MEASURED_H_
#define ATOLL_BENCH_PLANNER_MEASURED_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cluster/catalogue.h"
#include "proto/cluster.pb.h"

namespace atl::bench {

// A run with 1F1B, replicas alike, every stage on one node by tensor parallelism.
struct MeasuredPlan {
  std::string name;
  int replicas = 1;
  std::vector<int> stages;  // layers of each
  int micro_batch = 1;      // sequences
  int batch = 1;            // sequences
  double step_s = 0;
  double memory_bytes = 0;  // of the device that had most taken, all in all
};

// Runs of one model on one kind of node, and what was measured of both.
struct MeasuredSet {
  std::string name;
  plan::Model model;
  v1::ClusterProfile profile;         // times, memory, the runtime; no devices
  std::vector<v1::MessageTime> link;  // from node to node
  int devices_per_node = 1;
  std::vector<MeasuredPlan> plans;
};

// Runs of OPT-350M and GPT-Neo-2.7B on GH200 nodes (Clariden) by DeepSpeed, published with Sailor.
MeasuredSet SailorOpt();
MeasuredSet SailorNeo();

struct PredictedPlan {
  double step_s = 0, memory_bytes = 0;
};
absl::StatusOr<PredictedPlan> PredictMeasured(const MeasuredSet& set, const MeasuredPlan& plan);

// Predicted over measured, all of a set's plans.
struct MeasuredErrors {
  double step = 0, memory = 0;         // mean of the absolute errors
  std::map<size_t, double> step_bias;  // mean error of plans of so many stages
};
// Prints a row for each plan where `print`. CHECKs that every plan can be predicted.
MeasuredErrors CompareMeasured(const MeasuredSet& set, bool print);

void PrintMeasured();

}  // namespace atl::bench

#endif  // ATOLL_BENCH_PLANNER_MEASURED_H_
