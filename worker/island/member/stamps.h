// Tracks the changes that made the layers on a member's devices (StateStamp). Pure.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_STAMPS_H_
#define ATOLL_WORKER_ISLAND_MEMBER_STAMPS_H_

#include <algorithm>
#include <optional>
#include <vector>

#include "worker/pipeline/engine.h"

namespace atl::worker {

class StampTable {
 public:
  struct Stamps {
    std::optional<StateStamp> parameters, moments;  // none: as they are
  };

  // All layers in the plan are of these from now on; what is not held any more is forgotten.
  void Set(const std::vector<HeldLayer>& held, const Stamps& stamps) {
    Keep(held);
    for (const HeldLayer& layer : held) {
      if (!layer.surplus) SetOne(layer, stamps);
    }
  }
  // The same of one layer, on all devices that have it in the plan.
  void Set(const std::vector<HeldLayer>& held, const LayerShard& shard, const Stamps& stamps) {
    for (const HeldLayer& layer : held) {
      if (!layer.surplus && layer.shard == shard) SetOne(layer, stamps);
    }
  }
  void Keep(const std::vector<HeldLayer>& held) {
    std::erase_if(entries_, [&](const Entry& entry) {
      return std::none_of(held.begin(), held.end(),
                          [&](const HeldLayer& layer) { return entry.Is(layer); });
    });
  }
  void Clear() { entries_.clear(); }
  // Into what is held.
  void Note(std::vector<HeldLayer>* held) const {
    for (HeldLayer& layer : *held) {
      const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                      [&](const Entry& e) { return e.Is(layer); });
      if (entry == entries_.end()) continue;
      layer.parameters_since = entry->parameters;
      layer.moments_since = entry->moments;
    }
  }

 private:
  struct Entry {
    std::string device;
    LayerShard shard;
    bool table_only = false;
    StateStamp parameters, moments;

    bool Is(const HeldLayer& layer) const {
      return device == layer.device && shard == layer.shard && table_only == layer.table_only;
    }
  };

  void SetOne(const HeldLayer& layer, const Stamps& stamps) {
    auto entry =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.Is(layer); });
    if (entry == entries_.end()) {
      entry = entries_.insert(entry, {layer.device, layer.shard, layer.table_only, {}, {}});
    }
    if (stamps.parameters) entry->parameters = *stamps.parameters;
    if (stamps.moments) entry->moments = *stamps.moments;
  }

  std::vector<Entry> entries_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_STAMPS_H_
