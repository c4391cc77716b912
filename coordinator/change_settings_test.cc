#include "coordinator/change_settings.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

JobSpec Spec() {
  JobSpec spec;
  spec.name = "lm";
  spec.model.hidden = 64;
  spec.model.layers = 2;
  spec.model.heads = 4;
  spec.data.path = "/data/text";
  spec.schedule.train_tokens = 1'000'000;
  return spec;
}

TEST_CASE("settings_name_what_they_change") {
  const auto changed = ApplySettings(
      Spec(),
      {"inner.schedule=wsd", "schedule.train_tokens = 2_000_000", "inner.warmup_fraction=0.02"});
  REQUIRE(changed.ok());
  CHECK(changed->spec.inner.schedule == RateSchedule::kWsd);
  CHECK(changed->spec.schedule.train_tokens == 2'000'000);
  REQUIRE(changed->changes.size() == 2);  // the third one has this value
  CHECK(changed->changes[0].field() == "inner.schedule");
  CHECK(changed->changes[0].before() == "\"cosine\"");
  CHECK(changed->changes[0].after() == "\"wsd\"");
  CHECK(changed->changes[1].before() == "1000000");
  CHECK(changed->changes[1].after() == "2000000");
}

TEST_CASE("the_last_of_two_values_of_a_setting_counts") {
  const auto changed =
      ApplySettings(Spec(), {"inner.learning_rate=0.5", "inner.learning_rate=0.25"});
  REQUIRE(changed.ok());
  CHECK(changed->spec.inner.learning_rate == 0.25);
  CHECK(changed->changes.size() == 1);
}

TEST_CASE("fields_that_are_fixed_while_a_job_runs_are_refused") {
  for (const std::string setting :
       {"model.layers=3", "data.sequence_length=128", "outer.optimizer=nesterov", "name=other",
        "inner.batch_sequences=4", "layout.stages=2", "inner={learning_rate=1e-4}",
        "\"inner\".learning_rate=1e-4", "data.sources=[]"}) {
    INFO(setting);
    CHECK(ApplySettings(Spec(), {setting}).status().code() ==
          absl::StatusCode::kFailedPrecondition);
  }
}

TEST_CASE("settings_that_make_no_valid_job_are_refused") {
  for (const std::string setting :
       {"inner.learning_rat=1", "inner.learning_rate=-1", "inner.learning_rate", "=1", "",
        "outer.min_islands=100", "schedule.train_tokens=0", "inner.learning_rate=much",
        "inner.learning_rate=nan", "inner.learning_rate=1\ninner.beta1=0.5"}) {
    INFO(setting);
    CHECK(ApplySettings(Spec(), {setting}).status().code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK(ApplySettings(Spec(), {}).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(ApplySettings(Spec(), std::vector<std::string>(kSettingsMax + 1, "outer.grace_seconds=1"))
            .status()
            .code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace atl
