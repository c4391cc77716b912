#include "worker/data/read_ahead.h"

#include <catch2/catch.hpp>
#include <numeric>

namespace atl::worker {
namespace {

constexpr size_t kRows = 4;

// Row n is the number n. Counts how often each is read.
struct Source {
  ReadAhead::Reader reader() {
    return [this](int64_t first, std::span<int32_t> out, const Cancelled&) -> absl::Status {
      const std::lock_guard lock(mutex);
      reads.push_back(first);
      changed.notify_all();
      if (first == broken) return absl::UnavailableError("no disk");
      std::iota(out.begin(), out.end(), static_cast<int32_t>(first));
      return absl::OkStatus();
    };
  }
  void AwaitReads(size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reads.size() >= count; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int64_t> reads;
  int64_t broken = -1;
};

std::vector<int32_t> Read(ReadAhead& ahead, Source& source, int64_t step, int64_t first,
                          int64_t next) {
  std::vector<int32_t> rows(kRows);
  const absl::Status status = ahead.Read(step, first, next, rows, source.reader(), {});
  INFO(status.ToString());
  REQUIRE(status.ok());
  return rows;
}

TEST_CASE("a next step's sequences are read once, beside the step, where the guess is right") {
  Source source;
  ReadAhead ahead;
  CHECK(Read(ahead, source, 1, 0, 4)[0] == 0);
  source.AwaitReads(2);
  CHECK(Read(ahead, source, 2, 4, 8) == std::vector<int32_t>{4, 5, 6, 7});
  source.AwaitReads(3);
  ahead.Forget();
  CHECK(source.reads == std::vector<int64_t>{0, 4, 8});
}

TEST_CASE("another lease and a guess that could not be read are read in their turn") {
  Source source;
  ReadAhead ahead;
  Read(ahead, source, 1, 0, 4);
  source.AwaitReads(2);
  CHECK(Read(ahead, source, 2, 100, 104)[0] == 100);
  source.AwaitReads(4);
  CHECK(Read(ahead, source, 9, 104, 108)[0] == 104);  // numbers between were evaluations'
  source.AwaitReads(5);
  ahead.Forget();
  CHECK(source.reads == std::vector<int64_t>{0, 4, 100, 104, 108});

  source.broken = 112;
  Read(ahead, source, 10, 108, 112);
  source.AwaitReads(7);
  source.broken = -1;
  CHECK(Read(ahead, source, 11, 112, 116)[0] == 112);
}

}  // namespace
}  // namespace atl::worker
