// Log records and snapshot heads as bytes, little endian, without the payloads of pushes and
// tensors. Reading trusts nothing: an error, not a crash, and no more memory than the bytes' own
// size calls for.

#ifndef ATOLL_PARAMSERVER_STORAGE_CODEC_H_
#define ATOLL_PARAMSERVER_STORAGE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "paramserver/core/records.h"

namespace atl::ps {

// Of log records and snapshots: what is written, and the oldest that is read. Format 3 has no steps
// of rounds, and one slot, "momentum"; format 4 no exchange of a site's job with the job above.
inline constexpr uint32_t kStorageFormat = 5;
inline constexpr uint32_t kOldestStorageFormat = 3;

uint64_t Checksum(std::span<const std::byte> bytes);  // XXH3, 64 bits

// The record's type is its index in LogRecord. Its payload is not in its bytes: it is given to
// Decode to go with them. An error names a field that Decode would refuse.
absl::StatusOr<std::vector<std::byte>> EncodeRecord(const LogRecord& record);
// What a push or a part of a received shard has brought; empty of other records.
std::span<const std::byte> GetPayload(const LogRecord& record);
absl::StatusOr<LogRecord> DecodeRecord(uint32_t type, std::span<const std::byte> bytes,
                                       SharedBytes payload, uint32_t format = kStorageFormat);

// A snapshot without its tensors, and per tensor (theta, slots of each shard in order, absent ones
// left out) its checksum.
struct SnapshotHead {
  Snapshot snapshot;
  std::vector<uint64_t> checksums;
};
absl::StatusOr<std::vector<std::byte>> EncodeHead(const SnapshotHead& head);
absl::StatusOr<SnapshotHead> DecodeHead(std::span<const std::byte> bytes,
                                        uint32_t format = kStorageFormat);

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_STORAGE_CODEC_H_
