// Who a worker is to the coordinator: what its flags, devices and state folder say.

#ifndef ATOLL_WORKER_IDENTITY_H_
#define ATOLL_WORKER_IDENTITY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/state_folder.h"
#include "worker/backends.h"
#include "worker/core/core.h"
#include "worker/daemon_options.h"
#include "worker/island/member/member.h"

namespace atl::worker {

// Makes it, and logs it. `checkpoints`: the folder of saved jobs.
absl::StatusOr<Identity> MakeIdentity(const DaemonOptions& options, Incarnation incarnation,
                                      const std::vector<WorkerDevice>& devices,
                                      const GroupMember& member, const StateFolder& state,
                                      const std::string& checkpoints);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_IDENTITY_H_
