// The audit log of calls: one JSON object a line (AuditEntry of proto/trust.proto) in
// STATE_DIR/trust, for humans and for programs that collect logs: actions in audit.log, refusals in
// refusals.log, so that a flood of these, which needs no certificate, displaces no action. An
// action is on the disk before its caller gets the reply, with others that came meanwhile. Bounded:
// four files of 8 MiB of each, audit.log.1 being the newest of the full ones; of refusals at most
// 10 a second, after a burst of 100, are written, and the number of the others. Thread-safe.

#ifndef ATOLL_COORDINATOR_TRUST_AUDIT_LOG_H_
#define ATOLL_COORDINATOR_TRUST_AUDIT_LOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/group_commit.h"
#include "common/status.h"
#include "proto/trust.pb.h"

namespace atl {

class AuditLog {
 public:
  // Makes nothing before the first entry.
  AuditLog(Files* files, std::string folder, int64_t file_bytes_max = int64_t{8} << 20);

  // Sets the entry's time.
  absl::Status Add(v1::AuditEntry entry);

  // The newest `tail` actions and the newest `tail` refusals, so that no refusals push an action
  // out; all with 0. Oldest first. A damaged line is left out.
  absl::StatusOr<std::vector<v1::AuditEntry>> Read(int64_t tail) const;

  // Refusals since the start, written or not.
  std::map<v1::TrustDenial, int64_t> denials() const;

 private:
  struct Chain {
    std::string name;
    mutable std::mutex mutex;  // guards the files
    std::unique_ptr<AppendFile> file;
  };
  std::string GetChainFilePath(const Chain& chain, int number) const;  // 0: the newest
  absl::Status Rotate(Chain* chain);
  absl::Status Append(Chain* chain, const v1::AuditEntry& entry);
  absl::Status WriteActions(const std::vector<v1::AuditEntry*>& entries);
  absl::Status AddRefusal(v1::AuditEntry entry);
  absl::Status ReadChain(const Chain& chain, std::vector<v1::AuditEntry>* entries) const;
  bool MayWriteRefusal(int64_t now_ms);

  Files* const files_;
  const std::string folder_;
  const int64_t file_bytes_max_;
  Chain actions_{.name = "audit.log"}, refusals_{.name = "refusals.log"};
  GroupCommit<v1::AuditEntry> commits_;  // of actions
  mutable std::mutex mutex_;             // guards all below; locked before a chain's
  std::map<v1::TrustDenial, int64_t> denials_;
  double refusals_allowed_;
  int64_t last_refusal_ms_ = 0;
  int64_t left_out_ = 0;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRUST_AUDIT_LOG_H_
