// Versions that an island scores in tasks.

#include <catch2/catch.hpp>

#include "worker/core/testing/fixture.h"

namespace atl::worker {
namespace {

TEST_CASE("a version's loss is sent first, then its score in one task after the other") {
  Fixture fixture;
  fixture.order.spec.evaluation = {{.name = "arc"}, {.name = "wiki"}};
  fixture.order.validate_version = 0;
  fixture.order.evaluations = {0, 1};
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  fixture.Pulls(0);
  fixture.Adopts(0, AdoptMode::kReplace);
  CHECK_FALSE(fixture.Wants<Validate>().evaluation.has_value());
  fixture.HandleEvent(ValidationDone{0, 1.5, 640});
  CHECK(fixture.Wants<ValidationResult>().loss == 1.5);
  CHECK(fixture.Wants<Validate>().evaluation == 0);
  fixture.Drop<ValidationResult>();
  fixture.HandleEvent(ValidationDone{.version = 0, .score = TaskScore{.name = "arc"}});
  CHECK(fixture.Wants<ValidationResult>().scores.size() == 1);
  CHECK(fixture.Wants<Validate>().evaluation == 1);
  fixture.HandleEvent(CommandFailed{"no room"});
  fixture.Passes(std::chrono::minutes(1));
  fixture.IsSetUp(/*kept=*/true);
  CHECK(fixture.Wants<Validate>().evaluation == 1);
  fixture.Drop<ValidationResult>();
  fixture.HandleEvent(ValidationDone{.version = 0, .score = TaskScore{.name = "wiki"}});
  const ValidationResult all = fixture.Wants<ValidationResult>();
  CHECK(all.scores.size() == 2);
  CHECK(all.loss == 1.5);
}

}  // namespace
}  // namespace atl::worker
