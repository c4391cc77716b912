#include "common/metrics/metrics.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <sstream>
#include <thread>

#include "common/metrics/metrics_server.h"
#include "common/metrics/names.h"

namespace atl {
namespace {

// The lines of the text that are samples.
std::vector<std::string> Samples(const MetricsWriter& writer) {
  std::istringstream text(writer.Text());
  std::vector<std::string> samples;
  for (std::string line; std::getline(text, line);) {
    if (!line.empty() && line[0] != '#') samples.push_back(line);
  }
  return samples;
}

TEST_CASE("gauges_and_counters_are_written_with_their_labels") {
  MetricsWriter writer;
  writer.Add(kJobLoss, 2.5, {{"job", "lm-1"}});
  writer.Add(kJobLoss, 3, {{"job", "lm-2"}});
  writer.Add(kRounds, 7);
  CHECK(Samples(writer) == std::vector<std::string>{"atoll_job_loss_nats{job=\"lm-1\"} 2.5",
                                                    "atoll_job_loss_nats{job=\"lm-2\"} 3",
                                                    "atoll_rounds_total 7"});
}

TEST_CASE("values_that_are_not_finite_are_left_out") {
  MetricsWriter writer;
  writer.Add(kJobLoss, NAN);
  CHECK(Samples(writer).empty());
}

TEST_CASE("a_histogram_counts_what_is_at_most_each_bound") {
  HistogramCounts counts(kStaleness);
  for (const double value : {0.0, 1.0, 1.0, 100.0, static_cast<double>(NAN)}) counts.Observe(value);
  MetricsWriter writer;
  writer.Add(kStaleness, counts);
  const auto samples = Samples(writer);
  const auto has = [&](const std::string& line) {
    return std::find(samples.begin(), samples.end(), line) != samples.end();
  };
  CHECK(has("atoll_contribution_staleness_versions_bucket{le=\"0\"} 1"));
  CHECK(has("atoll_contribution_staleness_versions_bucket{le=\"1\"} 3"));
  CHECK(has("atoll_contribution_staleness_versions_bucket{le=\"16\"} 3"));
  CHECK(has("atoll_contribution_staleness_versions_bucket{le=\"+Inf\"} 4"));
  CHECK(has("atoll_contribution_staleness_versions_sum 102"));
}

TEST_CASE("a_label_cannot_forge_a_sample") {
  MetricsWriter writer;
  writer.Add(kJobLoss, 1, {{"job", "x\"} 9\nforged 1"}});
  CHECK(Samples(writer).size() == 1);
}

TEST_CASE("readyz_gives_the_reason_and_unknown_paths_are_not_found") {
  std::string why = "not attached";
  const Monitored monitored{[](MetricsWriter&) {}, [] { return true; }, [&] { return why; }};
  CHECK(AnswerMonitor(monitored, "/readyz").status == 503);
  CHECK(AnswerMonitor(monitored, "/readyz").body == "not attached\n");
  why.clear();
  CHECK(AnswerMonitor(monitored, "/readyz").status == 200);
  CHECK(AnswerMonitor(monitored, "/healthz").status == 200);
  CHECK(AnswerMonitor(monitored, "/other").status == 404);
}

TEST_CASE("a_pulse_notices_the_next_turn") {
  LoopPulse pulse;
  std::thread loop;
  CHECK(pulse.Turns([&] { loop = std::thread([&] { pulse.Beat(); }); }));
  loop.join();
}

}  // namespace
}  // namespace atl
