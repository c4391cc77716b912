#include "coordinator/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include "common/logging.h"
#include "common/net/channel.h"
#include "common/protocol/wire.h"
#include "coordinator/backup_service.h"
#include "coordinator/loop.h"
#include "coordinator/member_service.h"
#include "coordinator/people_service.h"
#include "coordinator/store_backup.h"

namespace atl {
namespace {

constexpr int kMaxThreads = 16;
constexpr size_t kMaxBufferBytes = size_t{512} << 20;

}  // namespace

class CoordinatorServer::Impl {
 public:
  explicit Impl(std::unique_ptr<CoordinatorLoop> loop)
      : loop_(std::move(loop)),
        members_(loop_.get()),
        people_(loop_.get()),
        backups_(loop_->store().path()) {}

  absl::Status Listen(const ServerOptions& options) {
    ATOLL_ASSIGN_OR_RETURN(const auto credentials, ListenCredentials(options.tls, options.listen));
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options.listen, credentials, &port_);
    for (grpc::Service* service : members_.services()) builder.RegisterService(service);
    for (grpc::Service* service : people_.services()) builder.RegisterService(service);
    builder.RegisterService(backups_.service());
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    builder.SetResourceQuota(
        grpc::ResourceQuota("coordinator").Resize(kMaxBufferBytes).SetMaxThreads(kMaxThreads));
    // Two coordinators on one port would each get half of the members.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8192);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kKeepaliveMs / 2);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(
          absl::StrCat("--listen ", options.listen, ": cannot listen there; is the port taken?"));
    }
    host_ = options.listen.substr(0, options.listen.rfind(':'));
    return absl::OkStatus();
  }

  int port() const { return port_; }
  std::string address() const { return absl::StrCat(host_, ":", port_); }
  void Stop() { loop_->Stop(); }

  absl::Status Run() {
    const absl::Status status = loop_->Run();
    server_->Shutdown(std::chrono::system_clock::now());
    return status;
  }

  ~Impl() {
    loop_->Stop();  // drops tasks, which ends their calls
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

 private:
  const std::unique_ptr<CoordinatorLoop> loop_;
  MemberService members_;
  PeopleService people_;
  BackupService backups_;
  std::string host_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(ServerOptions options) {
  // Flags first: a wrong one must not take an epoch.
  ATOLL_RETURN_IF_ERROR(
      Annotate(ListenCredentials(options.tls, options.listen).status(), "--listen"));
  if (!options.restore_from.empty()) {
    ATOLL_RETURN_IF_ERROR(RestoreStore(options.restore_from, options.state_dir));
    LogInfo("store", options.state_dir, ": restored from ", options.restore_from);
  }
  ATOLL_ASSIGN_OR_RETURN(auto loop, CoordinatorLoop::Open(options.state_dir, options.core));
  auto impl = std::make_unique<Impl>(std::move(loop));
  ATOLL_RETURN_IF_ERROR(impl->Listen(options));
  return std::unique_ptr<CoordinatorServer>(new CoordinatorServer(std::move(impl)));
}

CoordinatorServer::CoordinatorServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CoordinatorServer::~CoordinatorServer() = default;
int CoordinatorServer::port() const { return impl_->port(); }
std::string CoordinatorServer::address() const { return impl_->address(); }
absl::Status CoordinatorServer::Run() { return impl_->Run(); }
void CoordinatorServer::Stop() { impl_->Stop(); }

}  // namespace atl
