#include "paramserver/core/outer_optimizer.h"

#include <cmath>
#include <map>
#include <string>

#include "common/check.h"
#include "common/protocol/outer_optimizer.h"

namespace atl::ps {
namespace {

class Sgd : public OuterOptimizer {
 public:
  explicit Sgd(const OuterSpec&) {}
  void Step(const OuterShard& shard, const OuterRound& round, ThreadPool& pool) const override {
    OuterSgd(shard.theta, round.deltas, static_cast<float>(round.learning_rate), pool);
  }
};

// Also with gain control: the coordinator sets the rate of each round.
class Nesterov : public OuterOptimizer {
 public:
  explicit Nesterov(const OuterSpec&) {}
  void Step(const OuterShard& shard, const OuterRound& round, ThreadPool& pool) const override {
    OuterNesterov(shard.theta, shard.slots[0], round.deltas,
                  static_cast<float>(round.learning_rate), static_cast<float>(round.momentum),
                  pool);
  }
};

class DelayedNesterov : public OuterOptimizer {
 public:
  explicit DelayedNesterov(const OuterSpec& spec)
      : pushes_(std::llround(OuterParameterValue(spec, "pushes"))) {}
  void Step(const OuterShard& shard, const OuterRound& round, ThreadPool& pool) const override {
    OuterDelayedNesterov(shard.theta, shard.slots[0], shard.slots[1], round.deltas,
                         static_cast<float>(round.learning_rate),
                         static_cast<float>(round.momentum), 1 / static_cast<float>(pushes_),
                         round.version % pushes_ == 0, pool);
  }

 private:
  const int64_t pushes_;
};

template <class Optimizer>
std::unique_ptr<OuterOptimizer> Make(const OuterSpec& spec) {
  return std::make_unique<Optimizer>(spec);
}

using Maker = std::unique_ptr<OuterOptimizer> (*)(const OuterSpec&);

}  // namespace

std::unique_ptr<OuterOptimizer> MakeOuterOptimizer(const OuterSpec& spec) {
  static const auto& makers = *new std::map<std::string, Maker>{
      {"sgd", Make<Sgd>},
      {"nesterov", Make<Nesterov>},
      {"nesterov_gain", Make<Nesterov>},
      {"delayed_nesterov", Make<DelayedNesterov>},
  };
  const auto maker = makers.find(spec.optimizer);
  ATOLL_CHECK(maker != makers.end(), "no outer optimizer ", spec.optimizer);
  return maker->second(spec);
}

}  // namespace atl::ps
