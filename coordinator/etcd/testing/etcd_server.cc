#include "coordinator/etcd/testing/etcd_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

// A port that was free a moment ago.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

}  // namespace

EtcdServer::EtcdServer(const TlsOptions& tls, std::vector<std::string> flags)
    : tls_(tls), flags_(std::move(flags)) {
  folder_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/etcd-XXXXXX");
  REQUIRE(mkdtemp(folder_.data()) != nullptr);
  endpoint_ = absl::StrCat("127.0.0.1:", FreePort());
  peer_ = absl::StrCat("http://127.0.0.1:", FreePort());
  Start();
}

EtcdServer::~EtcdServer() { Kill(); }

void EtcdServer::Start() {
  const std::string client = absl::StrCat(tls_.ca_path.empty() ? "http://" : "https://", endpoint_);
  std::vector<std::string> args = {"/usr/bin/etcd",
                                   "--name=test",
                                   absl::StrCat("--data-dir=", folder_, "/data"),
                                   absl::StrCat("--listen-client-urls=", client),
                                   absl::StrCat("--advertise-client-urls=", client),
                                   absl::StrCat("--listen-peer-urls=", peer_),
                                   absl::StrCat("--initial-advertise-peer-urls=", peer_),
                                   absl::StrCat("--initial-cluster=test=", peer_)};
  if (!tls_.ca_path.empty()) {
    args.insert(args.end(), {"--client-cert-auth", absl::StrCat("--trusted-ca-file=", tls_.ca_path),
                             absl::StrCat("--cert-file=", tls_.cert_path),
                             absl::StrCat("--key-file=", tls_.key_path)});
  }
  args.insert(args.end(), flags_.begin(), flags_.end());
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  INFO("etcd is missing; ./dev deps installs the package etcd-server");
  REQUIRE(access(argv[0], X_OK) == 0);
  const std::string log = folder_ + "/log";
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(fd, 1);
    dup2(fd, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  REQUIRE(pid_ > 0);
}

void EtcdServer::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdServer::KeepCopy() {
  std::filesystem::copy(folder_ + "/data", folder_ + "/copy",
                        std::filesystem::copy_options::recursive);
}

void EtcdServer::RestoreCopy() {
  std::filesystem::remove_all(folder_ + "/data");
  std::filesystem::rename(folder_ + "/copy", folder_ + "/data");
}

void EtcdServer::Freeze() {
  kill(pid_, SIGSTOP);
  waitpid(pid_, nullptr, WUNTRACED);  // until its threads have stopped
}
void EtcdServer::Thaw() { kill(pid_, SIGCONT); }

std::string EtcdServer::FreshUrl() const {
  static std::atomic<int> made{0};
  return absl::StrCat("etcd://", endpoint_, "/test-", ++made);
}

}  // namespace atl
