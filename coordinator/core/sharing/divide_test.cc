#include "coordinator/core/sharing/divide.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace atl::coord {
namespace {

constexpr size_t kNone = 99;

// Each job has room for as many workers.
class CountedRooms : public Rooms {
 public:
  CountedRooms(std::vector<int64_t> has, int64_t most) : has_(std::move(has)), most_(most) {}
  bool Take(size_t job, const NodeId&) override { return has_[job] < most_ && ++has_[job] > 0; }
  void Save(size_t job) override { saved_ = has_[job]; }
  void Restore(size_t job) override { has_[job] = saved_; }

 private:
  std::vector<int64_t> has_;
  int64_t most_ = 0, saved_ = 0;
};

// Workers "0", "1", ... in units of one.
struct Case {
  std::vector<SharingJob> jobs;
  std::vector<SharingUnit> units;
  std::vector<DeviceQuota> quotas;
  int64_t most = 100;  // workers of a job

  size_t AddJob(int64_t priority, int64_t needed, double weight = 1, bool started = true) {
    const JobId id = absl::StrCat("job-", jobs.size());
    jobs.push_back({id, priority, weight, needed, started, 0, 1000, 1});
    return jobs.size() - 1;
  }
  void AddWorkers(int count, std::optional<size_t> job = std::nullopt) {
    for (int i = 0; i < count; ++i) units.push_back({{absl::StrCat(units.size())}, job});
  }
  Division Divided() const {
    std::vector<int64_t> has(jobs.size(), 0);
    for (const SharingUnit& unit : units) {
      if (unit.job) has[*unit.job] += std::ssize(unit.workers);
    }
    CountedRooms rooms(has, most);
    return Divide(
        jobs, quotas, units, [](size_t, const NodeId&) { return true; }, rooms);
  }
};

// The job that is to have each unit.
std::vector<size_t> ListJobs(const Division& division) {
  std::vector<size_t> jobs;
  for (const Share& share : division.shares) jobs.push_back(share.job.value_or(kNone));
  return jobs;
}

TEST_CASE("job_of_higher_priority_takes_its_gang_from_the_newest_islands_of_the_lowest") {
  Case c;
  c.AddJob(1, 1);
  c.AddJob(0, 1);
  c.AddJob(5, 2, 1, /*started=*/false);
  c.AddWorkers(2, 0);
  c.AddWorkers(2, 1);
  const Division division = c.Divided();
  // Units beyond a gang go before those of a gang, the lowest priority first.
  CHECK(ListJobs(division) == std::vector<size_t>{0, 2, 1, 2});
  CHECK(division.whole == std::vector<bool>{true, true, true});
  CHECK(division.shares[3].reason == "job job-2 needs 2 workers: its priority is 5, not 0");
}

TEST_CASE("a_gang_is_taken_whole_or_not_at_all") {
  Case c;
  c.AddJob(0, 1);
  c.AddJob(5, 3, 1, /*started=*/false);
  c.AddWorkers(2, 0);
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0});
  c.AddWorkers(1);
  const Division division = c.Divided();
  CHECK(ListJobs(division) == std::vector<size_t>{1, 1, 1});
  CHECK(division.whole == std::vector<bool>{false, true});
}

TEST_CASE("nothing_is_taken_from_a_job_of_higher_priority") {
  Case c;
  c.AddJob(5, 1);
  c.AddJob(0, 1, 100, /*started=*/false);
  c.AddWorkers(4, 0);
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 0, 0});
}

TEST_CASE("small_job_uses_what_a_larger_one_waits_with_and_gives_it_back_for_the_gang") {
  Case c;
  c.AddJob(0, 2);
  c.AddJob(0, 4, 1, /*started=*/false);
  c.AddJob(0, 1, 1, /*started=*/false);
  c.AddWorkers(2, 0);
  c.AddWorkers(2);
  // The two idle ones are too few for the second job.
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 2, 2});
  c.units[2].job = c.units[3].job = 2;
  c.jobs[2].started = true;
  c.units[0].job = c.units[1].job = std::nullopt;  // the first job has ended
  c.jobs[0].needed = 5;
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{1, 1, 1, 1});
}

TEST_CASE("the_job_with_less_work_left_for_its_weight_has_what_is_beyond_gangs") {
  Case c;
  c.AddJob(0, 1);
  c.AddJob(0, 2);
  c.AddWorkers(6, 0);
  c.AddWorkers(2, 1);
  c.jobs[0].work_left = c.jobs[1].work_left = 10;
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 0, 0, 0, 0, 1, 1});
  SECTION("by its weight") {
    c.jobs[1].weight = 20;
    const Division division = c.Divided();
    CHECK(ListJobs(division) == std::vector<size_t>{0, 1, 1, 1, 1, 1, 1, 1});
    CHECK(division.shares[1].reason ==
          "job job-1 of the same priority is to end first: for its weight 20 it has 20.0 times "
          "less work left than this one for 1");
  }
  SECTION("by its work") {
    c.jobs[1].work_left = 5;
    CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 1, 1, 1, 1, 1, 1, 1});
  }
  SECTION("not where the difference is small") {
    c.jobs[1].work_left = 9;
    CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 0, 0, 0, 0, 1, 1});
  }
  SECTION("not where the work is not known") {
    c.jobs[1].work_left = 0;
    CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 0, 0, 0, 0, 1, 1});
  }
  SECTION("and idle ones at once") {
    c.jobs[1].work_left = 9;
    c.AddWorkers(1);
    CHECK(ListJobs(c.Divided()).back() == 1);
  }
}

TEST_CASE("no_worker_moves_for_the_last_rounds_of_a_job") {
  Case c;
  c.AddJob(0, 1);
  c.AddJob(0, 1);
  c.AddWorkers(5, 0);
  c.AddWorkers(1, 1);
  c.jobs[1].work_left = 0.1;
  c.jobs[1].rounds_left = 2;
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 0, 0, 0, 1});
  // They are fewer with each worker that comes.
  c.jobs[1].rounds_left = 7;
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 0, 1, 1, 1});
  c.jobs[0].rounds_left = 2;
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 0, 0, 0, 1});
}

TEST_CASE("a_gang_within_its_quota_takes_what_others_borrow_whatever_the_priority") {
  Case c;
  c.quotas = {{"a", 2}, {"b", 3}};
  c.AddJob(9, 1);
  c.AddJob(0, 2, 1, /*started=*/false);
  c.jobs[0].quota = 0;
  c.jobs[1].quota = 1;
  c.AddWorkers(4, 0);
  const Division division = c.Divided();
  CHECK(ListJobs(division) == std::vector<size_t>{0, 0, 1, 1});
  CHECK(division.shares[3].reason == "job job-1 needs 2 workers: a has 4 devices and a quota of 2");
  c.jobs[1].needed = 3;  // that would leave the first one less than its quota
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 0, 0});
}

TEST_CASE("a_gang_beyond_its_quota_has_idle_workers_alone_and_comes_last") {
  Case c;
  c.quotas = {{"a", 2}};
  c.AddJob(0, 1);
  c.AddJob(5, 3, 1, /*started=*/false);
  c.jobs[1].quota = 0;
  c.AddWorkers(4, 0);
  Division division = c.Divided();
  CHECK(ListJobs(division) == std::vector<size_t>{0, 0, 0, 0});
  CHECK(division.beyond_quota[1] ==
        "with this job's least number of workers a has 3 devices and a quota of 2, so it has idle "
        "ones and those of the same quota alone");
  c.AddWorkers(3);
  division = c.Divided();
  CHECK(ListJobs(division) == std::vector<size_t>{0, 0, 0, 0, 1, 1, 1});
  CHECK(division.whole == std::vector<bool>{true, true});
  SECTION("after one without a quota") {
    c.AddJob(0, 2, 1, /*started=*/false);
    CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 0, 0, 2, 2, 2});
  }
  SECTION("and keeps its islands while no other job needs them") {
    c.jobs[1].started = true;
    for (size_t unit = 4; unit < 7; ++unit) c.units[unit].job = 1;
    CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 0, 0, 1, 1, 1});
  }
}

TEST_CASE("quotas_count_devices_and_what_is_beyond_them_goes_to_others_first") {
  Case c;
  c.quotas = {{"a", 4}};
  c.AddJob(0, 1);
  c.AddJob(0, 1);
  c.jobs[0].quota = 0;
  c.jobs[0].work_left = 0.1;
  c.units = {{{"0"}, 0, 4}, {{"1"}, 1, 4}, {{"2"}, std::nullopt, 4}};
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 1, 1});
  c.quotas[0].devices = 5;
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 1, 0});
}

TEST_CASE("quotas_are_found_by_name_and_by_the_longest_beginning") {
  const auto quotas = ParseQuotas({"*=1", "vision-*=16", "vision-a=2"});
  REQUIRE(quotas.ok());
  CHECK(FindQuota(*quotas, "vision-a") == size_t{2});
  CHECK(FindQuota(*quotas, "vision-b") == size_t{1});
  CHECK(FindQuota(*quotas, "") == size_t{0});
  CHECK(FindQuota({{"alice", 1}}, "bob") == std::nullopt);
  for (const std::string text : {"alice", "alice=", "=3", "a*b=3", "alice=-1", "alice=3.5"}) {
    const auto wrong = ParseQuotas({text});
    CHECK(wrong.status().code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK_FALSE(ParseQuotas({"alice=1", "alice=2"}).ok());
}

TEST_CASE("worker_that_was_lost_a_moment_ago_is_replaced_by_none_of_other_jobs") {
  Case c;
  c.AddJob(0, 1);
  c.AddJob(5, 2);
  c.AddWorkers(2, 0);
  c.AddWorkers(1, 1);
  c.jobs[1].away = 1;
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 0, 1});
  c.jobs[1].away = 0;
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 1, 1});
}

TEST_CASE("islands_move_whole") {
  Case c;
  c.AddJob(0, 2);
  c.AddJob(5, 1, 1, /*started=*/false);
  c.units = {{{"a", "b"}, 0}, {{"c", "d"}, 0}};
  CHECK(ListJobs(c.Divided()) == std::vector<size_t>{0, 1});
}

// Carries each division out at once until nothing moves any more, for any jobs and workers.
TEST_CASE("divisions_come_to_rest_with_the_gangs_of_the_first_jobs") {
  std::mt19937_64 random(1);
  const auto draw = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
  };
  for (int trial = 0; trial < 2000; ++trial) {
    Case c;
    c.most = 1 + draw(9);
    const int64_t jobs = 1 + draw(4);
    for (int64_t i = draw(2); i > 0; --i) c.quotas.push_back({"", draw(6)});
    for (int64_t i = 0; i < jobs; ++i) {
      c.AddJob(draw(2), std::min(1 + draw(4), c.most), 1 + static_cast<double>(draw(3)),
               draw(1) == 1);
      c.jobs.back().work_left = static_cast<double>(draw(9));
      const auto quota = static_cast<size_t>(draw(2));
      if (quota < c.quotas.size()) c.jobs.back().quota = quota;
    }
    for (int64_t i = draw(12); i > 0; --i) {
      const int64_t job = draw(jobs);
      const bool idle = job == jobs || !c.jobs[static_cast<size_t>(job)].started;
      c.AddWorkers(1, idle ? std::nullopt : std::optional(static_cast<size_t>(job)));
    }
    Division division = c.Divided();
    int turns = 0;
    for (bool moved = true; moved; division = c.Divided()) {
      INFO("trial " << trial);
      REQUIRE(++turns < 30);
      moved = false;
      for (size_t unit = 0; unit < c.units.size(); ++unit) {
        std::optional<size_t>& job = c.units[unit].job;
        moved = moved || job != division.shares[unit].job;
        job = division.shares[unit].job;
        if (job) c.jobs[*job].started = true;
      }
    }
    // No job has a gang at the cost of one that goes before.
    std::vector<int64_t> has(c.jobs.size(), 0);
    int64_t takeable = 0;
    for (const SharingUnit& unit : c.units) {
      if (unit.job) ++has[*unit.job];
    }
    for (size_t job = 0; job < c.jobs.size(); ++job) {
      CHECK(division.whole[job] == (has[job] >= c.jobs[job].needed));
      if (division.whole[job] || !division.beyond_quota[job].empty()) continue;
      takeable = has[job];
      for (const SharingUnit& unit : c.units) {
        if (!unit.job || c.jobs[*unit.job].priority < c.jobs[job].priority) ++takeable;
      }
      CHECK(takeable < c.jobs[job].needed);
    }
  }
}

}  // namespace
}  // namespace atl::coord
