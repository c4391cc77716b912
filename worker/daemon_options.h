// A worker's command line, and what is wrong with it.

#ifndef ATOLL_WORKER_DAEMON_OPTIONS_H_
#define ATOLL_WORKER_DAEMON_OPTIONS_H_

#include <string>
#include <vector>

#include "common/net/control/tls.h"
#include "common/net/relay/relay.h"
#include "common/status.h"
#include "worker/backends.h"
#include "worker/path_roots.h"
#include "worker/pipeline/emulation.h"

namespace atl::worker {

// Without a number of threads: as many as it may use cores.
struct DaemonOptions : DeviceFlags {
  std::string coordinator;  // "host:port"; empty: kDefaultCoordinator, or those of `join`
  std::string name;         // empty: the host's name
  std::string state_dir;
  // Where other workers of an island reach this one; port "*": any. The default serves islands
  // within one machine.
  // At least one, at most kPeerEndpointsMax; each in another network.
  std::vector<std::string> peer_endpoints = {"tcp://127.0.0.1:*"};
  std::string relay;               // "tcp://HOST:PORT" of its relay; empty: none
  bool profile_again = false;      // forget earlier measurements of the devices
  std::string site;                // its network, by its operator; empty: found by measuring
  double price_per_hour = 0;       // of each device, in the operator's currency
  double egress_price_per_gb = 0;  // of what is sent to other sites
  double emulate_slowdown = 1;
  double emulate_step_ms = 0;   // see LeaderOptions
  double emulate_block_ms = 0;  // see EmulatedBlocks; 0: computes
  PathRoots roots;              // what jobs may make it read
  TlsOptions tls;
  std::string metrics_listen;  // "host:port" for monitors; empty: none
  std::string join;            // TOKEN@HOST:PORT; empty: no joining
  std::string curve_key_path;  // secret key for tensor links (security.h); empty: plaintext
  // Run again and again; exit status 0: this machine is about to go (notice.h). Empty: none.
  std::string notice_command;
  int notice_every_seconds = 5;
  std::string hours;  // working_hours.h; empty: always
  int nice = 0;       // of the process, above what it was started with
};

// Flags of machines that work at certain hours, or are about to be reclaimed. `App` is CLI::App.
template <class App>
void AddNoticeFlags(App& app, DaemonOptions* options) {
  app.add_option("--notice-command", options->notice_command,
                 "command that /bin/sh runs periodically; exit status 0: this machine ends in the "
                 "number of seconds that it prints, and the worker leaves as on SIGTERM");
  app.add_option("--notice-every", options->notice_every_seconds,
                 "seconds between two runs of --notice-command")
      ->capture_default_str();
  app.add_option("--hours", options->hours,
                 "hours at which it works, in local time, such as 22:00-06:00: the worker "
                 "leaves in time and comes back by itself");
  app.add_option("--nice", options->nice, "0 to 19: others' processes go before it");
}

// Where it stands and what it costs there. `App` is CLI::App.
template <class App>
void AddNetworkFlags(App& app, DaemonOptions* options) {
  app.add_option("--peer-endpoint", options->peer_endpoints,
                 "tcp://HOST:PORT for the other workers of its island; port *: any free port; "
                 "7200-7209: the first free one of these; up to 4, each in another network, over "
                 "all of which large messages go")
      ->allow_extra_args(false)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--relay", options->relay, kRelayHelp);
  app.add_option("--site", options->site,
                 "site of the machine: name of its fast network; default: found by measurement");
  app.add_option("--price-per-hour", options->price_per_hour,
                 "price of each device, in the operator's currency; see layout.objective");
  app.add_option("--egress-price-per-gb", options->egress_price_per_gb,
                 "price of a GB sent to another site");
}

// Fills in what depends on the machine; returns *options.
const DaemonOptions& SetDefaults(DaemonOptions* options);

// Checks what an operator can get wrong, before anything is touched. An error names the flag.
absl::Status CheckOptions(const DaemonOptions& options);

// An island of several workers needs every member within the others' reach.
void WarnIfUnreachable(const DaemonOptions& options);

// Lists the files that jobs never read: what identifies this worker, the programs' configuration,
// and what the system says of processes.
std::vector<std::string> ListOwnFiles(const DaemonOptions& options);

Emulation MakeEmulation(const DaemonOptions& options);
// Returns the addition to a device's name.
std::string EmulationText(const DaemonOptions& options);

// Returns whether its GPUs may work with other workers' by NCCL, which needs plaintext
// (device_side.h): on this machine where that has more GPUs, as the driver lists them, or else
// beyond it.
bool JoinsOthers(const DaemonOptions& options);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_DAEMON_OPTIONS_H_
