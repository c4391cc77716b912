#include "common/net/tensor/link_probe.h"

#include <catch2/catch.hpp>

#include "tests/catch/limits.h"

namespace atl {
namespace {

using namespace std::chrono_literals;

class ProbedServer : public TensorHandler {
 public:
  explicit ProbedServer(TensorServerOptions options) {
    options.endpoint = "tcp://127.0.0.1:*";
    auto made = TensorServer::Create(std::move(options), this);
    REQUIRE(made.ok());
    server_ = *std::move(made);
    probes_.Serve(server_.get());
  }
  absl::Status AdmitPush(const PushId& id, Encoding, int64_t elements) override {
    return id.job == kProbeJob ? probes_.Admit(elements) : absl::NotFoundError("no such job");
  }
  void OnPush(const PushId&, Encoding, int64_t, Payload, ReplyToken token) override {
    probes_.OnPush(token);
  }
  void OnPull(const PullRequest& request, ReplyToken token) override {
    probes_.OnPull(request, token);
  }
  TensorServer& server() { return *server_; }

 private:
  ProbeAnswers probes_;
  std::unique_ptr<TensorServer> server_;
};

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
  ProbedServer probed({});
  auto client = TensorClient::Create({});
  REQUIRE(client.ok());
  const auto rates = MeasureRates(**client, probed.server().endpoint(), 50ms);
  REQUIRE(rates.status().ToString() == "OK");
  CHECK(rates->push_bytes_per_s > 0);
  CHECK(rates->pull_bytes_per_s > 0);
  CHECK(probed.server().assembly_bytes() == 0);
  CHECK(probed.server().counters().payload_bytes_received > 0);
}

TEST_CASE("probe_finds_the_direction_that_is_slow") {
  constexpr double kLimit = 2e6;
  ProbedServer probed({.bandwidth_limit_bytes_per_s = kLimit});  // of pulls
  auto client = TensorClient::Create({});
  REQUIRE(client.ok());
  const auto rates = MeasureRates(**client, probed.server().endpoint(), 500ms);
  REQUIRE(rates.status().ToString() == "OK");
  CHECK(rates->pull_bytes_per_s < rates->push_bytes_per_s);
}

TEST_CASE("probe_of_an_address_where_nothing_listens_ends") {
  auto client = TensorClient::Create({});
  REQUIRE(client.ok());
  const auto rates = MeasureLink(**client, {"tcp://127.0.0.1:1", ""}, 50ms);
  CHECK(absl::IsDeadlineExceeded(rates.status()));
}

}  // namespace
}  // namespace atl
