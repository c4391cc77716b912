#include "worker/group/save_wire.h"

#include "worker/group/wire.h"

namespace atl::worker {
namespace {

Unit UnitOf(const v1::SavedShard& unit) {
  return {FromWire(unit.shard()), {unit.begin(), unit.end()}};
}

}  // namespace

void ToWire(const KeeperTask& task, v1::SaveCall* out) {
  out->set_save(task.save);
  out->set_tiers(task.tiers);
  for (const Unit& unit : task.order.own) ToWire(unit.shard, unit.elements, out->add_own());
  for (const SaveOrder::Fetch& fetch : task.order.fetch) {
    ToWire(fetch.unit.shard, fetch.unit.elements, out->add_fetch()->mutable_unit());
    out->mutable_fetch()->rbegin()->set_from(fetch.from);
  }
}

KeeperTask KeeperTaskOf(const v1::SaveCall& call) {
  KeeperTask task;
  task.save = call.save();
  task.tiers = call.tiers();
  for (const v1::SavedShard& unit : call.own()) task.order.own.push_back(UnitOf(unit));
  for (const v1::SaveCall::Fetch& fetch : call.fetch()) {
    task.order.fetch.push_back({UnitOf(fetch.unit()), fetch.from()});
  }
  return task;
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
    held.units.push_back({UnitOf(unit.unit()), unit.elements(), static_cast<Tier>(unit.tier())});
  }
  return held;
}

}  // namespace atl::worker
