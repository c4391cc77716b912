#include "coordinator/server.h"

#include <atomic>
#include <mutex>

#include "common/descriptor_limit.h"
#include "common/logging.h"
#include "common/machine/room.h"
#include "common/net/tcp_probe.h"
#include "common/service_manager.h"
#include "common/state_folder.h"
#include "common/status.h"
#include "common/trust/identity_folder.h"
#include "coordinator/etcd/store_etcd.h"
#include "coordinator/leading_server.h"
#include "coordinator/recording/recorder.h"
#include "coordinator/standby_server.h"
#include "coordinator/store_backup.h"
#include "coordinator/store_sqlite.h"
#include "coordinator/trust/access_control.h"

namespace atl {
namespace {

// "host:port" with this port.
template <class Port>
std::string WithPort(const std::string& address, const Port& port) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

// The page as others reach it: at the host that is advertised, if any is.
std::string PageFor(const std::string& url, const std::string& advertise) {
  if (url.empty() || advertise.empty()) return url;
  return absl::StrCat(url.substr(0, url.find("://") + 3), advertise.substr(0, advertise.rfind(':')),
                      url.substr(url.rfind(':')));
}

// Members believe no other certificate, and would only say that the handshake fails.
absl::Status CheckOwnCertificate(const TlsOptions& tls) {
  if (tls.cert_path.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const std::string own, ReadPemFile(tls.cert_path));
  ATOLL_ASSIGN_OR_RETURN(const std::string authority, ReadPemFile(tls.ca_path));
  ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(own));
  if (!facts.identity.ok()) {
    return Annotate(facts.identity.status(), absl::StrCat("--tls-cert ", tls.cert_path));
  }
  if (facts.identity->role != Role::kCoordinator) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-cert ", tls.cert_path, ": is the certificate of ",
                     ToText(*facts.identity), ", not a coordinator's; see docs/trust.md"));
  }
  if (!IsSignedBy(own, authority)) {
    LogWarning("access", tls.cert_path, ": ", tls.ca_path,
               " has not signed it directly: members accept it only with the certificates between");
  }
  return absl::OkStatus();
}

class Coordinator : public CoordinatorServer {
 public:
  Coordinator(ServerOptions options, std::unique_ptr<AccessControl> access)
      : options_(std::move(options)), access_(std::move(access)) {}

  absl::Status Start() {
    ATOLL_RETURN_IF_ERROR(
        Annotate(ListenCredentials(access_->tls(), options_.listen).status(), "--listen"));
    ATOLL_RETURN_IF_ERROR(CheckOwnCertificate(access_->tls()));
    if (!options_.record.empty()) {
      ATOLL_RETURN_IF_ERROR(
          Annotate(EventRecorder::Open(&RealFiles(), options_.record).status(), "--record"));
    }
    // Before anything is stored: what cannot be reached leaves no state.
    ATOLL_RETURN_IF_ERROR(Annotate(CheckCanListen(options_.listen), "--listen"));
    if (!options_.http_listen.empty()) {
      ATOLL_RETURN_IF_ERROR(Annotate(CheckCanListen(options_.http_listen), "--http-listen"));
    }
    if (!options_.store.empty()) return StandBy();
    if (!options_.restore_from.empty()) {
      ATOLL_RETURN_IF_ERROR(RestoreStore(options_.restore_from, options_.state_dir));
      LogInfo("store", options_.state_dir, ": restored from ", options_.restore_from);
    }
    ATOLL_ASSIGN_OR_RETURN(auto store, OpenSqliteStore(options_.state_dir));
    return Lead(std::move(store));
  }

  int port() const override { return port_; }
  std::string address() const override { return WithPort(options_.listen, port_); }
  std::string page_url() const override { return page_url_; }
  std::string metrics_url() const override {
    return leading_ == nullptr ? "" : leading_->metrics_url();
  }

  absl::Status Run() override {
    if (standby_ != nullptr) {
      auto store = WaitToLead();
      if (absl::IsCancelled(store.status())) return absl::OkStatus();
      ATOLL_RETURN_IF_ERROR(store.status());
      ATOLL_RETURN_IF_ERROR(Lead(*std::move(store)));
    }
    return leading_->Run();
  }

  void Stop() override {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (leading_ != nullptr) leading_->Stop();
  }

 private:
  absl::Status StandBy() {
    store_.url = options_.store;
    store_.lines_folder = options_.state_dir + "/events";
    store_.tls = options_.store_tls;
    store_.tls.insecure = options_.tls.insecure;
    ATOLL_RETURN_IF_ERROR(CheckEtcdOptions(store_));
    if (!options_.advertise.empty()) {
      ATOLL_RETURN_IF_ERROR(Annotate(CheckAddress(options_.advertise), "--advertise"));
    }
    ATOLL_ASSIGN_OR_RETURN(folder_, StateFolder::Open(options_.state_dir));
    if (!options_.restore_from.empty()) {
      ATOLL_ASSIGN_OR_RETURN(
          restored_, ReadBackup(options_.restore_from, options_.state_dir + "/restore.tmp"));
    }
    ATOLL_ASSIGN_OR_RETURN(standby_, StandbyServer::Start(options_, access_.get()));
    // The leader keeps a standby's ports.
    port_ = standby_->port();
    page_url_ = standby_->page_url();
    options_.listen = address();
    if (!page_url_.empty()) {
      options_.http_listen = WithPort(
          options_.http_listen, absl::string_view(page_url_).substr(page_url_.rfind(':') + 1));
    }
    store_.self.set_address(options_.advertise.empty() ? address() : options_.advertise);
    store_.self.set_page_url(PageFor(page_url_, options_.advertise));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Store>> WaitToLead() {
    ServiceManager service;
    service.NotifyReady();
    LogInfo("store", options_.store, ": standing by");
    ATOLL_ASSIGN_OR_RETURN(auto store, OpenEtcdStore(
                                           store_,
                                           [&] {
                                             service.KeepAlive(SteadyNow());
                                             return stopped_.load();
                                           },
                                           [&](const etcd::Leader& leader) {
                                             LogInfo("store", "the leader is ", leader.address());
                                             standby_->SetLeader(leader.address(),
                                                                 leader.page_url());
                                           }));
    LogInfo("store", options_.store, ": this coordinator leads");
    if (!options_.restore_from.empty()) {
      ATOLL_RETURN_IF_ERROR(
          Annotate(store->Fill(restored_), absl::StrCat("--restore ", options_.restore_from)));
      LogInfo("store", options_.store, ": restored from ", options_.restore_from);
    }
    return store;
  }

  absl::Status Lead(std::unique_ptr<Store> store) {
    standby_.reset();  // its ports are free
    ATOLL_ASSIGN_OR_RETURN(auto leading,
                           LeadingServer::Start(options_, access_.get(), std::move(store)));
    if (options_.store.empty()) {
      port_ = leading->port();
      page_url_ = leading->page_url();
    }
    const std::lock_guard lock(mutex_);
    leading_ = std::move(leading);
    if (stopped_) leading_->Stop();
    return absl::OkStatus();
  }

  ServerOptions options_;
  const std::unique_ptr<AccessControl> access_;
  EtcdStoreOptions store_;
  StoreContents restored_;
  std::unique_ptr<StateFolder> folder_;  // without a store in it
  std::unique_ptr<StandbyServer> standby_;
  std::mutex mutex_;
  std::atomic<bool> stopped_{false};
  std::unique_ptr<LeadingServer> leading_;  // set under mutex_
  int port_ = 0;                            // does not change once it is set, as below
  std::string page_url_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(ServerOptions options) {
  RaiseDescriptorLimit();
  ATOLL_RETURN_IF_ERROR(CheckRoom(0));
  // Flags first: a wrong one must not take an epoch.
  ATOLL_ASSIGN_OR_RETURN(options.core.quotas, ParseQuotas(options.quotas));
  ATOLL_ASSIGN_OR_RETURN(auto access, AccessControl::Open(options.state_dir + "/trust", options.tls,
                                                          options.certificate_lifetime_s));
  auto impl = std::make_unique<Coordinator>(std::move(options), std::move(access));
  ATOLL_RETURN_IF_ERROR(impl->Start());
  return impl;
}

}  // namespace atl
