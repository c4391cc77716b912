#include "coordinator/http/page_view.h"

#include <algorithm>
#include <map>
#include <string>

namespace atl {
namespace {

constexpr int kRoundsDrawn = 16;

void Fill(const v1::Member& member, v1::page::Member* to) {
  to->set_kind(member.kind());
  to->set_name(member.name());
  to->set_attached(member.attached());
  to->set_reason(member.reason());
  to->set_since_heartbeat_s(member.since_heartbeat_s());
  to->set_site(member.site());
  for (const v1::DeviceInfo& device : member.devices()) to->add_devices(device.kind());
  to->set_job(member.job());
  to->set_measuring(member.measuring());
  to->set_draining(member.draining());
  to->set_parameter_bytes(member.load().parameter_bytes());
  to->set_staged_bytes(member.load().staged_bytes());
  to->set_address(member.endpoint().empty() ? member.peer_endpoint() : member.endpoint());
  to->set_software_version(member.software_version());
  int64_t memory_bytes = member.memory_bytes();
  for (const v1::DeviceInfo& device : member.devices()) memory_bytes += device.memory_bytes();
  to->set_memory_bytes(memory_bytes);
}

void Fill(const v1::Island& island, v1::page::Island* to) {
  to->set_island(island.island());
  to->set_worker(island.worker());
  to->set_attached(island.attached());
  to->set_activity(island.activity());
  to->set_reason(island.reason());
  to->set_stalled(island.stalled());
  to->set_steps_this_round(island.steps_this_round());
  to->set_rounds_accepted(island.rounds_accepted());
  to->set_rounds_rejected(island.rounds_rejected());
  to->set_tokens_committed(island.tokens_committed());
  to->set_evictions(island.evictions());
  to->set_since_step_s(island.since_step_s());
  to->set_pushed_steps(island.pushed_steps());
  to->set_pushed_loss(island.pushed_loss());
  const v1::IslandProgress& progress = island.progress();
  to->set_train_loss(progress.train_loss());
  to->set_tokens_per_s(progress.tokens_per_s());
  to->set_step_seconds_idle_link(progress.step_seconds_idle_link());
  to->set_step_seconds_overlap(progress.step_seconds_overlap());
  to->set_pushed_bytes(progress.pushed_bytes());
  to->set_learning_rate(progress.learning_rate());
}

void Fill(const v1::Island& island, v1::page::IslandDetails* to) {
  *to->mutable_workers() = island.workers();
  *to->mutable_plan()->mutable_replicas() = island.plan().replicas();
  to->mutable_plan()->set_number(island.plan().number());
  to->mutable_plan()->set_step_ns(island.plan().step_ns());
  to->mutable_plan()->set_schedule(island.plan().schedule());
  to->mutable_plan()->set_reason(island.plan().reason());
  to->set_planning(island.planning());
  *to->mutable_plan_changes() = island.plan_changes();
  *to->mutable_stage_links() = island.progress().stage_links();
  *to->mutable_memory() = island.progress().memory();
}

void Fill(const v1::Decision& decision, const v1::Participant& part, v1::page::Decision* to) {
  to->set_version(decision.version());
  to->set_island(part.island());
  to->set_base_version(part.base_version());
  to->set_inner_steps(part.inner_steps());
  to->set_tokens(part.tokens());
  to->set_norm(part.norm());
  to->set_weight(part.weight());
  to->set_accepted(part.accepted());
  to->set_reason(part.reason());
  to->set_closed_because(decision.closed_because());
}

void FillDecisions(const v1::Job& job, int32_t rows, v1::page::Job* to) {
  int32_t kept = 0;
  for (auto decision = job.decisions().rbegin(); decision != job.decisions().rend(); ++decision) {
    for (const v1::Participant& part : decision->participants()) {
      if (kept < rows) Fill(*decision, part, to->add_decisions());
      ++kept;
    }
  }
  to->set_decisions_kept(kept);
}

void FillServers(const v1::Job& job, v1::page::Job* to) {
  std::map<std::string, v1::page::Server*> servers;
  for (const auto* shards : {&job.shards(), &job.copies()}) {
    for (const v1::ShardPlacement& shard : *shards) {
      if (shard.server().empty()) continue;
      v1::page::Server*& server = servers[shard.server()];
      if (server == nullptr) server = to->add_servers();
      server->set_name(shard.server());
      server->set_shards(server->shards() + 1);
      server->set_elements(server->elements() + shard.elements());
    }
  }
}

}  // namespace

v1::page::Status ToPage(const v1::ClusterStatus& status) {
  v1::page::Status page;
  page.set_epoch(status.epoch());
  page.set_up_s(status.up_s());
  page.set_software_version(status.software_version());
  *page.mutable_troubles() = status.troubles();
  for (const v1::Member& member : status.members()) Fill(member, page.add_members());
  for (const v1::Job& job : status.jobs()) {
    v1::page::StatusJob* to = page.add_jobs();
    *to->mutable_summary() = job.summary();
    for (const v1::Island& island : job.islands()) {
      if (island.stalled().empty()) continue;
      v1::page::StalledIsland* stalled = to->add_stalled();
      stalled->set_island(island.island());
      stalled->set_stalled(island.stalled());
    }
  }
  return page;
}

v1::page::Job ToPage(const v1::Job& job, const JobPage& page) {
  v1::page::Job to;
  *to.mutable_summary() = job.summary();
  to.set_phase(job.round().phase());
  int32_t workers = 0;
  for (const v1::Island& island : job.islands()) {
    workers += island.workers_size();
    if (page.island && island.island() != *page.island) continue;
    v1::page::Island* kept = to.add_islands();
    Fill(island, kept);
    if (page.island) Fill(island, kept->mutable_details());
  }
  to.set_workers(workers);
  FillDecisions(job, page.decisions, &to);
  FillServers(job, &to);
  return to;
}

void KeepDrawn(v1::JobHistory* history) {
  for (v1::IslandCurve& island : *history->mutable_islands()) {
    v1::Curve drawn;
    drawn.mutable_unix_s()->Swap(island.mutable_curve()->mutable_unix_s());
    drawn.mutable_version()->Swap(island.mutable_curve()->mutable_version());
    drawn.mutable_loss()->Swap(island.mutable_curve()->mutable_loss());
    island.mutable_curve()->Swap(&drawn);
  }
  v1::Curve& rounds = *history->mutable_rounds();
  rounds.clear_loss_min();
  rounds.clear_loss_max();
  rounds.clear_contributions();
  rounds.clear_rejected();
  rounds.clear_staleness();
  rounds.clear_steps();
  const int older = std::max(0, history->newest_size() - kRoundsDrawn);
  history->mutable_newest()->DeleteSubrange(0, older);
}

}  // namespace atl
