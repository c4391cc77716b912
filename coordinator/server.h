// The coordinator as a server. With the store in its state folder it leads alone. With --store
// etcd://... it is a standby (standby_server.h) until no other coordinator of that etcd leads, then
// it leads (failover; leading_server.h), until it ends or loses its lease.

#ifndef ATOLL_COORDINATOR_SERVER_H_
#define ATOLL_COORDINATOR_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "common/net/control/tls.h"
#include "coordinator/core/core.h"

namespace atl {

struct ServerOptions {
  std::string listen = "127.0.0.1:7000";  // port 0: any
  std::string state_dir;
  std::string store;         // "etcd://..."; empty: in state_dir
  TlsOptions store_tls;      // of this end of the connections to etcd
  std::string advertise;     // "host:port" by which clients reach `listen`; empty: the same
  ClusterId cluster;         // of a lost store, for an empty one; empty: the store's, or a new one
  std::string restore_from;  // a backup: the store, which is empty, is made of it first
  std::string record;        // folder for a recording of what the core receives; empty: none
  std::string metrics_listen;  // "host:port" for monitors; empty: none
  std::string http_listen;     // "host:port" of the web page; empty: none
  // Empty: those of `atoll init` in state_dir, if there are any.
  TlsOptions tls;
  int64_t certificate_lifetime_s = 30 * 86400;  // of members and users that join
  std::vector<std::string> quotas;              // as ParseQuotas has them
  CoordinatorOptions core;
};

// `App` is CLI::App.
template <class App>
void AddQuotaFlag(App& app, ServerOptions* options) {
  app.add_option("--quota", options->quotas,
                 "NAME=DEVICES, of jobs that NAME or (vision-*) a name that begins so submits; "
                 "beyond it they have what is idle. May be repeated");
}
template <class App>
void AddStoreFlags(App& app, ServerOptions* options) {
  app.add_option(
      "--store", options->store,
      "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]: keeps the records in etcd, where one of "
      "several coordinators leads; default: in --state-dir");
  app.add_option("--store-tls-ca", options->store_tls.ca_path,
                 "PEM file with the authority that signed etcd's certificates");
  app.add_option("--store-tls-cert", options->store_tls.cert_path,
                 "PEM file with this end's certificate for etcd");
  app.add_option("--store-tls-key", options->store_tls.key_path,
                 "PEM file with this end's private key for etcd");
  app.add_option("--advertise", options->advertise,
                 "HOST:PORT at which others reach --listen; standby coordinators refer to it");
}

class CoordinatorServer {
 public:
  // Listens and, with the store in its state folder, recovers; nothing is answered before Run, but
  // by a standby. The error names the flag or file.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(ServerOptions options);
  virtual ~CoordinatorServer() = default;

  virtual int port() const = 0;                 // that it listens on
  virtual std::string address() const = 0;      // the same with the host of options.listen
  virtual std::string page_url() const = 0;     // of the web page; empty: none
  virtual std::string metrics_url() const = 0;  // without "/metrics"; empty: none

  // Serves until Stop (OK), or until the store fails or is another coordinator's, and then ends all
  // connections. Once.
  virtual absl::Status Run() = 0;
  virtual void Stop() = 0;  // any thread
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_SERVER_H_
