#include "cli/client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <iostream>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/text/render.h"
#include "common/event_loop.h"
#include "common/net/control/leader.h"
#include "common/net/control/reachability.h"
#include "common/net/tcp_endpoint.h"
#include "common/net/tcp_probe.h"
#include "proto/backup.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/trust.grpc.pb.h"

namespace atl::cli {
namespace {

constexpr auto kDeadline = std::chrono::seconds(15);
constexpr auto kListenPause = std::chrono::milliseconds(100);
constexpr auto kLeaderPatience = std::chrono::seconds(8);  // a lease ends and another one leads

absl::Status FromGrpc(const grpc::Status& status, const Connection& to) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
      status.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
    return absl::Status(code, absl::StrCat("the coordinator at ", to.address,
                                           " does not allow this: ", status.error_message()));
  }
  if (absl::StartsWith(status.error_message(), kStandbyText)) {
    return absl::Status(code, absl::StrCat(to.address, ": ", status.error_message(),
                                           "; give --coordinator all addresses, with commas"));
  }
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::Status(code, ExplainConnection(to, status.error_message()));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::Status(code, absl::StrCat("what listens at ", to.address,
                                           " is no coordinator of this version of Atoll"));
  }
  return absl::Status(code, status.error_message());
}

template <class Stub, class Request, class Reply>
absl::StatusOr<Reply> Call(
    Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
    const Request& request, const Connection& address, std::chrono::milliseconds longer = {}) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDeadline + longer);
  Reply reply;
  const grpc::Status status = (stub.*method)(&context, request, &reply);
  if (!status.ok()) return FromGrpc(status, address);
  return reply;
}

template <class Reader, class Message>
absl::Status Drain(grpc::ClientContext& context, Reader& reader,
                   const std::function<bool(const Message&)>& on_message,
                   const Connection& address) {
  Message message;
  while (reader.Read(&message)) {
    if (on_message(message)) continue;
    context.TryCancel();
    reader.Finish();
    return absl::OkStatus();
  }
  return FromGrpc(reader.Finish(), address);
}

// A number is named whole: lm-1 is no beginning of lm-10, which a removed lm-1 could be mistaken
// for.
bool IsBeginning(const std::string& name, const std::string& id) {
  if (name.empty() || name.size() >= id.size() || !absl::StartsWith(id, name)) return false;
  return !absl::ascii_isdigit(name.back()) || !absl::ascii_isdigit(id[name.size()]);
}

v1::JobRequest Named(const std::string& job) {
  v1::JobRequest request;
  request.set_job(job);
  return request;
}

// Names for each address what is wrong with it, in place of gRPC's words.
absl::Status NoLeader(const std::vector<std::string>& addresses, bool with_tls,
                      absl::string_view said) {
  std::vector<std::string> why;
  for (const std::string& address : addresses) {
    const std::string standby = absl::StrCat(address, ": ", kStandbyText);
    why.push_back(absl::StrContains(said, standby)
                      ? standby
                      : ExplainConnection({address, with_tls}, std::string(said)));
  }
  return absl::UnavailableError(absl::StrCat("no coordinator leads: ", absl::StrJoin(why, "; ")));
}

// Waits for a coordinator of this machine that is about to listen, and says so.
void AwaitListening(const std::string& address, Duration patience) {
  const std::string host = address.substr(0, address.rfind(':'));
  if (patience <= Duration{0} || !IsLoopbackHost(host)) return;
  const Instant limit = SteadyNow() + patience;
  bool said = false;
  while (!IsListening(address) && SteadyNow() < limit) {
    if (!std::exchange(said, true)) {
      std::cerr << "atoll: nothing listens at " << address << " yet; trying for "
                << std::chrono::ceil<std::chrono::seconds>(patience).count()
                << " s (`atoll run` starts a cluster of this machine)\n";
    }
    std::this_thread::sleep_for(kListenPause);
  }
}

}  // namespace

struct Client::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : jobs(v1::Jobs::NewStub(channel)),
        status(v1::Status::NewStub(channel)),
        backups(v1::Backups::NewStub(channel)),
        trust(v1::Trust::NewStub(channel)) {}

  std::unique_ptr<v1::Jobs::Stub> jobs;
  std::unique_ptr<v1::Status::Stub> status;
  std::unique_ptr<v1::Backups::Stub> backups;
  std::unique_ptr<v1::Trust::Stub> trust;
};

Client::Client(Connection address, std::unique_ptr<Stubs> stubs)
    : address_(std::move(address)), stubs_(std::move(stubs)) {}

Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Dial(const TlsOptions& tls,
                                                     const std::string& address,
                                                     Duration patience) {
  ATOLL_RETURN_IF_ERROR(Annotate(CheckAddresses(address), "--coordinator"));
  const bool with_tls = !tls.cert_path.empty();
  if (SplitAddresses(address).size() == 1) AwaitListening(address, patience);
  const auto leader = OpenLeaderChannel(tls, address, kLeaderPatience);
  if (absl::IsUnavailable(leader.status())) {
    return NoLeader(SplitAddresses(address), with_tls, leader.status().message());
  }
  ATOLL_RETURN_IF_ERROR(leader.status());
  return std::unique_ptr<Client>(
      new Client({leader->address, with_tls}, std::make_unique<Stubs>(leader->channel)));
}

absl::StatusOr<v1::SubmitReply> Client::Submit(const v1::SubmitRequest& request) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Submit, request, address_);
}
absl::StatusOr<v1::ValidateReply> Client::Validate(const v1::SubmitRequest& request) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Validate, request, address_);
}
absl::StatusOr<v1::ListReply> Client::List(int64_t ended) {
  std::vector<v1::ListReply> pages;  // newest first
  v1::ListRequest request;
  int64_t listed = 0, before = std::numeric_limits<int64_t>::max();
  do {
    if (request.before() != 0) before = request.before();
    ATOLL_ASSIGN_OR_RETURN(pages.emplace_back(),
                           Call(*stubs_->jobs, &v1::Jobs::Stub::List, request, address_));
    for (const v1::JobSummary& job : pages.back().jobs()) listed += Ended(job.state()) ? 1 : 0;
    request.set_before(pages.back().before());
  } while (request.before() > 0 && request.before() < before && listed < ended);
  v1::ListReply all;
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) all.MergeFrom(*page);
  all.set_before(request.before());
  return all;
}
absl::StatusOr<v1::Job> Client::Get(const std::string& job) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Get, Named(job), address_);
}
absl::StatusOr<v1::JobSummary> Client::Pause(const std::string& job) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Pause, Named(job), address_);
}
absl::StatusOr<v1::JobSummary> Client::Resume(const std::string& job) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Resume, Named(job), address_);
}
absl::StatusOr<v1::ChangeReply> Client::Change(const std::string& job,
                                               const std::vector<std::string>& settings) {
  v1::ChangeRequest request;
  request.set_job(job);
  request.mutable_settings()->Assign(settings.begin(), settings.end());
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Change, request, address_);
}
absl::StatusOr<v1::JobSummary> Client::Cancel(const std::string& job) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Cancel, Named(job), address_);
}
absl::StatusOr<v1::JobSummary> Client::Adopt(const std::string& job) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Adopt, Named(job), address_);
}
absl::StatusOr<v1::JobSummary> Client::Refill(const std::string& job, const std::string& server) {
  v1::RefillRequest request;
  request.set_job(job);
  request.set_server(server);
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Refill, request, address_);
}
absl::StatusOr<v1::JobSummary> Client::NoteExport(const std::string& job, int64_t version) {
  v1::NoteExportRequest request;
  request.set_job(job);
  request.set_version(version);
  return Call(*stubs_->jobs, &v1::Jobs::Stub::NoteExport, request, address_);
}
absl::StatusOr<v1::DrainReply> Client::DrainMember(const std::string& name, bool undo) {
  v1::DrainRequest request;
  request.set_server(name);
  request.set_undo(undo);
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Drain, request, address_);
}
absl::StatusOr<v1::JobSummary> Client::Remove(const std::string& job, bool force) {
  v1::RemoveRequest request;
  request.set_job(job);
  request.set_force(force);
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Remove, request, address_);
}
absl::StatusOr<v1::ClusterStatus> Client::Status() {
  return Call(*stubs_->status, &v1::Status::Stub::Get, v1::StatusRequest(), address_);
}

absl::StatusOr<v1::CreateTokenReply> Client::CreateToken(const v1::CreateTokenRequest& request) {
  return Call(*stubs_->trust, &v1::Trust::Stub::CreateToken, request, address_);
}
absl::StatusOr<v1::TrustToken> Client::DeleteToken(const std::string& id) {
  v1::DeleteTokenRequest request;
  request.set_id(id);
  ATOLL_ASSIGN_OR_RETURN(const v1::DeleteTokenReply reply,
                         Call(*stubs_->trust, &v1::Trust::Stub::DeleteToken, request, address_));
  return reply.token();
}
absl::StatusOr<v1::TrustRecords> Client::Trust() {
  return Call(*stubs_->trust, &v1::Trust::Stub::List, v1::TrustListRequest(), address_);
}
absl::StatusOr<v1::RevokeReply> Client::Revoke(const v1::RevokeRequest& request) {
  return Call(*stubs_->trust, &v1::Trust::Stub::Revoke, request, address_);
}
absl::Status Client::Audit(int64_t tail,
                           const std::function<bool(const v1::AuditEntry&)>& on_entry) {
  grpc::ClientContext context;
  v1::AuditRequest request;
  request.set_tail(tail);
  const auto reader = stubs_->trust->Audit(&context, request);
  return Drain(context, *reader, on_entry, address_);
}

absl::Status Client::Backup(const std::function<bool(const v1::BackupPart&)>& on_part) {
  grpc::ClientContext context;
  const auto reader = stubs_->backups->Make(&context, v1::BackupRequest());
  return Drain(context, *reader, on_part, address_);
}

absl::StatusOr<v1::TraceReply> Client::Trace(const v1::TraceRequest& request) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Trace, request, address_,
              std::chrono::milliseconds(request.timeout_ms()));
}

absl::StatusOr<v1::PreviewReply> Client::Preview(const v1::PreviewRequest& request) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Preview, request, address_,
              std::chrono::milliseconds(request.timeout_ms()));
}

absl::StatusOr<v1::DecisionsReply> Client::Decisions(const v1::DecisionsRequest& request) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Decisions, request, address_);
}

absl::StatusOr<v1::JobHistory> Client::History(const v1::HistoryRequest& request) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::History, request, address_);
}

absl::StatusOr<std::string> Client::FindJob(const std::string& name) {
  constexpr size_t kNamed = 5;
  if (name.empty())
    return absl::InvalidArgumentError("JOB is empty: name one that atoll ls prints");
  ATOLL_ASSIGN_OR_RETURN(const v1::ListReply list, List());
  std::vector<std::string> ids, begin;
  for (const v1::JobSummary& job : list.jobs()) ids.push_back(job.job());
  for (const v1::Orphan& job : list.orphans()) ids.push_back(job.job());
  bool cut = false;  // a number is
  for (const std::string& id : ids) {
    if (id == name) return name;
    if (IsBeginning(name, id)) begin.push_back(id);
    cut = cut || absl::StartsWith(id, name);
  }
  if (begin.size() == 1) return begin.front();
  if (begin.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no job ", name, ": ",
                                            cut ? "the number of an id is written whole; " : "",
                                            "see atoll ls"));
  }
  const size_t count = begin.size();
  begin.resize(std::min(count, kNamed));
  return absl::InvalidArgumentError(absl::StrCat(count, " jobs begin with ", name, ": ",
                                                 absl::StrJoin(begin, ", "),
                                                 count > kNamed ? ", ..." : ""));
}

absl::StatusOr<v1::ClusterProfile> Client::Profile(const std::string& job) {
  v1::ProfileRequest request;
  request.set_job(job);
  return Call(*stubs_->status, &v1::Status::Stub::Profile, request, address_);
}

absl::Status Client::Watch(const std::string& job, int interval_ms,
                           const std::function<bool(const v1::Job&)>& on_message) {
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_job(job);
  request.set_interval_ms(interval_ms);
  const auto reader = stubs_->jobs->Watch(&context, request);
  return Drain(context, *reader, on_message, address_);
}

absl::Status Client::Logs(const v1::LogsRequest& request,
                          const std::function<bool(const v1::LogLine&)>& on_message) {
  grpc::ClientContext context;
  const auto reader = stubs_->jobs->Logs(&context, request);
  return Drain(context, *reader, on_message, address_);
}

absl::Status Client::WatchStatus(int interval_ms,
                                 const std::function<bool(const v1::ClusterStatus&)>& on_message) {
  grpc::ClientContext context;
  v1::StatusRequest request;
  request.set_interval_ms(interval_ms);
  const auto reader = stubs_->status->Watch(&context, request);
  return Drain(context, *reader, on_message, address_);
}

}  // namespace atl::cli
