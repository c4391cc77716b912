// A real etcd of one member on loopback, for tests: Debian's etcd-server, with a folder of its own.

#ifndef ATOLL_COORDINATOR_ETCD_TESTING_ETCD_SERVER_H_
#define ATOLL_COORDINATOR_ETCD_TESTING_ETCD_SERVER_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/net/control/tls.h"

namespace atl {

class EtcdServer {
 public:
  // With `tls`, clients show a certificate that tls.ca_path signed. `flags`: of etcd, besides its
  // addresses. REQUIRES: etcd is installed; fails the test otherwise.
  explicit EtcdServer(const TlsOptions& tls = {}, std::vector<std::string> flags = {});
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  // Returns the address of keys below a prefix that no other call of this process has given.
  std::string FreshUrl() const;
  const std::string& endpoint() const { return endpoint_; }

  void Kill();   // SIGKILL
  void Start();  // again, with its data
  // While it is killed: what it has, and to have only that again.
  void KeepCopy();
  void RestoreCopy();
  void Freeze();
  void Thaw();

 private:
  const TlsOptions tls_;
  const std::vector<std::string> flags_;
  std::string folder_, endpoint_, peer_;
  pid_t pid_ = -1;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_TESTING_ETCD_SERVER_H_
