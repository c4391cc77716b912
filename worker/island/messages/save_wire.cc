#include "worker/island/messages/save_wire.h"

#include "worker/island/messages/wire.h"

namespace atl::worker {
namespace {

Unit UnitFromWire(const v1::SavedShard& unit) {
  return {FromWire(unit.shard()), {unit.begin(), unit.end()}};
}

}  // namespace

Tier TierFromWire(int32_t tier) {
  ATOLL_CHECK(tier >= 0 && tier < kTiers, tier);
  return static_cast<Tier>(tier);
}

void ToWire(const SaveTask& task, v1::SaveCall* out) {
  out->set_save(task.save);
  out->set_tier(static_cast<int32_t>(task.tier));
  out->set_keep(task.keep);
  out->set_optimizer_step(task.optimizer_step);
  for (const Unit& unit : task.order.own) ToWire(unit.shard, unit.elements, out->add_own());
  for (const SaveOrder::Fetch& fetch : task.order.fetch) {
    ToWire(fetch.unit.shard, fetch.unit.elements, out->add_fetch()->mutable_unit());
    out->mutable_fetch()->rbegin()->set_from(fetch.from);
  }
}

SaveTask ParseSaveCall(const v1::SaveCall& call) {
  SaveTask task;
  task.save = call.save();
  task.tier = TierFromWire(call.tier());
  task.keep = call.keep();
  task.optimizer_step = call.optimizer_step();
  for (const v1::SavedShard& unit : call.own()) task.order.own.push_back(UnitFromWire(unit));
  for (const v1::SaveCall::Fetch& fetch : call.fetch()) {
    task.order.fetch.push_back({UnitFromWire(fetch.unit()), fetch.from()});
  }
  return task;
}

v1::SaveDone MakeSaveDone(int64_t save, Tier tier, const absl::Status& status) {
  v1::SaveDone done;
  done.set_save(save);
  done.set_tier(static_cast<int32_t>(tier));
  done.set_whole(status.ok());
  done.set_trouble(std::string(status.message()));
  return done;
}

void ToWire(const HeldSave& save, v1::HeldSave* out) {
  out->set_save(save.save);
  out->set_optimizer_step(save.optimizer_step);
  for (const HeldUnit& held : save.units) {
    v1::HeldSave::Unit* unit = out->add_units();
    ToWire(held.unit.shard, held.unit.elements, unit->mutable_unit());
    unit->set_elements(held.elements);
    unit->set_tier(static_cast<int32_t>(held.tier));
  }
}

HeldSave FromWire(const v1::HeldSave& save) {
  HeldSave held{save.save(), save.optimizer_step(), {}};
  for (const v1::HeldSave::Unit& unit : save.units()) {
    held.units.push_back({UnitFromWire(unit.unit()), unit.elements(), TierFromWire(unit.tier())});
  }
  return held;
}

}  // namespace atl::worker
