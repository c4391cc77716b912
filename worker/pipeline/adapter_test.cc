#include "worker/pipeline/adapter.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"

namespace atl::worker {
namespace {

// A link and two devices with configured behaviour; the adapter's decisions are kept as a
// transcript.
class Fixture {
 public:
  explicit Fixture(int64_t rows, int max_chunks)
      : adapter_({"w1/0", "w2/0", false, rows, 1000, max_chunks}), rows_(rows) {}

  double latency_s = 0, bytes_per_s = 1e6;
  double row_s = 0.010, chunk_s = 0;  // compute(n) = chunk_s + n * row_s
  double work_s = 0.5;                // of a whole micro-batch
  // For messages, a micro-batch, with so many chunks in steady state.
  std::function<double(int)> waits = [](int) { return 0; };
  int queues = 1;    // so many messages one behind the other
  double noise = 0;  // every other message takes this share longer, or less

  // Feeds so many windows of 20 messages, in the chunks that the adapter says for fill and drain.
  std::string Windows(int count) {
    transcript_.clear();
    for (int w = 0; w < count; ++w) Window(w);
    return transcript_;
  }
  const Adapter& adapter() const { return adapter_; }
  int fill() const { return adapter_.chunks(StepPhase::kFillOrDrain); }
  int steady() const { return adapter_.chunks(StepPhase::kSteady); }

 private:
  void Window(int w) {
    const int64_t n = rows_ / fill();
    adapter_.BeginStep();
    for (int i = 0; i < 20; ++i) {
      adapter_.OnCompute(n, chunk_s + static_cast<double>(n) * row_s);
      adapter_.OnWork(work_s, waits(steady()));
      const double seconds = latency_s + static_cast<double>(n) * 1000 / bytes_per_s;
      const double behind = static_cast<double>(i % queues * n) * 1000 / bytes_per_s;
      if (!adapter_.OnMessage(n * 1000, behind + seconds * (1 + (i % 2 == 0 ? noise : -noise))))
        continue;
      absl::StrAppend(&transcript_, w, ": ", adapter_.reason(), "\n");
    }
  }

  Adapter adapter_;
  const int64_t rows_;
  std::string transcript_;
};

TEST_CASE("a fast link is left alone but for the devices' sake") {
  Fixture fixture(16, 16);
  fixture.bytes_per_s = 1e9;
  fixture.chunk_s = 0.120;  // cutting costs more than it gains
  REQUIRE(fixture.Windows(1) ==
          "0: 2 chunks in fill and drain (1 before), 1 between (1 before): a micro-batch computes "
          "280.0 ms and travels 0.0 ms, 0.0 of them latency\n");
  // Half a micro-batch took 200 ms, not the 140 that was predicted from one size alone.
  REQUIRE(fixture.Windows(10) ==
          "0: 1 chunks in fill and drain (2 before), 1 between (1 before): a micro-batch computes "
          "280.0 ms and travels 0.0 ms, 0.0 of them latency\n");
}

TEST_CASE("where a link takes as long as the devices, chunks overlap them") {
  Fixture fixture(16, 16);
  fixture.bytes_per_s = 1e5;  // 160 ms for a micro-batch's bytes, as its compute
  const std::string transcript = fixture.Windows(8);
  CAPTURE(transcript);
  REQUIRE(transcript.find("0: 2 chunks in fill and drain (1 before)") == 0);
  REQUIRE(transcript.find("1: 4 chunks in fill and drain (2 before)") != std::string::npos);
  REQUIRE(fixture.fill() == 16);
  REQUIRE(fixture.steady() == 1);  // no stage waits
  REQUIRE_FALSE(fixture.adapter().saturated());
}

TEST_CASE("in steady state chunks are doubled while that ends waiting, and no further") {
  Fixture fixture(16, 16);
  fixture.bytes_per_s = 1e5;
  fixture.chunk_s = 1e-4;
  fixture.waits = [](int chunks) { return chunks < 4 ? 0.1 / chunks : 0.01; };  // work is 0.5 s
  fixture.Windows(10);
  REQUIRE(fixture.fill() == 16);
  REQUIRE(fixture.steady() == 4);
  // When there is nothing left to wait for, their number is halved step by step.
  fixture.bytes_per_s = 1e6;
  fixture.waits = [](int) { return 0; };
  REQUIRE(fixture.Windows(20).find("2 chunks between fill and drain (4 before)") !=
          std::string::npos);
  REQUIRE(fixture.steady() == 1);
}

TEST_CASE(
    "in steady state a doubling that ends no waiting is taken back, until there is more of it") {
  Fixture fixture(16, 16);
  fixture.bytes_per_s = 1e5;
  fixture.chunk_s = 1e-4;
  fixture.waits = [](int) { return 0.1; };  // for a slower stage, not for the link
  const std::string transcript = fixture.Windows(10);
  CAPTURE(transcript);
  REQUIRE(transcript.find("2 chunks between fill and drain (1 before): 100.0 ms of waiting a "
                          "micro-batch of 500.0 ms of work\n") != std::string::npos);
  REQUIRE(transcript.find("1 chunks between fill and drain (2 before): 100.0 ms of waiting a "
                          "micro-batch of 500.0 ms of work, no less than with fewer chunks\n") !=
          std::string::npos);
  REQUIRE(fixture.steady() == 1);
  REQUIRE(fixture.Windows(10) == "");
  fixture.bytes_per_s = 6e4;
  fixture.waits = [](int chunks) { return 0.2 / chunks; };
  fixture.Windows(10);
  REQUIRE(fixture.steady() > 1);
}

TEST_CASE("in steady state chunks that are merged too early come back, and stay longer") {
  Fixture fixture(16, 16);
  fixture.bytes_per_s = 1e5;
  fixture.chunk_s = 1e-4;
  fixture.waits = [](int chunks) { return chunks < 2 ? 0.1 : 0.01; };
  int changes = 0, last = 1;
  for (int step = 0; step < 200; ++step) {
    fixture.Windows(1);
    changes += fixture.steady() != last ? 1 : 0;
    last = fixture.steady();
  }
  REQUIRE(changes <= 10);  // up at the start; down and up after about 8, 16, 32 and 64
  REQUIRE(changes >= 7);
}

TEST_CASE("in steady state chunks that cost the devices more than they could gain are not tried") {
  Fixture fixture(16, 16);
  fixture.bytes_per_s = 1e5;
  fixture.chunk_s = 0.012;
  fixture.waits = [](int) { return 0.09; };
  fixture.Windows(8);
  REQUIRE(fixture.fill() == 4);
  REQUIRE(fixture.steady() == 1);
}

TEST_CASE("noise changes nothing") {
  Fixture fixture(16, 16);
  fixture.latency_s = 0.020;
  fixture.Windows(8);
  const int stable = fixture.fill();
  fixture.noise = 0.24;
  REQUIRE(fixture.Windows(20) == "");
  REQUIRE(fixture.fill() == stable);
}

TEST_CASE("chunks that wait behind each other do not make the link slower") {
  Fixture fixture(16, 16);
  fixture.bytes_per_s = 4e5;  // 40 ms of bytes, and 160 ms of computing
  fixture.queues = 16;        // each chunk waits for all before it in its micro-batch
  fixture.Windows(20);
  REQUIRE_FALSE(fixture.adapter().saturated());
  REQUIRE(fixture.adapter().bandwidth_bytes_per_s() == Approx(4e5));
  REQUIRE(fixture.Windows(20) == "");
}

TEST_CASE("a link that slows down is cut finer, and again coarser when it recovers") {
  Fixture fixture(16, 16);
  fixture.bytes_per_s = 2e6;
  fixture.chunk_s = 0.010;
  fixture.Windows(8);
  const int before = fixture.fill();
  fixture.bytes_per_s = 4e4;
  fixture.Windows(8);
  REQUIRE(fixture.fill() > before);
  fixture.bytes_per_s = 2e6;
  fixture.Windows(16);
  REQUIRE(fixture.fill() == before);
}

TEST_CASE("a saturated link causes one replan request") {
  Fixture fixture(16, 1);
  fixture.work_s = 0.4;
  fixture.Windows(4);
  fixture.bytes_per_s = 2e4;  // 800 ms for a micro-batch
  REQUIRE(fixture.Windows(6) == "1: saturated: 800 ms of bytes a micro-batch, 400 ms of work\n");
  REQUIRE(fixture.adapter().saturated());
  fixture.bytes_per_s = 1e6;
  REQUIRE(fixture.Windows(1) == "");  // one window says nothing
  REQUIRE(fixture.adapter().saturated());
  REQUIRE(fixture.Windows(5).find("0: no longer saturated: 16 ms of bytes") == 0);
  REQUIRE_FALSE(fixture.adapter().saturated());
}

TEST_CASE("a link that is quick in every other window stays as it is") {
  Fixture fixture(16, 1);
  fixture.work_s = 0.4;
  fixture.Windows(4);
  for (const double bytes_per_s : {2e4, 1e6, 2e4, 1e6}) {
    fixture.bytes_per_s = bytes_per_s;
    REQUIRE(fixture.Windows(1) == "");
  }
  REQUIRE_FALSE(fixture.adapter().saturated());
  fixture.bytes_per_s = 2e4;
  fixture.Windows(4);
  REQUIRE(fixture.adapter().saturated());
  for (const double bytes_per_s : {1e6, 2e4, 1e6, 2e4}) {
    fixture.bytes_per_s = bytes_per_s;
    REQUIRE(fixture.Windows(1) == "");
  }
  REQUIRE(fixture.adapter().saturated());
}

TEST_CASE("what has no bytes or took no time is no measurement") {
  Adapter adapter({"w1/0", "w2/0", false, 8, 1000, 8});
  for (int step = 0; step < 4; ++step) {
    adapter.BeginStep();
    adapter.OnWork(0, 0.5);
    for (int i = 0; i < 20; ++i) {
      adapter.OnCompute(8, 0);
      REQUIRE_FALSE(adapter.OnMessage(0, 0.5));
      REQUIRE_FALSE(adapter.OnMessage(8000, 0));
      REQUIRE_FALSE(adapter.OnMessage(8000, 0.080));  // a window of them, without work
    }
  }
  REQUIRE_FALSE(adapter.saturated());
  REQUIRE(adapter.window() == 4);
  REQUIRE(adapter.bandwidth_bytes_per_s() == Approx(1e5));
  REQUIRE(adapter.reason() == "");
}

TEST_CASE("never more chunks than sequences, or than the job allows") {
  Fixture few(3, 64);
  few.bytes_per_s = 1e5;
  few.Windows(20);
  REQUIRE(few.fill() == 2);
  Fixture bounded(64, 4);
  bounded.bytes_per_s = 1e5;
  bounded.Windows(20);
  REQUIRE(bounded.fill() == 4);
}

TEST_CASE("all changes of a step are reported, and only those") {
  Adapter adapter({"w1/0", "w2/0", false, 8, 1000, 8});
  const auto window = [&](double seconds) {
    bool changed = false;
    for (int i = 0; i < 20; ++i) {
      adapter.OnCompute(8, 0.010);
      adapter.OnWork(0.030, 0.5);
      changed = adapter.OnMessage(8000, seconds) || changed;
    }
    return changed;
  };
  adapter.BeginStep();
  REQUIRE(window(0.080));
  const std::string first = adapter.reason();
  REQUIRE(first.find("chunks in fill and drain") != std::string::npos);
  REQUIRE(window(0.080));  // the same step: two windows in a row make it saturated
  REQUIRE(adapter.reason().find(first + "; saturated: ") == 0);
  adapter.BeginStep();
  REQUIRE(adapter.reason().find(first) == 0);  // it stays until something else changes
  while (!window(0.001)) adapter.BeginStep();
  REQUIRE(adapter.reason().find(first) == std::string::npos);
}

TEST_CASE("a window has a number, and the quickest of its largest messages") {
  int64_t number = 40;
  Adapter adapter({"w1/0", "w2/0", false, 8, 1000, 2, [&] { return ++number; }});
  const auto window = [&](double large_s) {
    for (int i = 0; i < 10; ++i) {
      adapter.OnMessage(4000, 0.001);
      adapter.OnMessage(8000, i == 7 ? large_s : 2 * large_s);
    }
  };
  REQUIRE(adapter.window() == 0);
  window(0.010);
  REQUIRE(adapter.window() == 41);
  REQUIRE(adapter.quickest().bytes == 8000);
  REQUIRE(adapter.quickest().seconds == 0.010);
  window(0.030);
  REQUIRE(adapter.window() == 42);
  REQUIRE(adapter.quickest().seconds == 0.030);
}

TEST_CASE("a line through what was seen") {
  LinearFit fit;
  fit.Add(10, 5);
  REQUIRE(fit.at(20) == Approx(10));  // of one size: all slope
  fit.Add(20, 6);
  REQUIRE(fit.base() == Approx(4));
  REQUIRE(fit.slope() == Approx(0.1));
  fit.Add(20, 7);  // half the weight
  REQUIRE(fit.at(20) == Approx(6.5));
  fit.Add(10, 3.5);  // much less: the slope has changed, and nothing is below 0
  REQUIRE(fit.base() == Approx(3.5));
  REQUIRE(fit.at(20) == Approx(3.5));
}

}  // namespace
}  // namespace atl::worker
