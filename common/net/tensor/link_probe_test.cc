#include "common/net/tensor/link_probe.h"

#include <catch2/catch.hpp>

#include "common/net/testing/breaking_proxy.h"
#include "common/net/testing/test_handler.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

using namespace std::chrono_literals;

// The rates of a link that works. Where the machine is slow, a short measurement ends before a
// transfer has.
absl::StatusOr<LinkRates> MeasureRates(TensorClient& client, const std::string& endpoint,
                                       Duration first) {
  return testing::WithGrowingLimit(
      first,
      [&](Duration limit) {
        return MeasureLink(client, {endpoint, ""}, limit);
      },
      [](const absl::StatusOr<LinkRates>& rates) { return rates.ok(); });
}

TEST_CASE("probe_measures_a_link_in_both_directions_and_leaves_nothing") {
  TestLink link;
  const auto rates = MeasureRates(*link.client, link.address.endpoint, 50ms);
  REQUIRE(rates.status().ToString() == "OK");
  CHECK(rates->push_bytes_per_s > 0);
  CHECK(rates->pull_bytes_per_s > 0);
  CHECK(link.server->assembly_bytes() == 0);
  CHECK(link.server->counters().payload_bytes_received > 0);
  CHECK(link.handler.admissions() == 0);
}

TEST_CASE("probe_finds_the_direction_that_is_slow") {
  constexpr double kLimit = 2e6;
  TestLink link({.bandwidth_limit_bytes_per_s = kLimit});  // of pulls
  const auto rates = MeasureRates(*link.client, link.address.endpoint, 500ms);
  REQUIRE(rates.status().ToString() == "OK");
  CHECK(rates->pull_bytes_per_s < rates->push_bytes_per_s);
}

TEST_CASE("probe_of_a_path_that_loses_large_packets_says_so") {
  TestLink link;
  BreakingProxy path(link.address.endpoint, /*largest=*/1400);
  const auto rates = testing::WithGrowingLimit(
      100ms,
      [&](Duration limit) {
        auto client = TensorClient::Create({});
        return MeasureLink(**client, {path.endpoint(), ""}, limit);
      },
      [](const absl::StatusOr<LinkRates>& found) { return absl::IsDataLoss(found.status()); });
  CHECK(absl::IsDataLoss(rates.status()));
}

TEST_CASE("pulled_probes_are_limited") {
  TestLink link;
  std::vector<float> pulled(16);
  CHECK(link.Pull({.job = kProbeJob, .begin = kProbeElementsMax - 8, .elements = 16}, pulled)
            .refusal == PullRefusal::kUnknown);
  CHECK(link.Pull({.job = kProbeJob}, pulled).refusal == PullRefusal::kUnknown);
}

TEST_CASE("probe_of_an_address_where_nothing_listens_ends") {
  auto client = TensorClient::Create({});
  REQUIRE(client.ok());
  const auto rates = MeasureLink(**client, {"tcp://127.0.0.1:1", ""}, 50ms);
  CHECK(absl::IsDeadlineExceeded(rates.status()));
}

}  // namespace
}  // namespace atl
