#include "worker/daemon_options.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "absl/strings/match.h"
#include "common/logging.h"
#include "common/machine/room.h"
#include "common/member_defaults.h"
#include "common/net/control/leader.h"
#include "common/net/security.h"
#include "common/net/tcp_endpoint.h"
#include "common/protocol/wire.h"
#include "worker/working_hours.h"

namespace atl::worker {
namespace {

template <class T>
absl::Status CheckRange(absl::string_view flag, T value, T low, T high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", value, ": must be from ", low, " to ", high));
}

absl::Status CheckPeerEndpoints(const std::vector<std::string>& endpoints) {
  if (endpoints.empty() || std::ssize(endpoints) > kPeerEndpointsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "given ", endpoints.size(), " times: a worker has 1 to ", kPeerEndpointsMax, " of them"));
  }
  for (size_t i = 0; i < endpoints.size(); ++i) {
    ATOLL_RETURN_IF_ERROR(CheckListenEndpoint(endpoints[i]));
    const bool any_port = absl::EndsWith(endpoints[i], ":*") || absl::EndsWith(endpoints[i], ":0");
    if (!any_port && std::find(endpoints.begin(), endpoints.begin() + i, endpoints[i]) !=
                         endpoints.begin() + i) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", endpoints[i], "\" is given twice: each is an address of another network"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const DaemonOptions& SetDefaults(DaemonOptions* options) {
  if (options->name.empty()) options->name = HostName();
  if (options->coordinator.empty() && options->join.empty()) {
    options->coordinator = kDefaultCoordinator;
  }
  return *options;
}

absl::Status CheckOptions(const DaemonOptions& options) {
  if (options.join.empty() || !options.coordinator.empty()) {
    ATOLL_RETURN_IF_ERROR(Annotate(CheckAddresses(options.coordinator), "--coordinator"));
  }
  ATOLL_RETURN_IF_ERROR(Annotate(CheckNodeName(options.name), "--name"));
  ATOLL_RETURN_IF_ERROR(CheckRoots(options.roots));
  if (!options.site.empty()) ATOLL_RETURN_IF_ERROR(Annotate(CheckNodeName(options.site), "--site"));
  ATOLL_RETURN_IF_ERROR(CheckRange("--price-per-hour", options.price_per_hour, 0.0, 1e9));
  ATOLL_RETURN_IF_ERROR(CheckRange("--egress-price-per-gb", options.egress_price_per_gb, 0.0, 1e9));
  ATOLL_RETURN_IF_ERROR(Annotate(CheckPeerEndpoints(options.peer_endpoints), "--peer-endpoint"));
  ATOLL_RETURN_IF_ERROR(CheckRange("--emulate-slowdown", options.emulate_slowdown, 1.0, 1000.0));
  ATOLL_RETURN_IF_ERROR(CheckRange("--emulate-step-ms", options.emulate_step_ms, 0.0, 3.6e6));
  ATOLL_RETURN_IF_ERROR(CheckRange("--emulate-block-ms", options.emulate_block_ms, 0.0, 3.6e6));
  ATOLL_RETURN_IF_ERROR(CheckRange("--notice-every", options.notice_every_seconds, 1, 3600));
  if (!options.hours.empty()) {
    ATOLL_RETURN_IF_ERROR(Annotate(ParseWorkingHours(options.hours).status(), "--hours"));
  }
  ATOLL_RETURN_IF_ERROR(CheckRange("--nice", options.nice, 0, 19));
  ATOLL_RETURN_IF_ERROR(CheckRange("--threads", options.threads, 0, 1024));
  ATOLL_RETURN_IF_ERROR(CheckRange("--devices", options.devices, 1, 64));
  return CheckRoom(0);
}

void WarnIfUnreachable(const DaemonOptions& options) {
  const std::string& endpoint = options.peer_endpoints[0];
  if (!IsLoopback(endpoint) ||
      IsLoopback(absl::StrCat("tcp://", SplitAddresses(options.coordinator)[0]))) {
    return;
  }
  LogWarning("worker", "workers of other machines cannot reach this one at ", endpoint,
             ": islands that they share need --peer-endpoint=tcp://ADDRESS:7200, with an address "
             "of this machine");
}

std::vector<std::string> ListOwnFiles(const DaemonOptions& options) {
  std::vector<std::string> own = {"/etc/atoll", "/proc", "/sys"};
  for (const char* suffix : {"", ".new", ".former"}) {
    own.push_back(absl::StrCat(options.state_dir, "/identity", suffix));
  }
  for (const std::string& path : {options.curve_key_path, options.tls.key_path}) {
    if (!path.empty()) own.push_back(path);
  }
  return own;
}

Emulation MakeEmulation(const DaemonOptions& options) {
  Emulation emulation;
  if (options.emulate_block_ms > 0) {
    emulation = EmulatedBlocks(FromSeconds(options.emulate_block_ms / 1e3));
  }
  emulation.slowdown = options.emulate_slowdown;
  return emulation;
}

std::string EmulationText(const DaemonOptions& options) {
  std::string text;
  if (options.emulate_slowdown > 1 || options.emulate_step_ms > 0) {
    text = absl::StrCat(" (emulated: steps of at least ", options.emulate_step_ms, " ms, times ",
                        options.emulate_slowdown, ")");
  }
  if (options.emulate_block_ms > 0) {
    absl::StrAppend(&text, " (emulated: computes nothing, a block's operations last ",
                    options.emulate_block_ms, " ms a sequence)");
  }
  return text;
}

bool JoinsOthers(const DaemonOptions& options) {
  if (!IsLoopback(options.peer_endpoints[0])) return options.tls.insecure;
  std::error_code error;
  const std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", error);
  return !error && std::distance(begin(gpus), end(gpus)) > 1;
}

}  // namespace atl::worker
