#include "worker/identity.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/logging.h"
#include "common/plural.h"
#include "common/protocol/mark_file.h"
#include "common/version.h"
#include "worker/state/saved_jobs.h"

namespace atl::worker {
namespace {

std::string EndpointsText(const GroupMember& member) {
  std::vector<std::string> endpoints = {member.endpoint()};
  endpoints.insert(endpoints.end(), member.more_endpoints().begin(), member.more_endpoints().end());
  return absl::StrJoin(endpoints, ", ");
}

}  // namespace

absl::StatusOr<Identity> MakeIdentity(const DaemonOptions& options, Incarnation incarnation,
                                      const std::vector<WorkerDevice>& devices,
                                      const GroupMember& member, const StateFolder& state,
                                      const std::string& checkpoints) {
  Identity identity{options.name, incarnation, {.software_version = kSoftwareVersion}};
  WorkerHello& hello = identity.hello;
  ATOLL_ASSIGN_OR_RETURN(hello.held, SavedJobs(checkpoints));
  const std::string emulated = EmulationText(options);
  std::string names;
  for (const WorkerDevice& device : devices) {
    hello.devices.push_back(device.info);
    hello.devices.back().kind += emulated;
    hello.devices.back().price_per_hour = options.price_per_hour;
    hello.devices.back().egress_price_per_gb = options.egress_price_per_gb;
    absl::StrAppend(&names, names.empty() ? "" : ", ", hello.devices.back().kind,
                    device.info.uuid.empty() ? "" : " ", device.info.uuid);
  }
  hello.peer_endpoint = member.endpoint();
  hello.more_peer_endpoints = member.more_endpoints();
  hello.peer_public_key = member.options().link.keys.public_key;
  hello.site = options.site;
  identity.signs = !options.tls.key_path.empty();
  ATOLL_ASSIGN_OR_RETURN(hello.mark, ReadClusterMark(RealFiles(), state.path()));
  LogInfo("worker", options.name, ", incarnation ", incarnation, ", on ", names, ", each with ",
          CountText(devices[0].info.threads, "thread"), ", for peers at ", EndpointsText(member),
          ", ", CountText(std::ssize(hello.held), "job"), " with saved states");
  return identity;
}

}  // namespace atl::worker
