// Small scenes for tests: sites of like machines, and a model that all of them hold.

#ifndef ATOLL_REHEARSAL_TESTING_SMALL_SCENE_H_
#define ATOLL_REHEARSAL_TESTING_SMALL_SCENE_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rehearsal/scene.h"

namespace atl::rehearsal::testing {

// Describes so many machines of one A100 each at each site; sites are "site-0", "site-1", ...
inline plan::Cluster MakeCluster(int sites, int machines) {
  plan::Cluster cluster;
  cluster.types.push_back(*plan::FindDeviceType("a100-80"));
  cluster.types[0].price_per_hour = 2;
  for (int s = 0; s < sites; ++s) {
    for (int m = 0; m < machines; ++m) {
      const std::string node = absl::StrCat("n", s, "-", m);
      cluster.devices.push_back({node, node, absl::StrCat("site-", s)});
    }
  }
  return cluster;
}

inline JobSpec MakeSpec(int64_t steps) {
  JobSpec spec;
  spec.name = "rehearsed";
  spec.model.hidden = 2048;
  spec.model.layers = 12;
  spec.model.heads = 16;
  spec.data.path = "/data";
  spec.data.sequence_length = 1024;
  spec.inner.batch_sequences = 64;
  spec.outer.steps_per_round = 16;
  spec.layout.island = IslandScope::kSite;
  spec.schedule.train_tokens = steps * 64 * 1024;
  spec.schedule.validate_every_rounds = 0;
  spec.schedule.checkpoint_every_steps = 0;
  spec.checkpoint.peer_copies = 0;
  return spec;
}

inline Scene MakeSmallScene(const JobSpec& spec, int sites, int machines) {
  absl::StatusOr<Scene> scene = MakeScene(spec, MakeCluster(sites, machines), 0.45);
  ATOLL_CHECK(scene.ok(), scene.status().message());
  const absl::Status placed = PlaceServices({}, "", *scene);
  ATOLL_CHECK(placed.ok(), placed.message());
  return *std::move(scene);
}

}  // namespace atl::rehearsal::testing

#endif  // ATOLL_REHEARSAL_TESTING_SMALL_SCENE_H_
