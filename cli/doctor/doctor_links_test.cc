#include "cli/doctor/doctor_links.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "cli/doctor/doctor.h"

namespace atl::cli {
namespace {

TEST_CASE("clock_that_differs_by_no_more_than_the_call_took_is_right") {
  CHECK(CheckClock(3, 5).level == Level::kOk);
  CHECK(CheckClock(-1500, 800).level == Level::kOk);
}

TEST_CASE("clock_that_is_wrong_is_a_warning_and_then_a_problem") {
  for (const int sign : {-1, 1}) {
    const Finding seconds = CheckClock(sign * 5'000, 10);
    CHECK(seconds.level == Level::kWarning);
    CHECK_FALSE(seconds.remedy.empty());
    CHECK(CheckClock(sign * 3'600'000.0, 10).level == Level::kProblem);
  }
}

TEST_CASE("adjacent_version_is_a_warning_and_one_further_away_a_problem") {
  CHECK(CheckVersion("1.2.0", "1.2.0").level == Level::kOk);
  for (const char* adjacent : {"1.2.7", "1.1.0", "1.3.4"}) {
    CHECK(CheckVersion("1.2.0", adjacent).level == Level::kWarning);
  }
  for (const char* other : {"1.0.9", "1.4.0", "2.2.0", "1.2", "", "v1.2.0", "1.-2147483648.0"}) {
    CHECK(CheckVersion("1.2.0", other).level == Level::kProblem);
  }
}

TEST_CASE("version_of_a_coordinator_stays_on_its_line") {
  v1::ClusterStatus status;
  status.set_software_version("9\nok       clock\x1b[2J");
  const std::vector<Finding> findings = StatusFindings(status, 0, 0);
  REQUIRE(findings.size() == 1);
  const std::string text = FindingsText(findings);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);  // with its remedy
  CHECK(text.find('\x1b') == std::string::npos);
}

TEST_CASE("slow_link_to_a_site_is_a_warning_and_one_that_carries_nothing_a_problem") {
  CHECK(RatesFinding("site oslo", LinkRates{1e9, 1e9}).level == Level::kOk);
  CHECK(RatesFinding("site oslo", LinkRates{1e9, 1e6}).level == Level::kWarning);
  CHECK(RatesFinding("site oslo", LinkRates{1e6, 1e9}).level == Level::kWarning);
  const Finding lost = RatesFinding("site oslo", absl::DeadlineExceededError("no answer"));
  CHECK(lost.level == Level::kProblem);
  CHECK_FALSE(lost.remedy.empty());
  const Finding hole = RatesFinding("site oslo", absl::DataLossError("large packets get lost"));
  CHECK(hole.level == Level::kProblem);
  CHECK(hole.remedy != lost.remedy);
  CHECK(RatesFinding("site oslo", absl::UnauthenticatedError("its key")).level == Level::kWarning);
}

TEST_CASE("site_without_a_server_is_measured_by_the_way_to_a_worker") {
  v1::ClusterStatus status;
  v1::Member* worker = status.add_members();
  worker->set_kind("worker");
  worker->set_name("w1");
  worker->set_site("oslo");
  worker->set_attached(true);
  worker->set_peer_endpoint("tcp://127.0.0.1:1");
  const std::vector<Finding> findings = CheckSites(Global(), status, /*bandwidth=*/true);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].level == Level::kProblem);  // nothing listens there
  worker->add_more_peer_endpoints("tcp://127.0.0.1:2");
  CHECK(CheckSites(Global(), status, /*bandwidth=*/true).size() == 2);
  worker->set_attached(false);
  CHECK(CheckSites(Global(), status, /*bandwidth=*/true).empty());
}

}  // namespace
}  // namespace atl::cli
