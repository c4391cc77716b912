#include "cli/client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "proto/backup.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"

namespace atl::cli {
namespace {

constexpr auto kDeadline = std::chrono::seconds(15);

// What to look at first, by what gRPC says.
absl::string_view Remedy(const std::string& message) {
  if (absl::StrContains(message, "andshake") || absl::StrContains(message, "SSL") ||
      absl::StrContains(message, "peer certificate")) {
    return "; do --tls-ca, --tls-cert and --tls-key fit the coordinator's, and does its "
           "certificate name the host of --coordinator?";
  }
  return "; is it running, and is --coordinator right?";
}

absl::Status FromGrpc(const grpc::Status& status, const std::string& address) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::Status(code,
                        absl::StrCat("no answer from the coordinator at ", address, " (",
                                     status.error_message(), ")", Remedy(status.error_message())));
  }
  return absl::Status(code, status.error_message());
}

}  // namespace

struct Client::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : jobs(v1::Jobs::NewStub(channel)),
        status(v1::Status::NewStub(channel)),
        backups(v1::Backups::NewStub(channel)) {}

  std::unique_ptr<v1::Jobs::Stub> jobs;
  std::unique_ptr<v1::Status::Stub> status;
  std::unique_ptr<v1::Backups::Stub> backups;
};

namespace {

template <class Stub, class Request, class Reply>
absl::StatusOr<Reply> Call(
    Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
    const Request& request, const std::string& address, std::chrono::milliseconds longer = {}) {
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
                   const std::string& address) {
  Message message;
  while (reader.Read(&message)) {
    if (on_message(message)) continue;
    context.TryCancel();
    reader.Finish();
    return absl::OkStatus();
  }
  return FromGrpc(reader.Finish(), address);
}

v1::JobRequest Named(const std::string& job) {
  v1::JobRequest request;
  request.set_job(job);
  return request;
}

}  // namespace

Client::Client(std::string address, std::unique_ptr<Stubs> stubs)
    : address_(std::move(address)), stubs_(std::move(stubs)) {}

Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Dial(const TlsOptions& tls,
                                                     const std::string& address) {
  ATOLL_ASSIGN_OR_RETURN(const auto channel, OpenChannel(tls, address));
  return std::unique_ptr<Client>(new Client(address, std::make_unique<Stubs>(channel)));
}

absl::StatusOr<v1::SubmitReply> Client::Submit(const v1::SubmitRequest& request) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Submit, request, address_);
}
absl::StatusOr<v1::ValidateReply> Client::Validate(const v1::SubmitRequest& request) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Validate, request, address_);
}
absl::StatusOr<v1::ListReply> Client::List() {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::List, v1::ListRequest(), address_);
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
absl::StatusOr<v1::JobSummary> Client::Cancel(const std::string& job) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Cancel, Named(job), address_);
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

absl::Status Client::Backup(const std::function<bool(const v1::BackupPart&)>& on_part) {
  grpc::ClientContext context;
  const auto reader = stubs_->backups->Make(&context, v1::BackupRequest());
  return Drain(context, *reader, on_part, address_);
}

absl::StatusOr<v1::TraceReply> Client::Trace(const v1::TraceRequest& request) {
  return Call(*stubs_->jobs, &v1::Jobs::Stub::Trace, request, address_,
              std::chrono::milliseconds(request.timeout_ms()));
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
