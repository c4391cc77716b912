#include "common/protocol/mark_file.h"

#include <catch2/catch.hpp>
#include <limits>

#include "common/testing/files_simulated.h"

namespace atl {
namespace {

TEST_CASE("a_cluster_mark_is_read_as_it_was_written") {
  SimulatedFiles files(1);
  REQUIRE(ReadClusterMark(files, "/state").value() == ClusterMark());
  const ClusterMark mark{"0123456789abcdef", 7, (int64_t{7} << 32) + 5};
  REQUIRE(files.MakeFolder("/state").ok());
  REQUIRE(WriteClusterMark(files, "/state", mark).ok());
  REQUIRE(ReadClusterMark(files, "/state").value() == mark);
}

TEST_CASE("every_flipped_bit_of_a_cluster_mark_is_noticed") {
  SimulatedFiles files(1);
  REQUIRE(files.MakeFolder("/state").ok());
  REQUIRE(WriteClusterMark(files, "/state", {"0123456789abcdef", 7}).ok());
  const std::vector<std::byte> good = files.Read("/state/cluster", 256).value();
  for (size_t i = 0; i < good.size(); ++i) {
    std::vector<std::byte> bad = good;
    bad[i] ^= std::byte(1);
    const ByteSpan buffer(bad);
    REQUIRE(WriteFileAtomically(files, "/state/cluster", std::span(&buffer, 1)).ok());
    INFO("byte " << i);
    CHECK(absl::IsDataLoss(ReadClusterMark(files, "/state").status()));
  }
}

TEST_CASE(
    "a_mark_that_the_disk_does_not_take_is_tried_again_and_fences_nothing_until_it_is_there") {
  SimulatedFiles files(1);
  std::vector<std::string> changes;
  MarkWriter writer(&files, "/state", [&](const std::string& t) { changes.push_back(t); });
  const auto at = [](int ms) { return Instant() + std::chrono::milliseconds(ms); };
  CHECK(writer.Fences(at(0)));
  const ClusterMark mark{"0123456789abcdef", 7};
  writer.Remember(mark);
  files.space_bytes = 0;
  CHECK_FALSE(writer.Fences(at(0)));
  REQUIRE(changes.size() == 1);
  CHECK_FALSE(changes[0].empty());
  CHECK(writer.next_try() == at(1000));
  CHECK_FALSE(writer.Fences(at(1000)));
  CHECK(changes.size() == 1);
  files.space_bytes = std::numeric_limits<int64_t>::max();
  CHECK_FALSE(writer.Fences(at(1500)));
  CHECK(writer.Fences(at(2000)));
  CHECK(writer.next_try() == kNever);
  CHECK(changes.back().empty());
  CHECK(ReadClusterMark(files, "/state").value() == mark);
}

TEST_CASE("on_a_full_disk_a_mark_whose_sequence_alone_is_behind_fences") {
  SimulatedFiles files(1);
  MarkWriter writer(&files, "/state", [](const std::string&) {});
  const Instant now;
  writer.Remember({"0123456789abcdef", 7, 1});
  REQUIRE(writer.Fences(now));
  files.space_bytes = 0;
  writer.Remember({"0123456789abcdef", 7, 2});
  CHECK(writer.Fences(now));
  CHECK(writer.next_try() != kNever);
  CHECK(writer.Fences(now));  // between two tries
  writer.Remember({"0123456789abcdef", 8, 2});
  CHECK_FALSE(writer.Fences(now));
  CHECK_FALSE(writer.Fences(now));
}

}  // namespace
}  // namespace atl
