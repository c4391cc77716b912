// A member's record of its cluster and the newest epoch, by which it fences other coordinators: the
// file `cluster` in its state folder, one line
//
//   cluster 0123456789abcdef epoch 7 sequence 30064771078 checksum 89abcdef01234567
//
// Deleting the file lets the member join the next coordinator that it meets, with all that it
// holds.

#ifndef ATOLL_COMMON_PROTOCOL_MARK_FILE_H_
#define ATOLL_COMMON_PROTOCOL_MARK_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files.h"
#include "common/protocol/control.h"

namespace atl {

// 16 hexadecimal digits.
bool IsClusterId(absl::string_view text);
// One that no other cluster has.
ClusterId NewClusterId();

// No file: a mark without a cluster. An error names the file and what to do.
absl::StatusOr<ClusterMark> ReadClusterMark(Files& files, const std::string& state_folder);

// Durable when OK; the file is never half written.
absl::Status WriteClusterMark(Files& files, const std::string& state_folder,
                              const ClusterMark& mark);

// Message about a coordinator of another cluster, and what to do about it.
std::string ForeignClusterText(const ClusterId& own, const ClusterId& foreign);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_MARK_FILE_H_
