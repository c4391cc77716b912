// Sends copies of the coordinator's store (proto/backup.proto).

#ifndef ATOLL_COORDINATOR_BACKUP_SERVICE_H_
#define ATOLL_COORDINATOR_BACKUP_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>

#include "coordinator/store.h"

namespace atl {

class BackupService {
 public:
  // `store` outlives this. The copy that is sent lies at `copy` meanwhile.
  BackupService(const Store* store, std::string copy);
  ~BackupService();

  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_BACKUP_SERVICE_H_
