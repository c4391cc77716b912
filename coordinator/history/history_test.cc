#include "coordinator/history/history.h"

#include <catch2/catch.hpp>
#include <limits>

#include "common/testing/files_simulated.h"
#include "coordinator/history/history_files.h"
#include "proto/coordinator.pb.h"

namespace atl {
namespace {

constexpr size_t kAll = std::numeric_limits<size_t>::max();

CurvePoint Point(double version, double tokens, double loss) {
  CurvePoint point;
  point.version = version;
  point.tokens = tokens;
  point.loss = point.loss_min = point.loss_max = loss;
  point.seconds = 2;
  point.contributions = 1;
  return point;
}

double Sum(const std::vector<CurvePoint>& points, double CurvePoint::*field) {
  double sum = 0;
  for (const CurvePoint& point : points) sum += point.*field;
  return sum;
}

TEST_CASE("merged_points_keep_sums_extremes_and_means_over_tokens") {
  const CurvePoint both = Merge(Point(1, 100, 4), Point(2, 300, 2));
  CHECK(both.version == 2);
  CHECK(both.tokens == 400);
  CHECK(both.loss == Approx(2.5));
  CHECK(both.loss_min == 2);
  CHECK(both.loss_max == 4);
  CHECK(both.rounds == 2);
  CHECK(both.seconds == 4);
  CHECK(Merge(Point(1, 100, 4), Point(2, 300, 0)).loss == 4);  // a round without a loss
}

TEST_CASE("a_curve_of_many_rounds_stays_bounded_and_keeps_every_round") {
  Curve curve(64);
  for (int round = 1; round <= 100'000; ++round) curve.Add(Point(round, 10, 1.0 + 1.0 / round));
  CHECK(curve.points().size() <= 64);
  CHECK(curve.points().size() > 16);
  CHECK(Sum(curve.points(), &CurvePoint::rounds) == 100'000);
  CHECK(Sum(curve.points(), &CurvePoint::tokens) == 1'000'000);
  CHECK(curve.points().back().version == 100'000);
  CHECK(curve.points().front().loss_max == 2);
}

TEST_CASE("downsampling_keeps_order_and_every_round") {
  std::vector<CurvePoint> points;
  for (int i = 0; i < 1000; ++i) points.push_back(Point(i, 1, 1));
  const auto few = Downsample(points, 7);
  CHECK(few.size() == 7);
  CHECK(Sum(few, &CurvePoint::rounds) == 1000);
  CHECK(std::is_sorted(few.begin(), few.end(),
                       [](const auto& a, const auto& b) { return a.version < b.version; }));
}

TEST_CASE("islands_points_keep_a_job_below_its_bytes") {
  for (const int64_t islands : {1, 64, 1000, 4096}) {
    const auto bytes = static_cast<int64_t>(IslandCurvePoints(islands) * sizeof(CurvePoint));
    CHECK(bytes * islands + static_cast<int64_t>(kRoundCurvePoints * sizeof(CurvePoint)) <
          kHistoryBytesMax);
  }
}

// A job with one round after the other.
struct Fixture {
  Fixture() {
    JobRecord job;
    job.job = "lm-1";
    Store(1'000, {{job}});
    Progress(JobState::kRunning, 0, 10'000);
  }
  void Progress(JobState state, Version version, int64_t unix_ms,
                std::vector<ValidationLoss> sets = {}) {
    ProgressRecord progress;
    progress.job = "lm-1";
    progress.state = state;
    progress.version = version;
    progress.validated_version = version;
    progress.validation_loss = 5;
    progress.validation_sets = sets;
    Store(unix_ms, {{progress}});
  }
  // Two islands; the second one pushed from an older version and is rejected.
  void Round(int64_t round, int64_t unix_ms) {
    DecisionRecord decision;
    decision.job = "lm-1";
    decision.round = round;
    decision.previous = round - 1;
    decision.version = round;
    for (const IslandId island : {0, 1}) {
      DecisionParticipant p;
      p.contribution = {island, 1, 1, round - 1 - island};
      p.tokens = 100;
      p.inner_steps = 8;
      p.train_loss = 3 + island;
      p.learning_rate = 0.1 * static_cast<double>(round);
      p.gradient_norm = 2 + island;
      p.accepted = island == 0;
      decision.participants.push_back(p);
      ContributionRecord granted;
      granted.job = "lm-1";
      granted.contribution = p.contribution;
      Store(unix_ms - 500, {{granted}});
    }
    Store(unix_ms, {{decision}});
  }
  v1::JobHistory Encoded() const {
    v1::JobHistory message;
    message.set_job("lm-1");
    history.Find("lm-1")->Encode(1000, kAll, &message);
    return message;
  }
  void Store(int64_t unix_ms, const std::vector<StoreWrite>& writes) {
    for (const JobEvent& event : log.Read(unix_ms, Tick{}, writes)) history.On(event);
  }
  RoundLog log;
  History history;
};

TEST_CASE("a_round_adds_a_point_to_the_job_and_to_each_island") {
  Fixture fixture;
  fixture.Round(1, 12'000);
  fixture.Progress(JobState::kRunning, 1, 12'100);
  fixture.Round(2, 15'000);
  const v1::JobHistory h = fixture.Encoded();
  REQUIRE(h.rounds().unix_s_size() == 2);
  CHECK(h.rounds().loss(0) == 3);  // of what was accepted
  CHECK(h.rounds().tokens(0) == 100);
  CHECK(h.rounds().rejected(0) == 1);
  CHECK(h.rounds().seconds(0) == 2);  // since version 0
  CHECK(h.rounds().seconds(1) == 3);
  REQUIRE(h.islands_size() == 2);
  CHECK(h.islands(1).curve().loss(0) == 4);
  CHECK(h.islands(1).curve().staleness(0) == 1);
  CHECK(h.islands(1).curve().gradient_norm(0) == 3);
  CHECK(h.islands(1).curve().learning_rate(1) == 0.2);
  CHECK(h.rounds().gradient_norm(0) == 2.5);
  REQUIRE(h.newest_size() == 2);
  CHECK(h.newest(0).committed_ms() == 12'100);
  CHECK(h.newest(1).committed_ms() == 0);
  CHECK(h.newest(0).pushes(0).granted_ms() == 11'500);
  CHECK(h.submitted_unix_ms() == 1'000);
  CHECK(h.started_unix_ms() == 10'000);
}

TEST_CASE("a_validation_point_has_the_sets_of_its_version_as_they_come_and_outlives_a_restart") {
  Fixture fixture;
  fixture.Progress(JobState::kRunning, 1, 11'000, {{"law", 0, 9, 10, 0}, {"oslo", 1, 4, 10, 0}});
  fixture.Progress(JobState::kRunning, 1, 12'000, {{"law", 1, 6, 10, 0.5}, {"oslo", 1, 4, 10, 0}});
  const JobHistory restored = JobHistory::Decode(fixture.Encoded());
  v1::JobHistory h;
  restored.Encode(1000, kAll, &h);
  REQUIRE(h.validation_size() == 2);  // with version 0
  CHECK(h.validation(0).sets_size() == 0);
  CHECK(h.validation(1).unix_s() == 11);
  REQUIRE(h.validation(1).sets_size() == 2);
  CHECK(h.validation(1).sets(0).name() == "law");
  CHECK(h.validation(1).sets(0).loss() == 6);
  CHECK(h.validation(1).sets(0).accuracy() == 0.5);
  CHECK(h.validation(1).sets(1).name() == "oslo");
}

TEST_CASE("workers_that_an_island_lost_are_kept_with_their_time_once_each_and_over_a_restart") {
  Fixture fixture;
  IslandRecord island;
  island.job = "lm-1";
  island.island = 1;
  for (int64_t lost = 1; lost <= 3; ++lost) {
    island.members_lost = lost;
    island.lost.push_back({absl::StrCat("w", lost), "it is drained"});
    if (lost != 2) fixture.Store(1'000 * lost, {{island}});  // two at once
  }
  fixture.Store(9'000, {{island}});
  const JobHistory restored = JobHistory::Decode(fixture.Encoded());
  v1::JobHistory h;
  restored.Encode(1000, kAll, &h);
  REQUIRE(h.left_size() == 3);
  CHECK(h.left(0).worker() == "w1");
  CHECK(h.left(0).unix_ms() == 1'000);
  CHECK(h.left(2).worker() == "w3");
  CHECK(h.left(2).unix_ms() == 3'000);
  CHECK(h.left(2).island() == 1);
  CHECK(h.left(2).reason() == "it is drained");
}

TEST_CASE("a_decision_that_is_stored_again_counts_once") {
  Fixture fixture;
  fixture.Round(1, 12'000);
  fixture.Round(1, 13'000);
  CHECK(fixture.Encoded().rounds().unix_s_size() == 1);
}

TEST_CASE("a_job_ends_and_may_be_resumed") {
  Fixture fixture;
  fixture.Progress(JobState::kFailed, 1, 20'000);
  CHECK(fixture.history.Find("lm-1")->ended_ms() == 20'000);
  fixture.Progress(JobState::kRunning, 1, 21'000);
  CHECK(fixture.history.Find("lm-1")->ended_ms() == 0);
}

TEST_CASE("pauses_count_neither_for_the_job_nor_for_its_rounds") {
  Fixture fixture;  // from second 10 on
  fixture.Round(1, 12'000);
  fixture.Progress(JobState::kPaused, 1, 13'000);
  CHECK(fixture.history.Find("lm-1")->PausedMs(20'000) == 7'000);
  CHECK(fixture.history.Find("lm-1")->RoundAgeSeconds(20'000) == 0);
  fixture.Progress(JobState::kRunning, 1, 113'000);
  CHECK(fixture.history.Find("lm-1")->PausedMs(115'000) == 100'000);
  CHECK(fixture.history.Find("lm-1")->RoundAgeSeconds(115'000) == 3);
  fixture.Round(2, 116'000);
  CHECK(fixture.Encoded().rounds().seconds(1) == 4);  // one before the pause, three after it
  CHECK(fixture.history.Find("lm-1")->MeanRoundSeconds() == 3);
  fixture.Progress(JobState::kFailed, 2, 117'000);
  CHECK(fixture.history.Find("lm-1")->PausedMs(200'000) == 100'000);
  fixture.Progress(JobState::kRunning, 2, 217'000);
  CHECK(fixture.history.Find("lm-1")->PausedMs(220'000) == 200'000);
  fixture.Progress(JobState::kDone, 2, 220'000);
  CHECK(fixture.history.Find("lm-1")->PausedMs(900'000) == 200'000);
}

TEST_CASE("a_round_that_ends_while_the_job_is_paused_has_taken_until_the_pause") {
  Fixture fixture;
  fixture.Progress(JobState::kPaused, 0, 14'000);
  fixture.Round(1, 15'000);
  CHECK(fixture.Encoded().rounds().seconds(0) == 4);
  fixture.Progress(JobState::kRunning, 1, 50'000);
  CHECK(fixture.history.Find("lm-1")->RoundAgeSeconds(52'000) == 2);
}

TEST_CASE("a_job_that_is_cancelled_while_paused_was_paused_until_its_end") {
  Fixture fixture;
  fixture.Progress(JobState::kPaused, 1, 13'000);
  const JobHistory restored = JobHistory::Decode(fixture.Encoded());
  CHECK(restored.PausedMs(20'000) == 7'000);
  fixture.Progress(JobState::kCancelled, 1, 23'000);
  CHECK(fixture.history.Find("lm-1")->PausedMs(900'000) == 10'000);
}

TEST_CASE("what_an_island_has_pushed_outlives_a_restart") {
  Fixture fixture;
  fixture.Round(1, 12'000);
  fixture.Round(2, 15'000);
  const JobHistory::Pushed pushed = JobHistory::Decode(fixture.Encoded()).PushedBy(1);
  CHECK(pushed.steps == 16);
  CHECK(pushed.loss == 4);
  CHECK(fixture.history.Find("lm-1")->PushedBy(7).steps == 0);
}

TEST_CASE("history_survives_a_restart_and_goes_on") {
  SimulatedFiles files{1};
  Fixture fixture;
  fixture.Round(1, 12'000);
  {
    HistoryFiles store(&files, "history");
    store.Load(&fixture.history);
    store.SaveAll(&fixture.history);
  }
  History restored;
  HistoryFiles store(&files, "history");
  store.Load(&restored);
  REQUIRE(restored.Find("lm-1") != nullptr);
  v1::JobHistory message;
  message.set_job("lm-1");
  restored.Find("lm-1")->Encode(1000, kAll, &message);
  CHECK(message.SerializeAsString() == fixture.Encoded().SerializeAsString());
}

TEST_CASE("a_history_with_any_byte_changed_is_left_out") {
  SimulatedFiles files{1};
  Fixture fixture;
  fixture.Round(1, 12'000);
  {
    HistoryFiles store(&files, "history");
    store.Load(&fixture.history);
    store.SaveAll(&fixture.history);
  }
  const std::vector<std::byte> whole = files.Read("history/lm-1", 1 << 20).value();
  for (size_t position = 0; position < whole.size(); ++position) {
    std::vector<std::byte> changed = whole;
    changed[position] ^= std::byte{1};
    REQUIRE(WriteFileAtomically(files, "history/lm-1", {{ByteSpan(changed)}}).ok());
    History restored;
    HistoryFiles store(&files, "history");
    store.Load(&restored);
    INFO(position);
    CHECK(restored.Find("lm-1") == nullptr);
  }
}

TEST_CASE("a_removed_job_leaves_no_file_and_a_damaged_file_is_left_out") {
  SimulatedFiles files{1};
  Fixture fixture;
  JobRecord removed;
  removed.job = "lm-1";
  removed.removed = true;
  {
    HistoryFiles store(&files, "history");
    store.Load(&fixture.history);
    store.SaveAll(&fixture.history);
    fixture.Store(30'000, {{removed}});
    store.SaveAll(&fixture.history);
    CHECK(fixture.history.Find("lm-1") == nullptr);
  }
  CHECK(files.List("history").value().empty());
  REQUIRE(WriteFileAtomically(files, "history/bad-1", {{AsBytes(std::string("no message"))}}).ok());
  History restored;
  HistoryFiles store(&files, "history");
  store.Load(&restored);
  CHECK(restored.Find("bad-1") == nullptr);
}

}  // namespace
}  // namespace atl
