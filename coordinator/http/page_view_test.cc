#include "coordinator/http/page_view.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "common/proto_json.h"

namespace atl {
namespace {

constexpr int kIslands = 10, kWorkersAnIsland = 100, kDecisions = 256;

// A job of 1,000 workers with as many decisions as the coordinator keeps.
v1::Job LargeJob() {
  v1::Job job;
  job.mutable_summary()->set_job("lm-1");
  job.mutable_round()->set_phase("collecting");
  for (int i = 0; i < kIslands; ++i) {
    v1::Island* island = job.add_islands();
    island->set_island(i);
    island->mutable_progress()->set_train_loss(1 + i);
    island->mutable_progress()->add_memory()->set_device(absl::StrCat("w", i, "/0"));
    for (const int64_t tokens : {5, 3}) {
      island->mutable_progress()->add_expert_tokens(tokens);
      island->mutable_progress()->add_router_losses(1);
    }
    island->mutable_plan()->set_number(7);
    for (int w = 0; w < kWorkersAnIsland; ++w) {
      island->add_workers()->set_worker(absl::StrCat("w", i, "-", w));
      island->mutable_plan()->add_replicas()->add_stages()->add_devices(
          absl::StrCat("w", i, "-", w, "/0"));
      island->mutable_plan()->add_members()->set_endpoint("tcp://10.0.0.1:7200");
    }
  }
  for (int version = 0; version < kDecisions; ++version) {
    v1::Decision* decision = job.add_decisions();
    decision->set_version(version);
    for (int i = 0; i < kIslands; ++i) {
      decision->add_participants()->set_island(i);
      decision->mutable_participants(i)->set_reason("within the usual norm");
    }
  }
  return job;
}

TEST_CASE("a_jobs_page_gets_the_newest_decisions_and_how_many_there_are") {
  const v1::page::Job page = ToPage(LargeJob(), {.decisions = 12});
  CHECK(page.decisions_kept() == kDecisions * kIslands);
  REQUIRE(page.decisions_size() == 12);
  CHECK(page.decisions(0).version() == kDecisions - 1);
  CHECK(page.decisions(0).island() == 0);
  CHECK(page.decisions(11).version() == kDecisions - 2);
  CHECK(page.decisions(11).island() == 1);
  CHECK(ToPage(LargeJob(), {.decisions = 4096}).decisions_size() == kDecisions * kIslands);
  CHECK(page.phase() == "collecting");
}

TEST_CASE("details_are_those_of_the_requested_island_alone") {
  const v1::page::Job all = ToPage(LargeJob(), {});
  REQUIRE(all.islands_size() == kIslands);
  CHECK(all.workers() == kIslands * kWorkersAnIsland);
  CHECK(all.islands(3).train_loss() == 4);
  for (const v1::page::Island& island : all.islands()) CHECK_FALSE(island.has_details());

  const v1::page::Job one = ToPage(LargeJob(), {.island = 3});
  REQUIRE(one.islands_size() == 1);
  CHECK(one.workers() == kIslands * kWorkersAnIsland);
  CHECK(one.islands(0).island() == 3);
  const v1::page::IslandDetails& details = one.islands(0).details();
  CHECK(details.workers_size() == kWorkersAnIsland);
  CHECK(details.plan().number() == 7);
  CHECK(details.plan().replicas_size() == kWorkersAnIsland);
  CHECK(details.plan().members_size() == 0);
  REQUIRE(details.memory_size() == 1);
  CHECK(details.memory(0).device() == "w3/0");
  REQUIRE(details.expert_tokens_size() == 2);
  CHECK(details.expert_tokens(1) == 3);
  CHECK(details.router_losses_size() == 2);
  CHECK(ToPage(LargeJob(), {.island = kIslands}).islands_size() == 0);
}

TEST_CASE("pages_of_a_thousand_workers_take_a_fraction_of_the_whole_answer") {
  const v1::Job job = LargeJob();
  const size_t whole = CompactJson(job).size();
  CHECK(CompactJson(ToPage(job, {.decisions = 12})).size() < whole / 50);
  CHECK(CompactJson(ToPage(job, {.island = 0})).size() < whole / 20);
  v1::ClusterStatus status;
  *status.add_jobs() = job;
  CHECK(CompactJson(ToPage(status)).size() < whole / 200);
}

TEST_CASE("servers_have_their_shards_and_copies_added_up") {
  v1::Job job;
  for (const char* server : {"ps1", "ps2", "ps1"}) {
    job.add_shards()->set_server(server);
    job.mutable_shards(job.shards_size() - 1)->set_elements(10);
  }
  job.add_copies();  // no server: none now
  job.add_copies()->set_server("ps2");
  job.mutable_copies(1)->set_elements(5);
  const v1::page::Job page = ToPage(job, {});
  REQUIRE(page.servers_size() == 2);
  CHECK(page.servers(0).name() == "ps1");
  CHECK(page.servers(0).shards() == 2);
  CHECK(page.servers(0).elements() == 20);
  CHECK(page.servers(1).shards() == 2);
  CHECK(page.servers(1).elements() == 15);
}

TEST_CASE("an_overview_lists_members_and_the_islands_that_are_stalled") {
  v1::ClusterStatus status;
  v1::Member* server = status.add_members();
  server->set_name("ps1");
  server->mutable_load()->set_staged_bytes(7);
  status.add_members()->add_devices()->set_kind("cpu");
  *status.add_jobs() = LargeJob();
  status.mutable_jobs(0)->mutable_islands(2)->set_stalled("waits for w2-5");
  const v1::page::Status page = ToPage(status);
  REQUIRE(page.members_size() == 2);
  CHECK(page.members(0).staged_bytes() == 7);
  CHECK(page.members(1).devices(0) == "cpu");
  REQUIRE(page.jobs(0).stalled_size() == 1);
  CHECK(page.jobs(0).stalled(0).island() == 2);
}

TEST_CASE("a_history_keeps_what_charts_draw") {
  v1::JobHistory history;
  for (v1::Curve* curve : {history.mutable_rounds(), history.add_islands()->mutable_curve()}) {
    for (auto* column : {curve->mutable_unix_s(), curve->mutable_version(), curve->mutable_loss(),
                         curve->mutable_tokens(), curve->mutable_loss_max()}) {
      column->Add(1);
    }
  }
  for (int round = 0; round < 64; ++round) history.add_newest()->set_round(round);
  KeepDrawn(&history);
  CHECK(history.rounds().tokens_size() == 1);
  CHECK(history.rounds().loss_max_size() == 0);
  CHECK(history.islands(0).curve().loss_size() == 1);
  CHECK(history.islands(0).curve().tokens_size() == 1);
  CHECK(history.islands(0).curve().loss_max_size() == 0);
  REQUIRE(history.newest_size() == 16);
  CHECK(history.newest(15).round() == 63);
}

}  // namespace
}  // namespace atl
