#include "common/protocol/outer_optimizer.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

JobSpec Job(OuterSpec outer) {
  JobSpec spec;
  spec.outer = std::move(outer);
  return spec;
}

OuterSpec With(const std::string& optimizer, const std::string& merge = "mean",
               const std::string& parameters = "") {
  OuterSpec spec;
  spec.optimizer = optimizer;
  spec.merge = merge;
  spec.parameters = parameters;
  return spec;
}

TEST_CASE("every_optimizer_has_slots_that_fit_and_defaults_in_range") {
  for (const OuterOptimizerInfo& info : OuterOptimizers()) {
    INFO(info.name);
    CHECK(info.slots.size() <= kMaxOuterSlots);
    CHECK(info.reference < static_cast<int>(info.slots.size()));
    CHECK(ValidateOuterChoice(With(info.name)).ok());
    CHECK(ServerBytesPerElement(Job(With(info.name))) == 4 + 4 * std::ssize(info.slots));
    for (const OuterParameter& p : info.parameters) {
      CHECK(p.low <= p.default_value);
      CHECK(p.default_value <= p.high);
      CHECK(OuterParameterValue(With(info.name), p.name) == p.default_value);
    }
  }
}

TEST_CASE("parameters_are_read_and_checked_against_their_optimizer") {
  CHECK(OuterParameterValue(With("delayed_nesterov", "mean", " pushes = 5 "), "pushes") == 5);
  CHECK_FALSE(ValidateOuterChoice(With("nesterov", "mean", "pushes=5")).ok());
  CHECK_FALSE(ValidateOuterChoice(With("delayed_nesterov", "mean", "pushes=0")).ok());
  CHECK_FALSE(ValidateOuterChoice(With("delayed_nesterov", "mean", "pushes=nan")).ok());
  CHECK_FALSE(ValidateOuterChoice(With("delayed_nesterov", "mean", "pushes")).ok());
  CHECK_FALSE(ValidateOuterChoice(With("adamw")).ok());
  CHECK_FALSE(ValidateOuterChoice(With("nesterov", "median")).ok());
}

TEST_CASE("what_earlier_versions_had_is_refused_by_name") {
  CHECK(ValidateOuterChoice(With("adam_age")).message() ==
        "outer.optimizer = \"adam_age\": must be one of sgd, nesterov, nesterov_gain, "
        "delayed_nesterov");
  CHECK(ValidateOuterChoice(With("nesterov", "heloco")).message() ==
        "outer.merge = \"heloco\": must be one of mean, radial, geometric_median, trimmed_norms");
}

TEST_CASE("rounds_of_single_pushes_do_not_wait_for_all") {
  OuterSpec spec = With("delayed_nesterov");
  CHECK(HasSinglePushRounds(spec));
  spec.wait_for_all = true;
  CHECK_FALSE(ValidateOuterChoice(spec).ok());
  CHECK_FALSE(HasSinglePushRounds(With("nesterov")));
}

TEST_CASE("a_moving_average_is_one_slot_more_between_the_optimizers_and_what_is_served") {
  for (const OuterOptimizerInfo& info : OuterOptimizers()) {
    INFO(info.name);
    JobSpec spec = Job(With(info.name));
    spec.outer.pull_encoding = Encoding::kInt8;
    const int64_t before = ServerBytesPerElement(spec);
    spec.inner.ema = 0.999;
    std::vector<std::string> slots = info.slots;
    slots.insert(slots.end(), {kAverageSlot, kServedSlot});
    CHECK(ListServerSlots(spec) == slots);
    CHECK(slots[AverageSlotIndex(spec)] == kAverageSlot);
    CHECK(slots.size() <= kMaxOuterSlots);
    CHECK(ServerBytesPerElement(spec) == before + 4);
  }
}

TEST_CASE("servers_take_all_slots_that_a_job_may_have") {
  for (const OuterOptimizerInfo& info : OuterOptimizers()) {
    JobSpec spec = Job(With(info.name));
    spec.outer.pull_encoding = Encoding::kInt8;
    spec.outer.average_moments_steps = 16;
    spec.inner.ema = 0.999;
    const std::vector<std::string> slots = ListServerSlots(spec);
    CHECK(slots.size() <= kMaxOuterSlots);
    CHECK(slots.at(RatioSlotIndex(spec)) == kRatioSlot);
    CHECK(slots.at(AverageSlotIndex(spec)) == kAverageSlot);
  }
}

TEST_CASE("a_sites_job_keeps_base_and_contributed_after_the_optimizers_slots") {
  for (const OuterOptimizerInfo& info : OuterOptimizers()) {
    INFO(info.name);
    OuterSpec spec = With(info.name);
    spec.contributes_to = "job-1";
    REQUIRE(ValidateOuterChoice(spec).ok());
    std::vector<std::string> slots = info.slots;
    slots.insert(slots.end(), {kBaseSlot, kContributedSlot});
    JobSpec site = Job(spec);
    site.inner.ema = 0.9;  // of the job above alone
    CHECK(ListServerSlots(site) == slots);
    CHECK(slots.size() <= kMaxOuterSlots);
    const int64_t bytes = 4 + 4 * std::ssize(slots);
    CHECK(ServerBytesPerElement(site) == bytes);
    CHECK(ServerPeakBytesPerElement(site) == bytes + 8);
    const JobSpec plain = Job(With(info.name));
    CHECK(ServerPeakBytesPerElement(plain) == ServerBytesPerElement(plain) + 4);
    spec.pull_encoding = Encoding::kInt8;
    CHECK_FALSE(ValidateOuterChoice(spec).ok());
    spec.pull_encoding = Encoding::kFloat32;
    spec.fragments = 2;
    CHECK_FALSE(ValidateOuterChoice(spec).ok());
  }
}

}  // namespace
}  // namespace atl
