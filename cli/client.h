// The coordinator, as the command line calls it. The only part of cli/ that includes gRPC.
//
// Every unary call has a deadline; a stream ends when the coordinator is silent for too long
// (gRPC's keepalive). Errors name the address and what to do.

#ifndef ATOLL_CLI_CLIENT_H_
#define ATOLL_CLI_CLIENT_H_

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "common/net/control/reachability.h"
#include "common/net/control/tls.h"
#include "common/status.h"
#include "common/time.h"
#include "proto/backup.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/trust.pb.h"

namespace atl::cli {

inline constexpr Duration kDialPatience = std::chrono::seconds(10);

class Client {
 public:
  // `address`: "host:port", or a list of them, of which one leads, or will in some seconds. Where
  // nothing listens at an address of this machine, waits so long and says so on standard error.
  static absl::StatusOr<std::unique_ptr<Client>> Dial(const TlsOptions& tls,
                                                      const std::string& address,
                                                      Duration patience = kDialPatience);
  ~Client();

  absl::StatusOr<v1::SubmitReply> Submit(const v1::SubmitRequest& request);
  absl::StatusOr<v1::ValidateReply> Validate(const v1::SubmitRequest& request);
  // Jobs that have not ended, and at least so many that have, if there are so many; all by default.
  absl::StatusOr<v1::ListReply> List(int64_t ended = std::numeric_limits<int64_t>::max());
  absl::StatusOr<v1::Job> Get(const std::string& job);
  absl::StatusOr<v1::JobSummary> Pause(const std::string& job);
  absl::StatusOr<v1::JobSummary> Resume(const std::string& job);
  absl::StatusOr<v1::ChangeReply> Change(const std::string& job,
                                         const std::vector<std::string>& settings);
  absl::StatusOr<v1::JobSummary> Cancel(const std::string& job);
  absl::StatusOr<v1::JobSummary> Adopt(const std::string& job);
  absl::StatusOr<v1::JobSummary> Refill(const std::string& job, const std::string& server);
  absl::StatusOr<v1::JobSummary> NoteExport(const std::string& job, int64_t version);
  absl::StatusOr<v1::DrainReply> DrainMember(const std::string& name, bool undo);
  absl::StatusOr<v1::JobSummary> Remove(const std::string& job, bool force);
  absl::StatusOr<v1::ClusterStatus> Status();
  absl::StatusOr<v1::CreateTokenReply> CreateToken(const v1::CreateTokenRequest& request);
  absl::StatusOr<v1::TrustToken> DeleteToken(const std::string& id);
  absl::StatusOr<v1::TrustRecords> Trust();
  absl::StatusOr<v1::RevokeReply> Revoke(const v1::RevokeRequest& request);
  absl::Status Audit(int64_t tail, const std::function<bool(const v1::AuditEntry&)>& on_entry);
  // Everything that the backup holds, in order. A stream's end is OK, checked or not.
  absl::Status Backup(const std::function<bool(const v1::BackupPart&)>& on_part);
  // Waits for as long as the request says, and a little longer.
  absl::StatusOr<v1::TraceReply> Trace(const v1::TraceRequest& request);
  // Likewise.
  absl::StatusOr<v1::PreviewReply> Preview(const v1::PreviewRequest& request);
  absl::StatusOr<v1::JobHistory> History(const v1::HistoryRequest& request);
  absl::StatusOr<v1::DecisionsReply> Decisions(const v1::DecisionsRequest& request);
  // The job whose id is `name`, or the only one whose id begins with it.
  absl::StatusOr<std::string> FindJob(const std::string& name);
  // `job` as in ProfileRequest.
  absl::StatusOr<v1::ClusterProfile> Profile(const std::string& job);

  // Streams call `on_message` until it returns false or the stream ends; its end is OK then.
  absl::Status Watch(const std::string& job, int interval_ms,
                     const std::function<bool(const v1::Job&)>& on_message);
  absl::Status Logs(const v1::LogsRequest& request,
                    const std::function<bool(const v1::LogLine&)>& on_message);
  absl::Status WatchStatus(int interval_ms,
                           const std::function<bool(const v1::ClusterStatus&)>& on_message);

 private:
  struct Stubs;
  Client(Connection address, std::unique_ptr<Stubs> stubs);

  const Connection address_;
  const std::unique_ptr<Stubs> stubs_;
};

}  // namespace atl::cli

#endif  // ATOLL_CLI_CLIENT_H_
