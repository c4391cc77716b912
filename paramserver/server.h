// The daemon around ServerCore: tensor link, storage and the stream to the coordinator, whose
// threads only post events to one loop.

#ifndef ATOLL_PARAMSERVER_SERVER_H_
#define ATOLL_PARAMSERVER_SERVER_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/event_loop.h"
#include "common/net/control/attach_client.h"
#include "common/net/control/tls.h"
#include "common/net/relay/relay.h"
#include "common/net/tensor/tensor_client.h"
#include "common/net/tensor/tensor_server.h"
#include "common/protocol/mark_file.h"
#include "common/state_folder.h"
#include "common/trust/member_access.h"
#include "common/trust/refused_holders.h"
#include "paramserver/core/core.h"
#include "paramserver/daemon_metrics.h"
#include "paramserver/storage/storage.h"

namespace atl::ps {

struct DaemonOptions {
  std::string coordinator;  // "host:port"
  TlsOptions tls;
  NodeId name;
  std::string listen = "tcp://127.0.0.1:0";  // port 0: any free one
  std::string advertise;                     // empty: where it listens
  std::string site;                          // as the operator says
  std::string relay;                         // "tcp://host:port" of its relay; empty: none
  bool site_only = false;                    // shards of the site's jobs alone
  ServerSecurity security;
  std::string state_folder;
  int64_t memory_bytes = 0;  // a quarter of it (at most 1 GiB) is for pushes in flight
  int io_threads = 2;
  int threads = 2;             // for arithmetic
  std::string metrics_listen;  // "host:port" for monitors; empty: none
};

class Daemon : private TensorHandler {
 public:
  // Recovers the state, listens and begins to connect. Errors are for the operator.
  static absl::StatusOr<std::unique_ptr<Daemon>> Create(DaemonOptions options);
  ~Daemon() override;

  // Serves until Stop (OK) or until the coordinator refuses this daemon for good (the reason).
  absl::Status Run();
  void Stop() { loop_.Stop(); }  // any thread

  const std::string& endpoint() const { return endpoint_; }

 private:
  explicit Daemon(DaemonOptions options);
  absl::Status Start();
  absl::Status Listen();
  absl::Status Attach(Incarnation incarnation);
  void SetKeys(const v1::ClientKeys& listed);  // on the attach client's thread
  Instant Step(Instant now, std::optional<Event> event);
  void AddQueues(MetricsWriter& writer) const;  // any thread
  void Fetch(FetchPart fetch);
  void Forward(ForwardPush push);

  // TensorHandler, on the tensor link's thread.
  absl::Status AdmitPush(const PushId& id, Encoding encoding, int64_t element_count) override;
  void OnPush(const PushId& id, Encoding encoding, int64_t element_count, Payload payload,
              ReplyToken token) override;
  void OnPull(const PullRequest& request, ReplyToken token) override;

  const DaemonOptions options_;
  EventLoop<Event> loop_{4096};
  DaemonMetrics metrics_;
  std::unique_ptr<Relay> relay_;  // null: none could be opened
  MarkWriter mark_;
  ThreadPool pool_;
  std::unique_ptr<StateFolder> folder_;
  std::mutex gate_mutex_;
  PushGate gate_;  // guarded by gate_mutex_
  std::unique_ptr<ServerCore> core_;
  std::unique_ptr<StorageThread> storage_;
  std::unique_ptr<TensorServer> link_;
  std::unique_ptr<TensorClient>
      client_;  // of other servers: shards that move here, copies, the job above
  std::unique_ptr<ServerAttach> attach_;
  std::unique_ptr<CertificateRenewer> renewer_;
  RefusedHolders refused_;
  std::string endpoint_;
  absl::Status outcome_;
  std::unique_ptr<HttpServer> monitor_;  // last: its threads use what is above
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_SERVER_H_
