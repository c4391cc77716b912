// A job's snapshots on the disk: files "snapshot-<last sequence>", each whole or absent.
//
//   file = "ATOLLSNP", u32 format, u32 0, u64 head bytes, u64 file bytes, u64 checksum of the head,
//          u64 checksum of these; the head (codec.h); then of each shard in order the parameters
//          and its slots, of an ended job its moving average alone, as fp32
//
// Two stay: when the newest turns out to be damaged, the one before it and the log since then give
// the same state. While one is written only the newest before it does, so that the disk never has
// more than two.

#ifndef ATOLL_PARAMSERVER_STORAGE_SNAPSHOT_H_
#define ATOLL_PARAMSERVER_STORAGE_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files.h"
#include "paramserver/core/records.h"

namespace atl::ps {

inline constexpr int64_t kSnapshotBytesMax = int64_t{1} << 40;

// Durable when OK. First removes all but the newest that is there.
absl::Status WriteSnapshotFile(Files& files, const std::string& folder, const Snapshot& snapshot);

// Paths of the snapshots in the folder, newest first.
absl::StatusOr<std::vector<std::string>> ListSnapshots(Files& files, const std::string& folder);

// An error names the file and what is wrong with it: DATA_LOSS with what it holds; others, it
// cannot be read now.
absl::StatusOr<std::shared_ptr<const Snapshot>> ReadSnapshotFile(
    Files& files, const std::string& path, int64_t bytes_max = kSnapshotBytesMax);

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_STORAGE_SNAPSHOT_H_
