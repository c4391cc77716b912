// A member's record of its cluster and the newest epoch, by which it fences other coordinators: the
// file `cluster` in its state folder, one line
//
//   cluster 0123456789abcdef epoch 7 sequence 30064771078 checksum 89abcdef01234567
//
// Deleting the file lets the member join the next coordinator that it meets, with all that it
// holds.

#ifndef ATOLL_COMMON_PROTOCOL_MARK_FILE_H_
#define ATOLL_COMMON_PROTOCOL_MARK_FILE_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files.h"
#include "common/protocol/control.h"
#include "common/time.h"

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

// Stores what a member has seen of its coordinator before the member sends anything: otherwise an
// older coordinator could go unnoticed. Not thread-safe.
class MarkWriter {
 public:
  // `files` outlive it. `on_change`: the disk takes nothing, and why, or takes it again: "".
  MarkWriter(Files* files, std::string state_folder,
             std::function<void(const std::string& trouble)> on_change)
      : files_(files), state_folder_(std::move(state_folder)), on_change_(std::move(on_change)) {}

  void Remember(const ClusterMark& mark) {
    if (!pending_ || pending_->cluster != mark.cluster || pending_->epoch != mark.epoch) {
      next_try_ = Instant();
    }
    pending_ = mark;
  }
  // Returns whether the cluster and the epoch are durable. A write that failed is tried again once
  // a second. On a full disk the sequence may stay behind: members with a newer one, this one until
  // it restarts among them, still notice a coordinator that has lost decisions.
  bool Fences(Instant now);
  // Returns when it is tried again; kNever: it is durable.
  Instant next_try() const { return pending_ ? next_try_ : kNever; }

 private:
  Files* const files_;
  const std::string state_folder_;
  const std::function<void(const std::string&)> on_change_;
  std::optional<ClusterMark> pending_;
  Instant next_try_{};
  bool fences_ = false;  // since the last try
  std::string trouble_;
};

// Message about a coordinator of another cluster, and what to do about it.
std::string ForeignClusterText(const ClusterId& own, const ClusterId& foreign);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_MARK_FILE_H_
