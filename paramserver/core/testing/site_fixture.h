// The job of a site's servers in tests: a server, and the servers of the job above.

#ifndef ATOLL_PARAMSERVER_CORE_TESTING_SITE_FIXTURE_H_
#define ATOLL_PARAMSERVER_CORE_TESTING_SITE_FIXTURE_H_

#include <catch2/catch.hpp>
#include <functional>

#include "common/element_ranges.h"
#include "kernels/host_ops.h"
#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {

inline const JobId kAbove = "above";
inline const std::vector<OwnedShard> kShards = {{0, 0, 4}, {1, 0, 2}, {2, 1, 3}};
inline const ContributionId kBy{7, 3, 2, 5};  // of the job above

// Parameters of the job above.
inline std::vector<float> Above(Version version, const OwnedShard& shard) {
  Rng rng(static_cast<uint64_t>(version), static_cast<uint64_t>(100 + shard.shard));
  std::vector<float> values(static_cast<size_t>(shard.elements));
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}
inline std::vector<float> Above(Version version) {
  std::vector<float> all;
  for (const OwnedShard& shard : kShards) {
    for (const float value : Above(version, shard)) all.push_back(value);
  }
  return all;
}

struct Site {
  explicit Site(int64_t memory_bytes = 1 << 20) : server(memory_bytes) {
    server.outer.contributes_to = kAbove;
    server.outer.optimizer = "nesterov";
    server.Assign(shards);
  }

  void Fetch(Version version) {
    server.DeliverMessage(FetchBase{kJob, kAbove, version, Sources()});
  }
  std::vector<ShardSource> Sources() const {
    std::vector<ShardSource> sources;
    for (const OwnedShard& shard : shards) sources.push_back({shard, "above-1", "key"});
    return sources;
  }
  // The servers above answer so often.
  void Arrives(size_t parts = 100) {
    for (; parts > 0 && !server.fetches.empty(); --parts) {
      const FetchPart fetch = server.fetches.front();
      server.fetches.erase(server.fetches.begin());
      REQUIRE(fetch.job == kAbove);
      REQUIRE(fetch.slot == kPullTheta);
      REQUIRE(fetch.endpoint == "above-1");
      const OwnedShard& shard = shards.at(static_cast<size_t>(fetch.shard));
      std::vector<float> values = Above(fetch.version, shard);
      values = {values.begin() + fetch.range.begin, values.begin() + fetch.range.end};
      server.Do(PartFetched{fetch.token, absl::OkStatus(), ToSharedBytes(values)});
    }
  }
  void Refused() {
    for (const FetchPart& fetch : std::exchange(server.fetches, {})) {
      server.Do(PartFetched{fetch.token, absl::NotFoundError("it was replaced"), {}});
    }
  }
  // Brings it here and adopts it.
  void Adopt(Version own, Version version) {
    Fetch(version);
    Arrives();
    server.Sync();
    Commit(own, {.adopts = version});
  }
  void Commit(Version own, RoundStep step, std::vector<RoundTerm> terms = {}) {
    server.DeliverMessage(CommitRound{kJob, own, std::move(terms), {}, {}, std::move(step)});
    Sync();
  }
  void Sync() {
    if (syncs) server.Sync();
  }
  // A round of one island.
  void Round(Version own, bool contributes = false) {
    const ContributionId by = server.By(0, own - 1);
    server.PushAll(by, static_cast<uint64_t>(own));
    Sync();
    Commit(own, {.contributes = contributes}, {{by, 1.0}});
  }
  PushContribution Order(Version own) const {
    PushContribution order{kJob, own, kAbove, kBy, Sources(), {}};
    for (const OwnedShard& shard : shards) order.order.push_back({shard.shard, 0, 0, ""});
    return order;
  }
  // The part of the contribution that is in flight arrives.
  std::vector<ForwardPush> Pushed() {
    std::vector<ForwardPush> all;
    while (!server.forwards.empty()) {
      ForwardPush push = server.forwards.front();
      server.forwards.erase(server.forwards.begin());
      REQUIRE(push.endpoint == "above-1");
      server.Do(PushForwarded{push.token, absl::OkStatus()});
      all.push_back(std::move(push));
    }
    return all;
  }
  std::vector<float> Slot(size_t slot) {
    std::vector<float> all;
    for (const OwnedShard& shard : shards) {
      server.Do(PullArrived{kJob, kNoVersion, shard.shard, 900'000, 0, 0,
                            static_cast<int32_t>(slot) + 1});
      const auto reply = server.replies.extract(900'000);
      REQUIRE(!reply.empty());
      all.insert(all.end(), reply.mapped().values.begin(), reply.mapped().values.end());
    }
    return all;
  }
  std::vector<float> Base() { return Slot(1); }  // after nesterov's momentum
  std::vector<float> Contributed() { return Slot(2); }

  bool syncs = true;
  std::vector<OwnedShard> shards = kShards;
  ServerFixture server;
};

inline std::vector<float> Numbers(const SharedBytes& bytes) {
  std::vector<float> values(bytes.bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.bytes.data(), bytes.bytes.size());
  return values;
}

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_TESTING_SITE_FIXTURE_H_
