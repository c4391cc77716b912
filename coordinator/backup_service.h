// Sends copies of the coordinator's store (proto/backup.proto).

#ifndef ATOLL_COORDINATOR_BACKUP_SERVICE_H_
#define ATOLL_COORDINATOR_BACKUP_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>

namespace atl {

class BackupService {
 public:
  // `database`: Store::path of the store that is open as long as this serves. The copy that is sent
  // lies beside it meanwhile.
  explicit BackupService(std::string database);
  ~BackupService();

  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_BACKUP_SERVICE_H_
