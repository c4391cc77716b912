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

uint64_t Checksum(std::span<const std::byte> bytes);  // XXH3, 64 bits

// The record's type is its index in LogRecord. A push's payload is not in its bytes; its length is
// given to Decode to go with them.
std::vector<std::byte> EncodeRecord(const LogRecord& record);
absl::StatusOr<LogRecord> DecodeRecord(uint32_t type, std::span<const std::byte> bytes,
                                       SharedBytes payload);

// A snapshot without its tensors, and per tensor (theta, velocity of each shard in order, absent
// ones left out) its checksum.
struct SnapshotHead {
  Snapshot snapshot;
  std::vector<uint64_t> checksums;
};
std::vector<std::byte> EncodeHead(const SnapshotHead& head);
absl::StatusOr<SnapshotHead> DecodeHead(std::span<const std::byte> bytes);

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_STORAGE_CODEC_H_
