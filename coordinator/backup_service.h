// Sends copies of the coordinator's store (proto/backup.proto).

#ifndef ATOLL_COORDINATOR_BACKUP_SERVICE_H_
#define ATOLL_COORDINATOR_BACKUP_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>

#include "coordinator/store.h"

namespace atl {

// `store` outlives it. The copy that is sent lies at `copy` meanwhile.
std::unique_ptr<grpc::Service> NewBackupService(const Store* store, std::string copy);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_BACKUP_SERVICE_H_
