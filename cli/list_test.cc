#include "cli/list.h"

#include <catch2/catch.hpp>

namespace atl::cli {
namespace {

void Add(v1::ListReply* reply, const std::string& name, v1::JobState state, double loss) {
  v1::JobSummary* job = reply->add_jobs();
  job->set_job(name);
  job->set_state(state);
  job->set_train_loss(loss);
}

std::string Names(const v1::ListReply& reply) {
  std::string names;
  for (const v1::JobSummary& job : reply.jobs()) names += job.job();
  return names;
}

TEST_CASE("jobs_are_filtered_by_state_sorted_by_key_and_cut_to_the_newest") {
  v1::ListReply all;
  Add(&all, "a", v1::JOB_STATE_RUNNING, 3);
  Add(&all, "b", v1::JOB_STATE_PAUSED, 1);
  Add(&all, "c", v1::JOB_STATE_RUNNING, 2);
  CHECK(Names(Select(all, {}, "submitted", false, 0)) == "abc");
  CHECK(Names(Select(all, {"running"}, "loss", false, 0)) == "ca");
  CHECK(Names(Select(all, {}, "loss", true, 0)) == "acb");
  CHECK(Names(Select(all, {}, "job", true, 2)) == "cb");
  all.set_before(7);
  CHECK(Select(all, {}, "job", false, 0).before() == 7);  // there are older ones
  CHECK(Select(all, {}, "job", false, 2).before() == 0);
  for (v1::JobSummary& job : *all.mutable_jobs()) {
    job.set_submitted_unix_ms(job.job() == "b" ? 3'000 : job.job() == "c" ? 2'000 : 1'000);
  }
  CHECK(Names(Select(all, {}, "age", false, 0)) == "bca");  // the youngest first
  // Pages of jobs that have ended come before the one that runs.
  CHECK(Names(Select(all, {}, "submitted", false, 0)) == "acb");
  CHECK(Names(Select(all, {}, "job", false, 2)) == "bc");
  for (const std::string& key : ListSortKeys())
    CHECK(Names(Select(all, {}, key, false, 0)).size() == 3);
}

TEST_CASE("since_is_a_time_back_or_a_point_in_time") {
  CHECK(ParseSince("", 5'000'000).value() == 0);
  CHECK(ParseSince("10m", 5'000'000).value() == 4'400'000);
  CHECK(ParseSince("1h30m", 5'000'000).value() == 0);
  CHECK(ParseSince("1970-01-01T00:01:00Z", 5'000'000).value() == 60'000);
  constexpr int64_t kDayMs = 86'400'000;
  CHECK(ParseSince("2d", 3 * kDayMs).value() == kDayMs);
  CHECK(ParseSince("1d12h", 3 * kDayMs).value() == 3 * kDayMs / 2);
  CHECK(ParseSince("1970-01-03", 5'000'000).ok());
  CHECK_FALSE(ParseSince("2dd", 5'000'000).ok());
  CHECK_FALSE(ParseSince("99999999999d", 5'000'000).ok());
  CHECK_FALSE(ParseSince("soon", 5'000'000).ok());
  CHECK_FALSE(ParseSince("-10m", 5'000'000).ok());
}

}  // namespace
}  // namespace atl::cli
