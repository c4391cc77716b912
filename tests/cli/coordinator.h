// A real coordinator in the test's process, on a free loopback port.

#ifndef ATOLL_TESTS_CLI_COORDINATOR_H_
#define ATOLL_TESTS_CLI_COORDINATOR_H_

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "coordinator/server.h"
#include "tests/cli/command.h"

namespace atl {

// Its destructor ends it without a word to its members, as a kill would.
class TestCoordinator {
 public:
  explicit TestCoordinator(const std::string& folder, TlsOptions tls = {}, int port = 0) {
    ServerOptions options;
    options.listen = absl::StrCat("127.0.0.1:", port);
    options.state_dir = folder;
    options.tls = std::move(tls);
    auto server = CoordinatorServer::Start(options);
    INFO(server.status().ToString());
    REQUIRE(server.ok());
    server_ = *std::move(server);
    thread_ = std::thread([this] { status_ = server_->Run(); });
  }
  ~TestCoordinator() {
    server_->Stop();
    thread_.join();
    CHECK(status_.ok());
  }
  int port() const { return server_->port(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port()); }

 private:
  std::unique_ptr<CoordinatorServer> server_;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_TESTS_CLI_COORDINATOR_H_
