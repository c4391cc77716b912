#include "coordinator/simulator/size_curve.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "coordinator/simulator/network.h"

namespace atl::sim {
namespace {

// 1 ms; small messages at 1 MB/s, those above 10 kB at 10 MB/s more.
const std::vector<MessageTime> kTimes = {{10'000, 11'000'000}, {110'000, 21'000'000}};

SizeCurvePtr Curve(const std::vector<MessageTime>& times, double latency_s, double bytes_per_s) {
  auto curve = SizeCurve::Make(times, latency_s, bytes_per_s);
  REQUIRE(curve.ok());
  return *curve;
}

double Seconds(const SizeCurvePtr& curve, double bytes) {
  return 1e-3 + curve->EffectiveBytes(bytes) / 10e6;
}

Link OneEdge(SizeCurvePtr sizes) {
  Link link;
  link.edges = {{1'000'000, 10e6, {}, -1, std::move(sizes)}};
  return link;
}

TEST_CASE("messages_of_measured_sizes_take_the_measured_times_and_others_lie_between") {
  const SizeCurvePtr curve = Curve(kTimes, 1e-3, 10e6);
  CHECK(Seconds(curve, 10'000) == Approx(11e-3));
  CHECK(Seconds(curve, 110'000) == Approx(21e-3));
  CHECK(Seconds(curve, 0) == Approx(1e-3));
  CHECK(Seconds(curve, 5'000) == Approx(6e-3));
  CHECK(Seconds(curve, 60'000) == Approx(16e-3));
  CHECK(Seconds(curve, 1'110'000) == Approx(121e-3));
  CHECK(SizeCurve::LastBandwidth(kTimes, 1e-3) == Approx(10e6));
  CHECK(SizeCurve::LastBandwidth({{10'000, 11'000'000}}, 1e-3) == Approx(1e6));
  for (const double bytes : {1.0, 9'999.0, 10'001.0, 5e5}) {
    CHECK(curve->BytesFromEffective(curve->EffectiveBytes(bytes)) == Approx(bytes));
  }
}

TEST_CASE("a_curve_on_the_line_of_latency_and_bandwidth_changes_nothing") {
  const SizeCurvePtr curve = Curve({{1'000, 1'100'000}, {100'000, 11'000'000}}, 1e-3, 10e6);
  Network network;
  for (const int64_t bytes : {0, 1, 1'000, 54'321, 10'000'000}) {
    CHECK(AloneTransferNs(network, OneEdge(curve), bytes) ==
          AloneTransferNs(network, OneEdge(nullptr), bytes));
    CHECK(AloneSerialNs(network, OneEdge(curve), bytes) ==
          AloneSerialNs(network, OneEdge(nullptr), bytes));
  }
}

TEST_CASE("times_come_back_from_a_curve_under_its_own_law_and_scale_with_another_bandwidth") {
  const SizeCurvePtr curve = Curve(kTimes, 1e-3, 10e6);
  CHECK(curve->Times(1e-3, 10e6) == kTimes);
  const std::vector<MessageTime> half = {{10'000, 22'000'000}, {110'000, 42'000'000}};
  CHECK(curve->Times(2e-3, 5e6) == half);
}

TEST_CASE("damaged_times_are_refused_with_row_field_and_value") {
  const auto refused = [](const std::vector<MessageTime>& times, const std::string& where) {
    const auto made = SizeCurve::Make(times, 1e-3, 1e6);
    CHECK(absl::IsInvalidArgument(made.status()));
    CHECK(std::string(made.status().message()).find(where) != std::string::npos);
  };
  refused({}, "0 rows");
  refused(std::vector<MessageTime>(kMessageTimesMax + 1, {1, 2}), "65 rows");
  refused({{0, 2'000'000}}, "times[0].bytes = 0");
  refused({{-5, 2'000'000}}, "times[0].bytes = -5");
  refused({{10, 0}}, "times[0].time_ns = 0");
  refused({{10, 1'000'000}}, "the latency");
  refused({{10, 2'000'000}, {10, 3'000'000}}, "times[1].bytes = 10");
  refused({{10, 2'000'000}, {20, 2'000'000}}, "times[1].time_ns = 2000000");
  CHECK(!SizeCurve::Make(kTimes, NAN, 1e6).ok());
  CHECK(!SizeCurve::Make(kTimes, 1e-3, NAN).ok());
  CHECK(!SizeCurve::Make(kTimes, 1e-3, std::numeric_limits<double>::infinity()).ok());
}

TEST_CASE("parts_over_edges_with_curves_arrive_together") {
  const SizeCurvePtr curve = Curve(kTimes, 1e-3, 10e6);
  const std::vector<EdgeOffer> offers = {{1e6, 10e-3, -1, curve.get()}, {4e6, 5e-3, -1, nullptr}};
  for (const double bytes : {100.0, 8'000.0, 60'000.0, 120'000.0, 5e6}) {
    const Split split = SplitTransfer(bytes, offers);
    CHECK(split.bytes[0] + split.bytes[1] == Approx(bytes));
    const double first_ns = 1e6 + curve->EffectiveBytes(split.bytes[0]) / 10e-3;
    CHECK(first_ns == Approx(split.arrival_ns));
    if (split.bytes[1] > 0) CHECK(4e6 + split.bytes[1] / 5e-3 == Approx(split.arrival_ns));
  }
}

TEST_CASE("no_message_is_carried_faster_than_the_fastest_rate") {
  // A burst: the first 100 kB in 1 ms, the rest at 10 MB/s.
  const SizeCurvePtr curve = Curve({{100'000, 2'000'000}, {1'100'000, 102'000'000}}, 1e-3, 10e6);
  const double fastest = FastestRate(curve, 10e6);
  CHECK(fastest == Approx(100e6));
  for (const double bytes : {10.0, 5e4, 1e5, 1e6, 1e8}) {
    CHECK(bytes / (curve->EffectiveBytes(bytes) / 10e6) <= fastest * (1 + 1e-9));
    CHECK(LeastSerialNs(OneEdge(curve), static_cast<int64_t>(bytes)) >= bytes / fastest * 1e9 - 1);
  }
}

}  // namespace
}  // namespace atl::sim
