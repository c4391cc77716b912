#include "coordinator/standby_server.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <mutex>

#include "common/http/http_server.h"
#include "common/net/control/grpc_listener.h"
#include "common/net/control/leader.h"
#include "coordinator/leading_server.h"

namespace atl {
namespace {

constexpr int kStandbyThreadsMax = 4;
constexpr size_t kStandbyBufferBytesMax = size_t{32} << 20;

// Who leads, as far as is known. Thread-safe.
class Signpost {
 public:
  void Set(const std::string& address, const std::string& page_url) {
    const std::lock_guard lock(mutex_);
    address_ = address;
    page_url_ = page_url;
  }
  std::string address() const {
    const std::lock_guard lock(mutex_);
    return address_;
  }
  std::string page_url() const {
    const std::lock_guard lock(mutex_);
    return page_url_;
  }

 private:
  mutable std::mutex mutex_;
  std::string address_, page_url_;
};

std::string Refusal(const std::string& leader) {
  if (leader.empty()) return absl::StrCat(kStandbyText, ", and none leads yet; try again");
  return absl::StrCat(kStandbyText, "; the leader is ", leader);
}

class RefusingService : public grpc::CallbackGenericService {
 public:
  explicit RefusingService(const Signpost* signpost) : signpost_(signpost) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* /*context*/) override {
    class Reactor : public grpc::ServerGenericBidiReactor {
     public:
      explicit Reactor(const std::string& text) {
        Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, text));
      }
      void OnDone() override { delete this; }
    };
    return new Reactor(Refusal(signpost_->address()));
  }

 private:
  const Signpost* const signpost_;
};

class Standby : public StandbyServer {
 public:
  Standby() : service_(&signpost_) {}
  ~Standby() override {
    page_.reset();
    if (listener_ != nullptr) listener_->Stop();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen(const ServerOptions& options, AccessControl* access) {
    ATOLL_ASSIGN_OR_RETURN(const auto credentials, ServerCredentials(access, options.listen));
    grpc::ServerBuilder builder;
    ATOLL_ASSIGN_OR_RETURN(listener_,
                           GrpcListener::Bind("--listen", options.listen, credentials, &builder));
    builder.RegisterCallbackGenericService(&service_);
    // The leader alone is healthy: so clients find it (common/net/control/leader.h).
    builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
    builder.SetResourceQuota(grpc::ResourceQuota("standby")
                                 .Resize(kStandbyBufferBytesMax)
                                 .SetMaxThreads(kStandbyThreadsMax));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("--listen ", options.listen, ": cannot serve"));
    }
    listener_->Start();
    if (options.http_listen.empty()) return absl::OkStatus();
    HttpOptions http;
    http.flag = "--http-listen";
    http.listen = options.http_listen;
    http.tls = access->tls();
    ATOLL_ASSIGN_OR_RETURN(page_,
                           HttpServer::Start(http, [this](const HttpRequest&) { return Page(); }));
    return absl::OkStatus();
  }

  int port() const override { return listener_->port(); }
  std::string page_url() const override { return page_ == nullptr ? "" : page_->url(); }
  void SetLeader(const std::string& address, const std::string& page_url) override {
    signpost_.Set(address, page_url);
  }

 private:
  HttpReply Page() const {
    HttpReply reply;
    const std::string url = signpost_.page_url();
    reply.status = url.empty() ? 503 : 307;
    if (!url.empty()) reply.location = url + "/";
    reply.type = "text/html; charset=utf-8";
    reply.body = absl::StrCat("<!doctype html><title>Atoll</title><p>",
                              Refusal(signpost_.address()), ".</p>");
    if (!url.empty()) {
      absl::StrAppend(&reply.body, "<p><a href=\"", url, "/\">The leader's page</a></p>");
    }
    return reply;
  }

  Signpost signpost_;
  RefusingService service_;
  std::unique_ptr<GrpcListener> listener_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<HttpServer> page_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StandbyServer>> StandbyServer::Start(const ServerOptions& options,
                                                                    AccessControl* access) {
  auto impl = std::make_unique<Standby>();
  ATOLL_RETURN_IF_ERROR(impl->Listen(options, access));
  return impl;
}

}  // namespace atl
