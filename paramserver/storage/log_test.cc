#include "paramserver/storage/log.h"

#include <catch2/catch.hpp>

#include "common/protocol/wire.h"
#include "common/testing/files_simulated.h"
#include "paramserver/storage/codec.h"
#include "proto/control.pb.h"

namespace atl::ps {
namespace {

SharedBytes SomeBytes(size_t count) {
  auto bytes = std::make_shared<std::vector<std::byte>>(count);
  for (size_t i = 0; i < count; ++i) (*bytes)[i] = std::byte(i * 7 + count);
  return {bytes, *bytes};
}

// One record of each kind, and pushes of odd sizes.
std::vector<LogRecord> SomeRecords() {
  const ContributionId by{3, 2, 9, 4};
  return {AssignedRecord{7, {"job-1", {{0, 0, 4}, {5, 1, 3}}, 0.5, 0.9, 8}},
          FencedRecord{{{3, 2, 9}, {4, 2, 10}}},
          PushedRecord{{"job-1", 3, 2, 9, 4, 5}, Encoding::kFloat32, SomeBytes(12)},
          PushedRecord{{"job-1", 3, 2, 9, 4, 0}, Encoding::kInt4, SomeBytes(5)},
          CommittedRecord{5, {{by, 0.25}}, {{1, 1, 1, 1}}},
          DroppedRecord{{by, by}},
          EndedRecord{}};
}

// A log in d/, written record by record: what was read from it is compared with what was written.
class LogFixture {
 public:
  explicit LogFixture(int64_t segment_bytes = 1 << 20, int64_t rotate_bytes = 1 << 20) {
    options_.segment_bytes = segment_bytes;
    options_.rotate_bytes = rotate_bytes;
  }

  void Write(const LogEnd& end, const std::vector<LogRecord>& records, size_t sync_every = 1) {
    writer_ = std::make_unique<LogWriter>(&disk, "d", end, options_);
    size_t since = 0;
    for (const LogRecord& record : records) {
      REQUIRE(writer_->Append(end.next_sequence + written_.size() - base(end), record).ok());
      written_.push_back(*EncodeRecord(record));
      const auto payload = GetPayload(record);
      payloads_.emplace_back(payload.begin(), payload.end());
      if (++since % sync_every == 0) REQUIRE(writer_->Sync().ok());
    }
  }
  // How many leading records were read back, all of them as written; or why not.
  absl::StatusOr<size_t> Read(LogSequence from = 1) {
    size_t count = 0;
    auto end = ReadLog(disk, "d", from, /*covered=*/0, options_,
                       [&](LogSequence at, const LogRecord& record) {
                         REQUIRE(at == from + count);
                         REQUIRE(*EncodeRecord(record) == written_[at - 1]);
                         const auto payload = GetPayload(record);
                         REQUIRE(std::vector(payload.begin(), payload.end()) == payloads_[at - 1]);
                         ++count;
                         return absl::OkStatus();
                       });
    if (!end.ok()) return end.status();
    REQUIRE(end->next_sequence == from + count);
    last = *end;
    return count;
  }
  // The records read where a snapshot contains those up to `covered`; none: why not.
  absl::StatusOr<std::vector<LogSequence>> ReadCovered(LogSequence covered) {
    std::vector<LogSequence> read;
    auto end =
        ReadLog(disk, "d", 1, covered, options_, [&](LogSequence at, const LogRecord& record) {
          REQUIRE(*EncodeRecord(record) == written_[at - 1]);
          read.push_back(at);
          return absl::OkStatus();
        });
    if (!end.ok()) return end.status();
    last = *end;
    return read;
  }
  LogWriter& writer() { return *writer_; }
  std::string newest() const { return disk.Paths().back(); }

  SimulatedFiles disk{1};
  LogEnd last;

 private:
  size_t base(const LogEnd& end) const { return end.next_sequence - 1; }
  LogOptions options_;
  std::unique_ptr<LogWriter> writer_;
  std::vector<std::vector<std::byte>> written_, payloads_;
};

TEST_CASE("records come back as they were, over segments and restarts") {
  for (const int64_t segment_bytes : {1, 300, 100000}) {
    LogFixture fixture(segment_bytes);
    fixture.Write({}, SomeRecords());
    REQUIRE(*fixture.Read() == 7);
    REQUIRE(fixture.last.cut.empty());
    REQUIRE((fixture.disk.Paths().size() == 7) == (segment_bytes == 1));
    fixture.Write(fixture.last, SomeRecords());
    REQUIRE(*fixture.Read() == 14);
    REQUIRE(*fixture.Read(9) == 6);
  }
}

TEST_CASE("parts_of_received_shards_come_back_with_their_bytes") {
  for (const ReceivedPart part : {ReceivedPart::kParameters, ReceivedPart::kAdopted}) {
    LogFixture fixture;
    fixture.Write({}, {ReceivedRecord{{6, 1, 9}, 2, 5, part, 0, 3, SomeBytes(16)}, EndedRecord{}});
    REQUIRE(*fixture.Read() == 2);
  }
}

TEST_CASE("truncation removes whole segments that hold only old records") {
  LogFixture fixture(1);
  fixture.Write({}, SomeRecords());
  REQUIRE(fixture.writer().Truncate(4).ok());
  REQUIRE(fixture.disk.Paths().size() == 4);
  REQUIRE(*fixture.Read(4) == 4);
  REQUIRE(fixture.writer().Truncate(100).ok());
  REQUIRE(fixture.disk.Paths().size() == 1);  // it holds the numbering
  REQUIRE(*fixture.Read(7) == 1);
}

TEST_CASE("a_log_that_is_truncated_again_and_again_stays_small") {
  LogFixture fixture(1 << 20, 1);
  fixture.Write({}, SomeRecords());
  REQUIRE(fixture.disk.Paths().size() == 1);
  for (LogSequence next = 8; next < 20; ++next) {
    REQUIRE(fixture.writer().Truncate(next).ok());
    REQUIRE(fixture.disk.Paths().size() == 1);  // it holds the numbering
    REQUIRE(fixture.writer().Append(next, EndedRecord{}).ok());
    REQUIRE(fixture.writer().Truncate(next).ok());  // not durable: it stays as it is
    REQUIRE(fixture.writer().Sync().ok());
  }
  REQUIRE(fixture.disk.Paths().size() == 1);
}

TEST_CASE("a cut newest segment is read up to the cut and the rest is reported") {
  LogFixture whole;
  whole.Write({}, SomeRecords());
  const std::vector<std::byte> bytes = whole.disk.Bytes(whole.newest());
  size_t before = 0;
  int at_boundaries = 0;
  for (size_t size = 0; size < bytes.size(); ++size) {
    LogFixture fixture;
    fixture.Write({}, SomeRecords());
    fixture.disk.Bytes(fixture.newest()).resize(size);
    const auto read = fixture.Read();
    REQUIRE(read.ok());
    REQUIRE(*read < 7);
    REQUIRE(*read >= before);
    before = *read;
    at_boundaries += fixture.last.cut.empty();
    fixture.last.cut.clear();
    REQUIRE(*fixture.Read() == before);  // it is mended
    REQUIRE(fixture.last.cut.empty());
  }
  REQUIRE(at_boundaries == 7);  // after the head and after each record but the last
}

TEST_CASE(
    "a flipped bit in what was durable is an error that names file and offset, never a record") {
  const size_t size = [] {
    LogFixture fixture;
    fixture.Write({}, SomeRecords());
    return fixture.disk.Bytes(fixture.newest()).size();
  }();
  size_t errors = 0, tails = 0;
  for (size_t at = 0; at < size; ++at) {
    LogFixture fixture;
    fixture.Write({}, SomeRecords());
    fixture.disk.Bytes(fixture.newest())[at] ^= std::byte(1 << (at % 8));
    const auto read = fixture.Read();
    if (read.ok()) {
      REQUIRE(*read == 6);  // only of the last record, for which nothing later vouches
      REQUIRE_FALSE(fixture.last.cut.empty());
      ++tails;
    } else {
      REQUIRE(read.status().message().find("d/log-00000000000000000001: damaged at offset ") == 0);
      ++errors;
    }
  }
  constexpr size_t kRecordHead = 64, kAlign = 8;
  const size_t fields = EncodeRecord(SomeRecords().back())->size();
  REQUIRE(tails == kRecordHead + (fields + kAlign - 1) / kAlign * kAlign);  // the last record
  REQUIRE(errors == size - tails);
}

TEST_CASE("damage in an older segment is an error, at every byte; so is a missing segment") {
  LogFixture whole(1);
  whole.Write({}, SomeRecords());
  const std::string path = whole.disk.Paths()[2];
  const size_t size = whole.disk.Bytes(path).size();
  for (size_t at = 0; at < size; ++at) {
    LogFixture flipped(1), cut(1);
    flipped.Write({}, SomeRecords());
    cut.Write({}, SomeRecords());
    flipped.disk.Bytes(path)[at] ^= std::byte(0x10);
    cut.disk.Bytes(path).resize(at);
    REQUIRE(flipped.Read().status().code() == absl::StatusCode::kDataLoss);
    REQUIRE(cut.Read().status().code() == absl::StatusCode::kDataLoss);
  }
  REQUIRE(whole.disk.Remove(path).ok());
  REQUIRE(whole.Read().status().message().find("it ends with record 2") != std::string::npos);
}

TEST_CASE("unsynced records after a broken one are a torn tail, not damage") {
  LogFixture fixture;
  fixture.Write({}, SomeRecords(), /*sync_every=*/100);
  fixture.disk.Bytes(fixture.newest())[32 + 80] ^=
      std::byte(1);  // in the fields of the first record
  REQUIRE(*fixture.Read() == 0);
  REQUIRE(fixture.last.cut.find("cut ") != std::string::npos);
}

TEST_CASE("a full disk: rolled back, and written when there is room") {
  LogFixture fixture;
  fixture.Write({}, SomeRecords());
  const auto before = fixture.disk.Bytes(fixture.newest());
  fixture.disk.space_bytes = static_cast<int64_t>(before.size()) + 70;
  const LogRecord record = SomeRecords()[2];
  REQUIRE(fixture.writer().Append(8, record).code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(fixture.writer().Rollback().ok());
  REQUIRE(fixture.disk.Bytes(fixture.newest()) == before);
  fixture.disk.space_bytes = 1 << 20;
  REQUIRE(fixture.writer().Append(8, record).ok());
  REQUIRE(fixture.writer().Sync().ok());
  REQUIRE(fixture.writer().synced() == 8);
}

TEST_CASE("fields that are not a record are refused without taking memory for them") {
  for (const std::byte filler : {std::byte(0xff), std::byte(0x7f), std::byte(1)}) {
    for (size_t size = 0; size < 200; ++size) {
      const std::vector<std::byte> bytes(size, filler);
      REQUIRE(DecodeRecord(bytes, {}).status().code() == absl::StatusCode::kDataLoss);
    }
  }
}

TEST_CASE("a_part_of_an_adopted_version_reads_as_it_was_written_and_other_parts_are_refused") {
  ReceivedRecord record{{5, 1, 8}, 2, 77, ReceivedPart::kAdopted, 0, 4, SomeBytes(16)};
  const auto read = DecodeRecord(*EncodeRecord(record), record.payload);
  REQUIRE(read.ok());
  const auto& same = std::get<ReceivedRecord>(*read);
  CHECK(same.shard == record.shard);
  CHECK(same.version == 77);
  CHECK(same.part == ReceivedPart::kAdopted);
  CHECK(same.begin == 4);
  record.part = static_cast<ReceivedPart>(static_cast<int>(ReceivedPart::kAdopted) + 1);
  CHECK_FALSE(EncodeRecord(record).ok());
}

TEST_CASE("a_flipped_bit_in_records_that_a_snapshot_contains_does_not_matter") {
  for (const int64_t segment_bytes : {1, 300, 100000}) {
    LogFixture fixture(segment_bytes);
    std::vector<LogRecord> records = SomeRecords();
    const std::vector<LogRecord> newer(records.begin() + 5, records.end());
    records.resize(5);
    fixture.Write({}, records);
    const std::vector<std::string> older = fixture.disk.Paths();
    REQUIRE(*fixture.Read() == 5);
    fixture.Write(fixture.last, newer);
    for (const std::string& path : older) {
      const size_t size = fixture.disk.Bytes(path).size();
      for (size_t byte = 0; byte < size; ++byte) {
        fixture.disk.Bytes(path)[byte] ^= std::byte(4);
        const auto read = fixture.ReadCovered(5);
        INFO(path << ", byte " << byte << ", segments of " << segment_bytes);
        REQUIRE(read.ok());
        CHECK(std::count(read->begin(), read->end(), 6) == 1);
        CHECK(read->back() == 7);
        CHECK(fixture.last.next_sequence == 8);
        CHECK_FALSE(fixture.ReadCovered(0).ok());  // it is damage where it is needed
        fixture.disk.Bytes(path)[byte] ^= std::byte(4);
      }
    }
  }
}

}  // namespace
}  // namespace atl::ps
