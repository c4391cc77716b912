// Recordings of simulated histories: what the core decided under faults is decided again from any
// segment's state, and what a file may have lost is said.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/plain_fields.h"
#include "coordinator/recording/recorder.h"
#include "coordinator/recording/replay.h"
#include "tests/sim/cluster.h"

namespace atl::sim {
namespace {

std::string FreshFolder() {
  std::string name = absl::StrCat(std::getenv("TEST_TMPDIR"), "/recording-XXXXXX");
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return name;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Begins segments in the middle of whatever goes on.
void RecordHistory(const ClusterOptions& options, const std::string& folder,
                   int64_t segment_bytes = 20'000) {
  Cluster cluster(options);
  cluster.world().record_folder = folder;
  cluster.world().record_segment_bytes = segment_bytes;
  INFO("seed " << options.seed);
  REQUIRE(cluster.Run().failure == "");
}

absl::StatusOr<Replayed> ReplayAll(const std::string& folder) {
  return Replay(RealFiles(), folder, std::nullopt, "");
}

TEST_CASE("a replay of a history under faults decides what was decided") {
  int64_t rotated = 0;
  for (const auto& options_of : {RandomOptions, MovingOptions, CopiesOptions, SitesOptions}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const std::string folder = FreshFolder();
      RecordHistory(options_of(seed), folder, 100'000);
      const absl::StatusOr<Replayed> replayed = ReplayAll(folder);
      INFO("seed " << seed << ": " << replayed.status());
      REQUIRE(replayed.ok());
      INFO(ToText(replayed->last.place)
           << " " << replayed->last.event << ": " << replayed->last.decided);
      CHECK_FALSE(replayed->differs);
      CHECK(replayed->alike + replayed->unrecorded == replayed->events);
      CHECK(replayed->events > 100);
      CHECK(replayed->torn == 0);
      rotated += replayed->segments;
      std::filesystem::remove_all(folder);
    }
  }
  CHECK(rotated > 24);
}

TEST_CASE("a recording is bounded") {
  const std::string folder = FreshFolder();
  Cluster cluster(RandomOptions(1));
  cluster.world().record_folder = folder;
  cluster.world().record_segment_bytes = 10'000;
  REQUIRE(cluster.Run().failure == "");
  const auto segments = ListSegments(RealFiles(), folder);
  REQUIRE(segments.ok());
  CHECK(std::ssize(*segments) <= kSegmentsMax);
  CHECK(segments->front().first > 1);
  int64_t bytes = 0;
  for (const auto& [number, path] : *segments) bytes += std::ssize(ReadAll(path));
  CHECK(bytes <= kFolderSegments * 10'000 + 100'000);  // the state and the last event may be larger
}

TEST_CASE("a crash loop leaves the recording of the first crash, for its owner alone") {
  const std::string folder = FreshFolder() + "/recording";
  CoordinatorCore core({}, "00000000000000aa", 1);
  REQUIRE(core.Recover(Instant{}, {}).ok());
  for (int64_t start = 1; start <= kSegmentsMax + 3; ++start) {
    const auto recorder = EventRecorder::Open(&RealFiles(), folder);
    REQUIRE(recorder.ok());
    (*recorder)->BeforeStep(Instant{}, Tick{}, core);
    const auto segments = ListSegments(RealFiles(), folder);
    REQUIRE(segments.ok());
    CHECK(segments->front().first == std::max<int64_t>(1, start - kSegmentsMax + 1));
    CHECK(segments->back().first == start);
  }
  using std::filesystem::perms, std::filesystem::status;
  CHECK(status(folder).permissions() == perms::owner_all);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    CHECK(entry.status().permissions() == (perms::owner_read | perms::owner_write));
  }
}

TEST_CASE("what a recording has lost is said") {
  const std::string folder = FreshFolder();
  RecordHistory(RandomOptions(2), folder);
  const auto segments = ListSegments(RealFiles(), folder);
  REQUIRE(segments.ok());
  REQUIRE(segments->size() > 1);
  const std::string path = segments->back().second, whole = ReadAll(path);
  const absl::StatusOr<Replayed> before = ReplayAll(folder);
  REQUIRE(before.ok());

  SECTION("a torn tail ends the replay before it") {
    WriteAll(path, whole.substr(0, whole.size() - 3));
    const absl::StatusOr<Replayed> torn = ReplayAll(folder);
    REQUIRE(torn.ok());
    CHECK(torn->torn == 1);
    CHECK(torn->alike == before->alike - 1);
    CHECK(torn->unrecorded == before->unrecorded + 1);
  }
  SECTION("a byte that has changed, wherever it is") {
    for (size_t at = 0; at < whole.size(); at += 1 + whole.size() / 50) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      WriteAll(path, damaged);
      const absl::Status status = ReplayAll(folder).status();
      INFO(at << " of " << whole.size());
      CHECK(absl::IsDataLoss(status));
      CHECK(status.message().find(path) != std::string::npos);
    }
  }
  SECTION("its beginning alone") {
    WriteAll(path, whole.substr(0, 40));
    CHECK(absl::IsDataLoss(ReplayAll(folder).status()));
  }
  SECTION("a segment") {
    std::filesystem::copy_file(path, SegmentPath(folder, segments->back().first + 2));
    CHECK(absl::IsDataLoss(ReplayAll(folder).status()));
  }
  SECTION("everything") { CHECK(absl::IsNotFound(ReplayAll(FreshFolder()).status())); }
  SECTION("an event that is not there") {
    const EventPlace far{segments->back().first, 1 << 30};
    CHECK(absl::IsNotFound(Replay(RealFiles(), folder, far, "").status()));
  }
}

TEST_CASE("a replay ends at an event, and shows a job there") {
  const std::string folder = FreshFolder();
  RecordHistory(RandomOptions(2), folder);
  const auto segments = ListSegments(RealFiles(), folder);
  REQUIRE(segments.ok());
  const EventPlace place{segments->front().first, 7};
  const absl::StatusOr<Replayed> replayed = Replay(RealFiles(), folder, place, "sim-1");
  REQUIRE(replayed.ok());
  CHECK(replayed->last.place == place);
  CHECK(replayed->events == 7);
  REQUIRE(replayed->job);
  CHECK(replayed->job->summary.job == "sim-1");
  CHECK(absl::IsNotFound(Replay(RealFiles(), folder, place, "no-1").status()));
}

// The same header with another version of the core in it.
TEST_CASE("a recording of another version is named") {
  const std::string folder = FreshFolder();
  std::string by, segment;
  RecordedBy other = RecordedBy::Self(0, Instant{});
  const std::string own = other.core_version;
  other.core_version = "0123456789abcdef";
  AppendPlain(&by, other);
  AppendRecord(RecordKind::kBy, by, &segment);
  WriteAll(SegmentPath(folder, 1), segment);
  const absl::Status status = ReplayAll(folder).status();
  CHECK(absl::IsFailedPrecondition(status));
  CHECK(status.message().find(own) != std::string::npos);
  CHECK(status.message().find(other.core_version) != std::string::npos);
}

TEST_CASE("another decision is found at its event") {
  const std::string folder = FreshFolder();
  std::string begin, bytes;
  CoordinatorCore core({}, "00000000000000aa", 1);
  REQUIRE(core.Recover(Instant{}, {}).ok());
  {
    const auto recorder = EventRecorder::Open(&RealFiles(), folder);
    REQUIRE(recorder.ok());
    for (int i = 1; i <= 3; ++i) {
      const Instant now = Instant{} + std::chrono::seconds(i);
      (*recorder)->BeforeStep(now, Tick{}, core);
      CoordinatorActions actions = core.Step(now, Tick{});
      if (i == 2) actions.next_deadline += Duration(1);
      (*recorder)->AfterStep(actions);
    }
  }
  const absl::StatusOr<Replayed> replayed = ReplayAll(folder);
  REQUIRE(replayed.ok());
  CHECK(replayed->differs);
  CHECK(replayed->alike == 1);
  CHECK(replayed->last.place == EventPlace{1, 2});
}

}  // namespace
}  // namespace atl::sim
