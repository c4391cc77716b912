// An island of one worker on one device, without daemons.

#ifndef ATOLL_TESTS_ISLAND_SOLO_ISLAND_H_
#define ATOLL_TESTS_ISLAND_SOLO_ISLAND_H_

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/island/test_leader.h"
#include "worker/island/member/member.h"

namespace atl::worker {

struct SoloOptions {
  JobSpec spec;
  std::function<LocalDevice(int index)> make_device;
  LeaderOptions leader = {};
  std::string saves = "";  // its disk
  // Hooks of the leader; `profiles` may use the member.
  IslandLeader::Hooks hooks = {};
};

class SoloIsland {
 public:
  explicit SoloIsland(SoloOptions options) : spec(std::move(options.spec)) {
    GroupOptions group;
    group.saves_folder = options.saves;
    group.link.name = "w1";
    group.link.incarnation = 1;
    group.device_name = "device";
    group.make_devices = [make_device = options.make_device] {
      std::vector<LocalDevice> devices;
      devices.push_back(make_device(0));
      return devices;
    };
    member_ = GroupMember::Create(std::move(group)).value();
    trainer_ =
        std::make_unique<TestLeader>(member_.get(), options.leader, std::move(options.hooks));
    spec.layout.island = IslandScope::kWorker;
  }

  template <typename T>
  T Does(const Action& command) {
    absl::StatusOr<T> done = trainer_->Do<T>(command);
    INFO(done.status().ToString());
    REQUIRE(done.ok());
    return *std::move(done);
  }
  Prepared Prepares() {
    Prepared prepared = Does<Prepared>(Prepare{"sea-1", spec});
    facts = prepared.facts;
    return prepared;
  }
  // The initial weights, which come back as version `version`.
  void MakesWeights() {
    Does<InitialWeightsMade>(MakeInitialWeights{});
    Captures({{0, 1, 1, kNoVersion}, Encoding::kFloat32, {}});
  }
  // Until the pseudo-gradient is there.
  void Captures(const CaptureDelta& command) {
    Does<DeltaCaptured>(command);
    REQUIRE(events().AwaitReady().reason.empty());
  }
  void Adopts(const LayerBuffers& theta, const AdoptPulled& command) {
    *pulled() = theta;
    Does<Adopted>(command);
  }
  // Returns the shards of all layers, each whole or cut in two.
  std::vector<ShardPlacement> Shards(int cuts = 1) const {
    std::vector<ShardPlacement> shards;
    for (size_t l = 0; l < facts.layers.size(); ++l) {
      const int64_t size = facts.layers[l].elements;
      for (int cut = 0; cut < cuts; ++cut) {
        const int64_t begin = size / cuts * cut, end = cut + 1 == cuts ? size : begin + size / cuts;
        shards.push_back(
            {static_cast<ShardId>(shards.size()), static_cast<int32_t>(l), begin, end - begin});
      }
    }
    return shards;
  }
  LayerBuffers Theta() {
    LayerBuffers theta;
    for (const LayerSize& layer : facts.layers) {
      const LayerShard whole{static_cast<int32_t>(theta.size()), 0, {1}};
      theta.emplace_back(layer.elements);
      const ShardParts parameters{theta.back(), {}, {}};
      REQUIRE(
          member_->layers().GetShard(member_->name(), whole, {0, layer.elements}, parameters).ok());
    }
    return theta;
  }
  const Delta& delta() const { return *trainer_->outer()->delta(); }
  std::shared_ptr<LayerBuffers> pulled() const { return trainer_->outer()->pulled(); }
  LeaderEvents& events() { return trainer_->events; }
  IslandLeader& leader() { return trainer_->leader(); }
  TestLeader& trainer() { return *trainer_; }
  GroupMember& member() { return *member_; }

  JobSpec spec;
  JobFacts facts;

 private:
  std::unique_ptr<GroupMember> member_;
  std::unique_ptr<TestLeader> trainer_;
};

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_SOLO_ISLAND_H_
