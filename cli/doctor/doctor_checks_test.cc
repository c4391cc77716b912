#include "cli/doctor/doctor_checks.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/doctor/doctor_gpu.h"
#include "common/trust/authority.h"
#include "common/trust/pki.h"
#include "common/wall_clock.h"

namespace atl::cli {
namespace {

// A port of this machine with a listener, until it is destroyed.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(fd_, 8) == 0);
    socklen_t size = sizeof(address);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  int fd_;
  int port_ = 0;
};

TEST_CASE("a_port_in_use_is_a_problem_for_a_daemon_that_is_to_listen_there") {
  Listener listener;
  CHECK(CheckListen(listener.address()).level == Level::kProblem);
  listener.Close();
  CHECK(CheckListen(listener.address()).level == Level::kOk);
  CHECK(CheckListen("192.0.2.1:7000").level == Level::kProblem);  // an address of no interface
}

TEST_CASE("memory_and_cores_are_said_with_what_limits_them") {
  const MachineLimits machine{.memory_bytes = int64_t{8} << 30, .cpus = 4};
  CHECK(CheckMemory(machine).level == Level::kOk);
  CHECK(CheckMemory(machine).found == "8.00 GiB");
  const MachineLimits group{int64_t{512} << 20, "control group /g (memory.max)", 1, "affinity"};
  CHECK(CheckMemory(group).level == Level::kWarning);
  CHECK(CheckMemory(group).found == "512.0 MiB, by control group /g (memory.max)");
  CHECK_THAT(CheckCpu(group).found, Catch::Matchers::StartsWith("1 core, by affinity, "));
}

TEST_CASE("hosts_of_addresses_lose_their_brackets") {
  CHECK(ParseHostPort("[::1]:7000")->host == "::1");
  CHECK(ParseHostPort("[::1]:7000")->port == 7000);
  CHECK(ParseHostPort("host:65535")->host == "host");
}

TEST_CASE("an_address_without_a_port_that_can_be_is_a_problem") {
  for (const char* address : {"127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1:http", "localhost"}) {
    CAPTURE(address);
    for (const Finding& finding : {CheckListen(address), CheckRoute("coordinator", address)}) {
      CHECK(finding.level == Level::kProblem);
      CHECK(finding.found.find("must be from 1 to 65535") != std::string::npos);
    }
  }
}

TEST_CASE("a_route_is_measured_where_something_listens") {
  Listener listener;
  CHECK(CheckRoute("coordinator", listener.address()).level == Level::kOk);
  listener.Close();
  const Finding closed = CheckRoute("coordinator", listener.address());
  CHECK(closed.level == Level::kProblem);
  CHECK_FALSE(closed.remedy.empty());
}

TEST_CASE("a_folder_must_be_there_and_is_left_as_it_was") {
  const std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/state";
  CHECK(CheckFolder(folder).level == Level::kProblem);
  std::filesystem::create_directories(folder);
  CHECK(CheckFolder(folder).level != Level::kProblem);
  CHECK(std::filesystem::is_empty(folder));
}

TEST_CASE("plaintext_beyond_loopback_is_a_problem") {
  CHECK(CheckTls("certificates", {}, "127.0.0.1:7000", 0).level == Level::kOk);
  CHECK(CheckTls("certificates", {}, "coordinator.example:7000", 0).level == Level::kProblem);
  CHECK(CheckTls("certificates", {}, "127.evil.example:7000", 0).level == Level::kProblem);
}

std::string WriteTo(const std::string& name, const std::string& text) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/" + name;
  std::ofstream(path) << text;
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  return path;
}

// An authority and a certificate of it, valid for so many days from now.
TlsOptions Trust(const std::string& name, int authority_days, int days) {
  const int64_t now = UnixTimeMs() / 1000;
  const auto authority =
      MakeAuthority("0123456789abcdef", now - 60, now + authority_days * 86'400 + 60);
  const auto key = MakePrivateKey();
  REQUIRE(authority.ok());
  REQUIRE(key.ok());
  CertificateContents contents;
  contents.identity = {Role::kOperator, "ann"};
  contents.from_unix_s = now - 60;
  contents.until_unix_s = now + days * 86'400 + 60;
  const auto request = MakeRequest(*key);
  REQUIRE(request.ok());
  const auto certificate = SignRequest(*authority, *request, contents);
  REQUIRE(certificate.ok());
  return {WriteTo(name + "-ca", authority->certificate), WriteTo(name + "-cert", *certificate),
          WriteTo(name + "-key", *key)};
}

TEST_CASE("certificates_that_end_soon_are_a_warning_with_a_remedy") {
  const std::string address = "coordinator.example:7000";
  const int64_t now = UnixTimeMs() / 1000;
  CHECK(CheckTls("certificates", Trust("good", 400, 30), address, now).level == Level::kOk);
  const Finding soon = CheckTls("certificates", Trust("soon", 400, 5), address, now);
  CHECK(soon.level == Level::kWarning);
  CHECK_FALSE(soon.remedy.empty());
  CHECK(CheckTls("certificates", Trust("authority", 5, 30), address, now).level == Level::kWarning);
  CHECK(CheckTls("certificates", {"/none", "/none", "/none"}, address, now).level ==
        Level::kProblem);
}

TEST_CASE("a_daemons_own_key_that_others_may_read_is_a_problem") {
  std::string state = std::string(std::getenv("TEST_TMPDIR")) + "/state-XXXXXX";
  REQUIRE(mkdtemp(state.data()) != nullptr);
  const int64_t now = UnixTimeMs() / 1000;
  CHECK(CheckIdentities(state, now).empty());
  const AuthorityFolder authority(state + "/trust");
  REQUIRE(authority.Make(std::string(16, 'a'), {"localhost"}, now).ok());
  const IdentityFolder own(state + "/identity");
  REQUIRE(authority.Issue({Role::kWorker, "w1"}, own, now, 60 * 86'400).ok());
  const auto problems = [&](int64_t at) {
    const std::vector<Finding> found = CheckIdentities(state, at);
    return std::count_if(found.begin(), found.end(),
                         [](const Finding& one) { return one.level == Level::kProblem; });
  };
  CHECK(CheckIdentities(state, now).size() == 2);
  CHECK(problems(now) == 0);
  CHECK(problems(now + 61 * 86'400) == 1);  // the member's has expired
  std::filesystem::permissions(own.tls().key_path, std::filesystem::perms(0644));
  CHECK(problems(now) == 1);
  std::filesystem::permissions(state + "/trust/authority.key", std::filesystem::perms(0644));
  CHECK(problems(now) == 2);
}

TEST_CASE("a_certificate_that_ended_an_hour_ago_is_a_problem") {
  const int64_t hour_later = UnixTimeMs() / 1000 + 3660;
  const Finding ended =
      CheckTls("certificates", Trust("ended", 400, 0), "coordinator.example:7000", hour_later);
  CHECK(ended.level == Level::kProblem);
  CHECK(ended.found.find(" expired on 20") != std::string::npos);
  CHECK(ended.remedy.find("join") != std::string::npos);
}

TEST_CASE("gpu_and_nccl_are_not_wanted_where_there_is_no_card") {
  CHECK(CheckGpu(false).level == Level::kOk);
  CHECK(CheckNccl(false).level == Level::kOk);
}

TEST_CASE("gpu_without_driver_or_nccl_has_a_remedy") {
  for (const Finding& finding : {CheckGpu(true), CheckNccl(true)}) {
    CHECK((finding.level == Level::kOk) == finding.remedy.empty());
  }
}

}  // namespace
}  // namespace atl::cli
