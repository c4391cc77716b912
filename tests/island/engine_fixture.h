// Fixture of the tests of engines: small islands, and transports with injected faults and delays.

#ifndef ATOLL_TESTS_ISLAND_ENGINE_FIXTURE_H_
#define ATOLL_TESTS_ISLAND_ENGINE_FIXTURE_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/island/island_harness.h"
#include "tests/island/layouts.h"

namespace atl::worker {

inline constexpr double kLearningRate = 3e-3;

inline EngineJob Job() {
  EngineJob job;
  job.model.family = ModelFamily::kLlama;
  job.model.vocab = 31;
  job.model.d_model = 16;
  job.model.layers = 4;
  job.model.heads = job.model.kv_heads = 4;
  job.model.ffn = 24;
  job.model.max_positions = 8;
  job.model.tied_head = true;
  job.sequence_length = 8;
  job.batch_sequences = 8;
  return job;
}

inline IslandPlan Plan(std::vector<int32_t> stages, int workers,
                       const std::string& schedule = "1f1b", int64_t number = 1) {
  IslandLayout layout;
  layout.name = "test";
  layout.schedule = schedule;
  layout.workers = workers;
  layout.replicas = {{std::move(stages), 4, 2}};
  IslandPlan plan = MakePlan(layout);
  plan.number = number;
  return plan;
}

inline std::vector<int32_t> Batch(int step) { return RandomTokens(Job(), 8, 40 + step); }

struct State {
  explicit State(TestIsland& island)
      : params(island.Get(LayerPart::kParameters)),
        first(island.Get(LayerPart::kFirstMoment)),
        second(island.Get(LayerPart::kSecondMoment)) {}
  bool operator==(const State&) const = default;
  Layers params, first, second;
};

inline void Begin(TestIsland& island) {
  island.Set(LayerPart::kParameters, RandomWeights(Job().model, 5));
}

inline double Train(TestIsland& island, int step) {
  const auto outcome = island.Step(Batch(step), kLearningRate);
  REQUIRE(outcome.status().message() == "");
  return outcome->loss.mean();
}

inline SequenceReader Reader(
    const std::vector<int32_t>& tokens, std::function<void()> then = [] {}) {
  return [tokens, then](int64_t first, std::span<int32_t> out) {
    std::copy_n(tokens.begin() + first * (Job().sequence_length + 1), out.size(), out.begin());
    then();
    return absl::OkStatus();
  };
}

// Hands everything on, but for what tests change.
class Wrapped : public Transport {
 public:
  explicit Wrapped(Transport& inner) : inner_(inner) {}
  absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                    Backend& backend, Stream& stream, const Tensor& payload) override {
    return inner_.Send(from, to, tag, backend, stream, payload);
  }
  bool Arrived(const std::string& device, const MessageTag& tag) override {
    return inner_.Arrived(device, tag);
  }
  void Wait(const std::string& device, std::span<const MessageTag> tags,
            Instant deadline) override {
    inner_.Wait(device, tags, deadline);
  }
  absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                       Stream& stream, const Tensor& into, Instant deadline) override {
    return inner_.Receive(device, tag, backend, stream, into, deadline);
  }
  absl::Status SendVotes(const std::string& from, const std::string& to, const VoteTag& tag,
                         const std::vector<double>& votes) override {
    return inner_.SendVotes(from, to, tag, votes);
  }
  absl::StatusOr<std::vector<double>> ReceiveVotes(const std::string& device, const VoteTag& tag,
                                                   Instant deadline) override {
    return inner_.ReceiveVotes(device, tag, deadline);
  }
  void Abort(const std::string& reason) override { inner_.Abort(reason); }
  void Reset() override { inner_.Reset(); }

 private:
  Transport& inner_;
};

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_ENGINE_FIXTURE_H_
