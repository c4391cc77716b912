#include "coordinator/leading_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <functional>
#include <future>

#include "common/http/http_server.h"
#include "common/logging.h"
#include "common/metrics/metrics_server.h"
#include "common/metrics/names.h"
#include "common/net/control/channel.h"
#include "common/net/control/grpc_listener.h"
#include "common/protocol/wire.h"
#include "common/wall_clock.h"
#include "coordinator/authorization.h"
#include "coordinator/backup_service.h"
#include "coordinator/client_service.h"
#include "coordinator/http/gateway.h"
#include "coordinator/loop.h"
#include "coordinator/member_service.h"
#include "coordinator/monitoring/cluster_metrics.h"
#include "coordinator/trust/authorizer.h"
#include "coordinator/trust/key_storer.h"
#include "coordinator/trust/trust_service.h"

namespace atl {
namespace {

constexpr int kThreadsMax = 16;
constexpr size_t kMaxBufferBytes = size_t{512} << 20;
constexpr int kWindowBytes = 1 << 20;  // that one call may send before it is read
// gRPC would keep a buffer of 16 KiB a connection to seal messages of some hundred bytes.
constexpr int kTlsRecordBytes = 4096;
constexpr int kPageThreads = 40;
constexpr int kPageStreams = 32;
constexpr auto kLoopLimit = std::chrono::seconds(5);

class Leader : public LeadingServer {
 public:
  Leader(AccessControl* access, std::unique_ptr<CoordinatorLoop> loop, const std::string& state_dir)
      : access_(access),
        loop_(std::move(loop)),
        members_(loop_.get(), access_),
        client_service_(loop_.get(), access_),
        keys_(access_, [this] { members_.SendKeys(); }),
        trust_(NewTrustService(access_)),
        backups_(NewBackupService(&loop_->store(), state_dir + "/coordinator.db.backup")) {
    access_->on_revoked = [this] {
      members_.EndRevoked();
      members_.SendKeys();  // what is announced meanwhile may wait, not this
    };
  }

  absl::Status Listen(const ServerOptions& options) {
    ATOLL_ASSIGN_OR_RETURN(const auto credentials, ServerCredentials(access_, options.listen));
    if (!access_->tls().cert_path.empty()) {
      credentials->SetAuthMetadataProcessor(NewAuthorizer(access_));
    }
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    ATOLL_ASSIGN_OR_RETURN(listener_,
                           GrpcListener::Bind("--listen", options.listen, credentials, &builder));
    for (grpc::Service* service : members_.services()) builder.RegisterService(service);
    for (grpc::Service* service : client_service_.services()) builder.RegisterService(service);
    builder.RegisterService(backups_.get());
    builder.RegisterService(trust_.get());
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    builder.SetResourceQuota(
        grpc::ResourceQuota("coordinator").Resize(kMaxBufferBytes).SetMaxThreads(kThreadsMax));
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8192);
    // gRPC would ping a connection after each heartbeat to learn its bandwidth, a third of what an
    // idle member costs. A fixed window replaces it.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
    builder.AddChannelArgument(GRPC_ARG_TSI_MAX_FRAME_SIZE, kTlsRecordBytes);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kMemberKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kShortKeepaliveMs / 2);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("--listen ", options.listen, ": cannot serve"));
    }
    listener_->Start();
    state_dir_ = options.state_dir;
    ATOLL_RETURN_IF_ERROR(ServePage(options));
    ATOLL_ASSIGN_OR_RETURN(monitor_,
                           ServeMetrics(options.metrics_listen, access_->tls(), Monitor()));
    return absl::OkStatus();
  }

  int port() const override { return listener_->port(); }
  std::string page_url() const override { return page_ == nullptr ? "" : page_->url(); }
  std::string metrics_url() const override { return monitor_ == nullptr ? "" : monitor_->url(); }
  void Stop() override { loop_->Stop(); }

  absl::Status Run() override {
    const absl::Status status = loop_->Run();
    ShutDown();
    return status;
  }

  ~Leader() override {
    loop_->Stop();  // drops tasks, which ends their calls
    if (server_ != nullptr) ShutDown();
    page_.reset();
    monitor_.reset();
  }

 private:
  void ShutDown() {
    listener_->Stop();
    if (gateway_ != nullptr) gateway_->Close();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status ServePage(const ServerOptions& options) {
    if (options.http_listen.empty()) return absl::OkStatus();
    HttpOptions http;
    http.flag = "--http-listen";
    http.listen = options.http_listen;
    http.tls = access_->tls();
    http.threads = kPageThreads;
    http.max_streams = kPageStreams;
    const std::shared_ptr<grpc::Channel> here = server_->InProcessChannel(PageChannel());
    gateway_ = std::make_unique<Gateway>(
        here, [this, loopback = IsLoopbackAddress(options.http_listen)](
                  const HttpRequest& request, const std::string& call, bool try_only) {
          return Permit(request, call, loopback, try_only);
        });
    ATOLL_ASSIGN_OR_RETURN(page_, HttpServer::Start(http, [this](const HttpRequest& request) {
                             return gateway_->Answer(request);
                           }));
    LogInfo("http", "the web page is at ", page_->url(), "/");
    return absl::OkStatus();
  }

  // On a page over TLS, the certificate's role applies. In plaintext every user may read, and a
  // user on this machine may act, in a cluster without roles.
  Gateway::User Permit(const HttpRequest& request, const std::string& call, bool loopback,
                       bool try_only) {
    if (!request.peer_certificate.empty()) {
      if (try_only) {
        const Caller caller = access_->WhoIs(request.peer_certificate, request.from);
        const bool may = access_->StillAllowed(request.peer_certificate).ok() &&
                         Authorize(*caller.identity, call).ok();
        return {may ? absl::OkStatus() : absl::PermissionDeniedError("not any more"), ""};
      }
      Caller caller;
      const absl::Status allowed =
          access_->CheckCall(request.peer_certificate, request.from, call, &caller);
      return {allowed, caller.text()};
    }
    const std::string name = absl::StrCat("page/", request.from);
    const bool has_roles = !access_->tls().cert_path.empty();
    if (Authorize({Role::kViewer, ""}, call).ok() || (loopback && !has_roles)) {
      return {absl::OkStatus(), name};
    }
    if (loopback) {
      return {absl::PermissionDeniedError(
                  "this cluster has roles, and a page in plaintext shows none: use the command "
                  "line, or a page over TLS with an operator's certificate"),
              name};
    }
    return {absl::PermissionDeniedError("actions are for loopback addresses, or over TLS"), name};
  }

  static grpc::ChannelArguments PageChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    return arguments;
  }

  // Runs `task` on the loop's thread and waits for it; false when it does not come to it.
  bool OnLoop(std::function<void(Instant)> task) {
    auto done = std::make_shared<std::promise<void>>();
    std::future<void> waiting = done->get_future();
    const bool posted = loop_->Post([done, task = std::move(task)](Instant now) {
      task(now);
      done->set_value();
    });
    return posted && waiting.wait_for(kLoopLimit) == std::future_status::ready;
  }

  Monitored Monitor() {
    Monitored monitored;
    monitored.collect = [this](MetricsWriter& writer) {
      writer.AddDisk(state_dir_);
      writer.Add(kEventQueue, static_cast<double>(loop_->queued()));
      for (const auto& [denial, count] : access_->audit().denials()) {
        writer.Add(kDeniedCalls, static_cast<double>(count), {{"reason", DenialName(denial)}});
      }
      // Shared: the task may run after this call has timed out.
      auto cluster = std::make_shared<MetricsWriter>();
      const bool there = OnLoop([loop = loop_.get(), cluster](Instant now) {
        cluster->Add(kEpoch, static_cast<double>(loop->core().epoch()));
        cluster->Add(kDrifts, static_cast<double>(loop->measurements().ListTroubles(now).size()));
        const Observations& seen = loop->observations();
        AddClusterMetrics(now, UnixTimeMs(), loop->core(),
                          {seen.history(), seen.counters(), seen.progress()}, *cluster);
      });
      if (there) writer.Take(*cluster);
    };
    monitored.healthy = [this] { return OnLoop([](Instant) {}); };
    monitored.why_not_ready = [this] {
      return std::string(OnLoop([](Instant) {}) ? "" : "the main loop does not turn");
    };
    monitored.admits = [this](const std::string& certificate) {
      return ToStatus(access_->StillAllowed(certificate));
    };
    return monitored;
  }

  AccessControl* const access_;
  const std::unique_ptr<CoordinatorLoop> loop_;
  MemberService members_;
  ClientService client_service_;
  KeyStorer keys_;
  const std::unique_ptr<grpc::Service> trust_, backups_;
  std::string state_dir_;
  std::unique_ptr<GrpcListener> listener_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<HttpServer> page_;
  std::unique_ptr<HttpServer> monitor_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(
    AccessControl* access, const std::string& listen) {
  if (!access->has_authority()) return ListenCredentials(access->tls(), listen);
  return ListenCredentials(access->tls(), [access](const std::string& certificate) {
    return access->Admit(certificate);
  });
}

absl::StatusOr<std::unique_ptr<LeadingServer>> LeadingServer::Start(const ServerOptions& options,
                                                                    AccessControl* access,
                                                                    std::unique_ptr<Store> store) {
  if (store->registry() != nullptr) ATOLL_RETURN_IF_ERROR(access->Share(store->registry()));
  ATOLL_ASSIGN_OR_RETURN(auto loop,
                         CoordinatorLoop::Open(std::move(store), options.state_dir, options.cluster,
                                               access->cluster(), options.core));
  if (!options.record.empty()) ATOLL_RETURN_IF_ERROR(loop->Record(options.record));
  auto impl = std::make_unique<Leader>(access, std::move(loop), options.state_dir);
  ATOLL_RETURN_IF_ERROR(impl->Listen(options));
  return impl;
}

}  // namespace atl
