// The commands of `atoll` that talk to a coordinator. Each returns the process's exit code: 0 done,
// 1 failed. Data goes to standard output, messages to standard error.

#ifndef ATOLL_CLI_COMMANDS_H_
#define ATOLL_CLI_COMMANDS_H_

#include <cstdint>
#include <string>

#include "common/net/tls.h"
#include "common/time.h"

namespace atl::cli {

struct Global {
  std::string coordinator = "127.0.0.1:7000";  // --coordinator or $ATOLL_COORDINATOR
  TlsOptions tls;
  bool json = false;
  // Commands that follow something outlive a coordinator that is away for so long.
  Duration reconnect_for = std::chrono::minutes(5);
};

// Checks the file here; with `ask`, also asks the coordinator whether it would take it.
int Validate(const Global& global, const std::string& path, bool ask);
int Submit(const Global& global, const std::string& path, bool watch);
int List(const Global& global);
int Show(const Global& global, const std::string& job, int decisions);
int Watch(const Global& global, const std::string& job, int interval_ms);
int Logs(const Global& global, const std::string& job, bool follow);
enum class Control { kPause, kResume, kCancel };
int ControlJob(const Global& global, const std::string& job, Control control);
int RemoveJob(const Global& global, const std::string& job, bool force);
int Status(const Global& global, bool watch);
// `curve_key_path`: the file of this end's secret key where parameter servers want one.
int Export(const Global& global, const std::string& job, const std::string& folder,
           const std::string& curve_key_path);

// Makes the secret CURVE key of a worker, parameter server or exporting person and prints the
// public one as a line for --curve-clients. Needs no coordinator.
int Keygen(const Global& global, const std::string& path);

// Replaces this process by the daemon's program beside it. Returns only when that fails.
int RunDaemon(const std::string& program, char** arguments);

}  // namespace atl::cli

#endif  // ATOLL_CLI_COMMANDS_H_
