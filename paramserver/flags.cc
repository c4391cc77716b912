#include "paramserver/flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "common/flag_sources.h"
#include "common/log_flags.h"
#include "common/machine/limits.h"
#include "common/member_defaults.h"
#include "common/metrics/metrics_server.h"
#include "common/net/control/leader.h"
#include "common/net/tcp_endpoint.h"
#include "common/parse_bytes.h"
#include "common/protocol/wire.h"
#include "common/status.h"
#include "common/trust/member_access.h"
#include "common/usage.h"

namespace atl::ps {
namespace {

absl::Status ReadKeys(const std::string& key_path, const std::string& clients_path,
                      ServerSecurity* security) {
  if (key_path.empty() && !clients_path.empty()) {
    return absl::InvalidArgumentError("--curve-clients needs --curve-key");
  }
  if (key_path.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(security->keys, ReadCurveKey(key_path));
  if (clients_path.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(security->allowed_client_keys, ReadCurveClients(clients_path));
  return absl::OkStatus();
}

absl::Status Check(const DaemonOptions& options, int64_t memory_bytes, bool joins) {
  if (memory_bytes == 0) return absl::InvalidArgumentError("--memory-bytes must not be 0");
  ATOLL_RETURN_IF_ERROR(Annotate(CheckNodeName(options.name), "--name"));
  if (options.site_only && options.site.empty()) {
    return absl::InvalidArgumentError("--site-only needs --site: the site that the server is for");
  }
  if (!joins || !options.coordinator.empty()) {
    ATOLL_RETURN_IF_ERROR(Annotate(CheckAddresses(options.coordinator), "--coordinator"));
  }
  ATOLL_RETURN_IF_ERROR(Annotate(CheckListenEndpoint(options.listen), "--listen"));
  if (options.advertise.empty()) return absl::OkStatus();
  return Annotate(CheckTcpEndpoint(options.advertise), "--advertise");
}

constexpr char kListenHelp[] =
    "tcp://ADDRESS:PORT of the tensor link; port 0: any free port; 7100-7109: the first free one "
    "of these";

}  // namespace

ParsedFlags ParseFlags(int argc, const char* const* argv) {
  CLI::App app("atoll-paramserver holds shards of the global model and applies outer rounds.",
               "atoll-paramserver");
  DaemonOptions options;
  options.threads = CoresUpTo(8);
  std::string memory = "4GiB", curve_key, curve_clients, join;
  app.add_option(
      "--coordinator", options.coordinator,
      "HOST:PORT[,...] of the coordinators; default: 127.0.0.1:7000, or those of --join");
  app.add_option("--name", options.name,
                 "unique among the parameter servers; default: the host's name");
  app.add_option("--state-dir", options.state_folder, "folder for logs and snapshots")->required();
  app.add_option("--listen", options.listen, kListenHelp)->capture_default_str();
  app.add_option("--advertise", options.advertise,
                 "tcp://HOST:PORT at which workers reach it, if it differs from --listen");
  app.add_option("--site", options.site,
                 "site of the machine, as workers' --site; shards are placed near the islands");
  app.add_flag("--site-only", options.site_only,
               "hold no shards of jobs themselves, only of what their outer.site trains at --site");
  app.add_option("--relay", options.relay, kRelayHelp);
  app.add_option("--memory-bytes", memory,
                 "memory for parameters, optimizer slots and staged pushes, such as 4GiB")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "threads for arithmetic")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app.add_option("--io-threads", options.io_threads, "threads of the tensor link")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_option("--curve-key", curve_key,
                 "file with this server's secret CURVE key, made by `atoll keygen`");
  app.add_option("--curve-clients", curve_clients,
                 "file with public keys that may push and pull, one a line, in addition to those "
                 "that the coordinator distributes");
  AddLogFlags(app);
  AddJoinFlag(app, &join);
  AddMetricsFlag(app, &options.metrics_listen);
  AddTlsFlags(app, &options.tls);
  AddVersionFlag(app);

  ParsedFlags parsed;
  try {
    atl::ParseFlags(app, argc, argv, "/etc/atoll/paramserver.toml");
  } catch (const CLI::ParseError& error) {
    parsed.exit_code = ExplainUsage(app, error);
    return parsed;
  }
  options.security.allow_plaintext_beyond_loopback = options.tls.insecure;
  if (options.name.empty()) options.name = HostName();
  if (options.coordinator.empty() && join.empty()) options.coordinator = kDefaultCoordinator;
  const auto bytes = ParseBytes(memory);
  absl::Status status = bytes.ok() ? Check(options, *bytes, /*joins=*/!join.empty())
                                   : Annotate(bytes.status(), "--memory-bytes");
  if (status.ok()) {
    status = EnterCluster({Role::kParameterServer, options.name},
                          IdentityFolder(options.state_folder + "/identity"), join,
                          {&options.coordinator, &options.tls, &curve_key});
  }
  if (status.ok()) status = ReadKeys(curve_key, curve_clients, &options.security);
  if (!status.ok()) {
    std::fprintf(stderr, "atoll-paramserver: %s\n", std::string(status.message()).c_str());
    parsed.exit_code = absl::IsInvalidArgument(status) ? 2 : 1;
    return parsed;
  }
  options.memory_bytes = *bytes;
  parsed.options = std::move(options);
  return parsed;
}

}  // namespace atl::ps
