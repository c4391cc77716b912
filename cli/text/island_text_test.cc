// Islands of several workers: their plan, parts and links.

#include <catch2/catch.hpp>

#include "cli/text/render.h"
#include "cli/text/testing/running_job.h"

namespace atl::cli {
namespace {

v1::Job JobOfThreeWorkers() {
  v1::Job job = RunningJob();
  v1::Island& island = *job.mutable_islands(0);
  v1::PlannedIsland& plan = *island.mutable_plan();
  plan.set_number(3);
  plan.set_schedule("1f1b");
  plan.set_step_ns(12'300'000);
  plan.set_bound_ns(11'000'000);
  plan.set_reason(
      "made because worker w10 has joined; 1 replica x 2 stages, TP 1, micro-batch 2: 11 layouts "
      "compared; schedule: 1f1b; the next best takes 3% longer");
  for (int s = 0; s < 2; ++s) {
    v1::Stage& stage =
        s == 0 ? *plan.add_replicas()->add_stages() : *plan.mutable_replicas(0)->add_stages();
    stage.set_first_layer(3 * s);
    stage.set_layers(3);
    stage.add_devices(s == 0 ? "w1/0" : "w10/1");
  }
  for (const char* name : {"w1", "w10", "w2"}) {
    v1::IslandWorker& worker = *island.add_workers();
    worker.set_worker(name);
    worker.set_leads(worker.worker() == "w1");
    worker.set_in_plan(worker.worker() != "w2");
  }
  island.mutable_workers(1)->set_plan_number(2);
  island.set_planning("making a plan: worker w2 has joined");
  island.mutable_progress()->set_plan_wanted("link w1/0 > w10/1 saturated");
  for (int64_t number = 1; number <= 3; ++number) {
    v1::PlanChange& change = *island.add_plan_changes();
    change.set_number(number);
    change.set_at_step_end(number == 3);
    change.set_reason(number == 3 ? "worker w10 has joined" : "the island begins");
  }
  island.set_steps_interrupted(1);
  island.set_steps_redone(4);
  island.set_reason("worker w1 leads in generation 2");
  v1::StageLinkState& link = *island.mutable_progress()->add_stage_links();
  link.set_from("w1/0");
  link.set_to("w10/1");
  link.set_chunks(2);
  link.set_message_seconds(0.025);
  link.set_bandwidth_bytes_per_s(12.5e6);
  link.set_saturated(true);
  link.set_reason("saturated: 60 ms of bytes a micro-batch, 40 ms of work");
  v1::DeviceMemoryState& memory = *island.mutable_progress()->add_memory();
  memory.set_device("w1/0");
  memory.set_predicted_bytes(int64_t{20} << 30);
  memory.set_peak_bytes(int64_t{21} << 30);
  return job;
}

TEST_CASE("an island of several workers shows its plan, each worker's part and every link") {
  const std::string text = JobText(JobOfThreeWorkers(), 3);
  INFO(text);
  CHECK(text.find("island 0: memory\n"
                  "device  memory predicted   measured  ratio  limit\n"
                  "w1/0           20.00 GiB  21.00 GiB  1.050      -\n") != std::string::npos);
  CHECK(text.find("island 0: plan 3, 1 replica x 2 stages, TP 1, micro-batch 2, 1f1b\n"
                  "  predicted step 12.3 ms, at least 11 ms; not set up yet\n"
                  "  why:      made because worker w10 has joined\n"
                  "            11 layouts compared\n"
                  "            the next best takes 3% longer\n"
                  "  island:   worker w1 leads in generation 2\n"
                  "  replan request: link w1/0 > w10/1 saturated\n"
                  "  planning: making a plan: worker w2 has joined\n"
                  "  newest plans, since the coordinator's start:\n"
                  "    plan 1, at once: the island begins\n"
                  "    plan 2, at once: the island begins\n"
                  "    plan 3, at a step's end: worker w10 has joined\n"
                  "  steps interrupted: 1, replayed: 4\n") != std::string::npos);
  CHECK(text.find("stage 0, layers 0-2, on w1/0") != std::string::npos);
  CHECK(text.find("w10     follows     2  stage 1, layers 3-5, on w10/1") != std::string::npos);
  CHECK(text.find("w2      spare       -  none") != std::string::npos);
  CHECK(
      text.find("w1/0  w10/1   0 > 1       2         25.00   100.0  SATURATED  saturated: 60 ms") !=
      std::string::npos);
  CHECK(text.find("  transport\n") == std::string::npos);  // none is reported
}

// Two devices, each with two stages of one replica: 0 and 2, 1 and 3.
v1::Job InterleavedJob() {
  v1::Job job = RunningJob();
  v1::Island& island = *job.mutable_islands(0);
  v1::PlannedIsland& plan = *island.mutable_plan();
  plan.set_number(1);
  plan.set_step_ns(4'000'000);
  plan.set_bound_ns(3'000'000);
  v1::Replica& replica = *plan.add_replicas();
  for (int s = 0; s < 4; ++s) {
    v1::Stage& stage = *replica.add_stages();
    stage.set_first_layer(s);
    stage.set_layers(1);
    stage.add_devices(s % 2 == 0 ? "w1/0" : "w2/0");
  }
  return job;
}

TEST_CASE("a plan's prediction is printed with the measurement of the same plan") {
  v1::Job job = InterleavedJob();
  v1::IslandProgress& progress = *job.mutable_islands(0)->mutable_progress();
  const auto shows = [&] { return JobText(job, 0); };
  CHECK_THAT(shows(), Catch::Contains("plan 1, 1 replica x 2 stages of two halves\n  predicted "
                                      "step 4 ms, at least 3 ms; not set up yet\n"));
  progress.set_plan_number(1);
  CHECK_THAT(shows(), Catch::Contains("at least 3 ms; not measured yet\n"));
  progress.set_step_seconds_idle_link(0.024);
  CHECK_THAT(shows(), Catch::Contains("at least 3 ms; measured 24 ms (6.0 times as long)\n"));
}

TEST_CASE("stage links between the same two devices are distinguished by their stages") {
  v1::Job job = InterleavedJob();
  v1::IslandProgress& progress = *job.mutable_islands(0)->mutable_progress();
  const auto adds = [&](const char* from, const char* to, double seconds) {
    v1::StageLinkState& b = *progress.add_stage_links();
    b.set_from(from);
    b.set_to(to);
    b.set_chunks(1);
    b.set_message_seconds(seconds);
  };
  adds("w1/0", "w2/0", 0.001);  // as w1/0 reports: 0 > 1 forward, 2 > 3 forward, 2 > 1 back
  adds("w1/0", "w2/0", 0);
  adds("w1/0", "w2/0", 0.003);
  adds("w2/0", "w1/0", 0.004);  // and w2/0: 1 > 2 forward, 1 > 0 and 3 > 2 back
  adds("w2/0", "w1/0", 0.005);
  adds("w2/0", "w1/0", 0.006);
  const std::string text = JobText(job, 0);
  INFO(text);
  CHECK(
      text.find("w1/0  w2/0   0 > 1       1          1.00       -  fine\n"
                "w1/0  w2/0   2 > 1       1          3.00       -  fine\n"  // the other was silent
                "w2/0  w1/0   1 > 2       1          4.00       -  fine\n"
                "w2/0  w1/0   1 > 0       1          5.00       -  fine\n"
                "w2/0  w1/0   3 > 2       1          6.00       -  fine\n") != std::string::npos);
}

}  // namespace
}  // namespace atl::cli
