// Log records and snapshot heads as bytes (core/records.proto), without the payloads of pushes and
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

// The format of log segments and snapshots; files of another one are refused.
inline constexpr uint32_t kStorageFormat = 6;

uint64_t Checksum(std::span<const std::byte> bytes);  // XXH3, 64 bits

// The record's payload is not in its bytes: it is given to Decode to go with them. An error names a
// field that Decode would refuse.
absl::StatusOr<std::vector<std::byte>> EncodeRecord(const LogRecord& record);
// Returns the payload of a push or of a part of a received shard; empty for other records.
std::span<const std::byte> GetPayload(const LogRecord& record);
absl::StatusOr<LogRecord> DecodeRecord(std::span<const std::byte> bytes, SharedBytes payload);

absl::StatusOr<std::vector<std::byte>> EncodeHead(const SnapshotHead& head);
absl::StatusOr<SnapshotHead> DecodeHead(std::span<const std::byte> bytes);

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_STORAGE_CODEC_H_
