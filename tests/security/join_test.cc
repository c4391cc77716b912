// From nothing to a trained job by `atoll init` and tokens, with the real programs: no file is
// copied, no key is listed.

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/http/testing/http_get.h"
#include "common/trust/identity_folder.h"
#include "tests/catch/limits.h"
#include "tests/cli/command.h"
#include "tests/security/tiny_job.h"

namespace atl {
namespace {

constexpr auto kLimit = testing::kHangLimit;

// A test has a loopback of its own.
constexpr char kAddress[] = "127.0.0.1:7000";

// A cluster of programs, and its operator, whose configuration is in a folder of its own.
class Site {
 public:
  Site() { setenv("XDG_CONFIG_HOME", folder_.c_str(), 1); }

  std::string folder(const std::string& name) const { return folder_ + "/" + name; }

  struct Outcome {
    int code = -1;
    std::string out, errors;
  };
  Outcome Atoll(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "cli/atoll");
    Command command(arguments, FreshFolder());
    const int code = command.Wait();
    return {code, command.rest(), command.errors()};
  }
  std::string MustAtoll(const std::vector<std::string>& arguments) const {
    const Outcome outcome = Atoll(arguments);
    INFO(outcome.errors);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  }

  Outcome Init(std::vector<std::string> more = {}) const {
    more.insert(more.begin(),
                {"init", "--state-dir=" + folder("coordinator"), "--host=127.0.0.1", "--name=me"});
    return Atoll(more);
  }
  // In plaintext before Init().
  std::unique_ptr<Command> StartCoordinator(const std::string& lifetime = "720h") const {
    return Daemon("coordinator",
                  {"--state-dir=" + folder("coordinator"), std::string("--listen=") + kAddress,
                   "--certificate-lifetime=" + lifetime});
  }
  std::unique_ptr<Command> Coordinator(const std::string& lifetime = "720h") const {
    const Outcome made = Init();
    INFO(made.errors);
    REQUIRE(made.code == 0);
    return StartCoordinator(lifetime);
  }
  // With a token; without one it needs --coordinator.
  std::unique_ptr<Command> Member(const std::string& role, const std::string& name,
                                  const std::string& join,
                                  std::vector<std::string> more = {}) const {
    more.push_back("--name=" + name);
    more.push_back("--state-dir=" + folder(name));
    more.push_back("--threads=1");
    more.push_back(join.empty() ? std::string("--coordinator=") + kAddress : "--join=" + join);
    if (role == "paramserver") more.push_back("--memory-bytes=64MiB");
    return Daemon(role, more);
  }
  // Once the coordinator answers.
  std::string Token(const std::string& roles, int uses) const {
    const auto limit = std::chrono::steady_clock::now() + kLimit;
    Outcome made;
    do {
      made = Atoll({"token", "create", "--role=" + roles, absl::StrCat("--uses=", uses)});
    } while (made.code != 0 && std::chrono::steady_clock::now() < limit);
    INFO(made.errors);
    REQUIRE(made.code == 0);
    return made.out.substr(0, made.out.size() - 1);
  }

 private:
  std::unique_ptr<Command> Daemon(const std::string& role,
                                  std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), absl::StrCat(role, "/atoll-", role));
    return std::make_unique<Command>(arguments, FreshFolder());
  }

  const std::string folder_ = FreshFolder();
};

template <class Condition>
bool Await(Condition condition) {
  const auto limit = std::chrono::steady_clock::now() + kLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

TEST_CASE("members_join_by_a_token_train_and_lose_their_access_when_they_are_revoked") {
  Site site;
  const auto coordinator = site.Coordinator();
  const std::string join = site.Token("worker,paramserver", 2);
  const auto server = site.Member("paramserver", "s1", join);
  const auto worker = site.Member("worker", "w1", join);
  WriteTinyJob(site.folder("job"));
  const Site::Outcome trained = site.Atoll({"submit", "--watch", site.folder("job/job.toml")});
  INFO(trained.errors << coordinator->errors() << server->errors() << worker->errors());
  REQUIRE(trained.code == 0);
  const std::string job = trained.out.substr(0, trained.out.find('\n'));
  // The operator's own CURVE key is known by now, though no file lists it.
  const Site::Outcome exported = site.Atoll({"export", job, "--to", site.folder("model")});
  INFO(exported.errors);
  CHECK(exported.code == 0);

  // The token is used up: a third does not get in by it.
  const auto stranger = site.Member("worker", "w2", join);
  CHECK(stranger->Wait() == 1);
  CHECK(absl::StrContains(stranger->errors(), "token_used: "));

  site.MustAtoll({"revoke", "w1", "--yes"});
  CHECK(worker->Wait() != 0);
  CHECK(absl::StrContains(worker->errors(), "revoked: "));
  CHECK(absl::StrContains(site.Atoll({"status"}).out, "revoked"));
  CHECK(Await([&] { return absl::StrContains(server->errors(), "1 are revoked"); }));
  // Its certificate, too: the worker's next start is refused, and says why.
  {
    const auto again = site.Member("worker", "w1", "");
    CHECK(Await([&] { return absl::StrContains(again->errors(), "revoked: "); }));
    CHECK_FALSE(absl::StrContains(again->errors(), "connected to the coordinator"));
  }
  // A new token lets the name in again, with new keys.
  const auto back = site.Member("worker", "w1", site.Token("worker", 1));
  CHECK(Await([&] { return absl::StrContains(back->errors(), "connected to the coordinator"); }));
  const Site::Outcome anew = site.Atoll({"submit", "--watch", site.folder("job/job.toml")});
  INFO(anew.errors << server->errors() << back->errors());
  CHECK(anew.code == 0);
}

TEST_CASE("members_refuse_a_revoked_certificate_at_their_metrics_within_seconds") {
  Site site;
  const auto coordinator = site.Coordinator();
  const std::string join = site.Token("worker,paramserver", 3);
  const auto revoked = site.Member("worker", "w1", join);
  const auto worker = site.Member("worker", "w2", join, {"--metrics-listen=0.0.0.0:7101"});
  const auto server = site.Member("paramserver", "s1", join, {"--metrics-listen=0.0.0.0:7102"});
  const auto read_as = [&](const std::string& holder, int port) {
    const TlsOptions own = IdentityFolder(site.folder(holder) + "/identity").tls();
    return HttpGet(absl::StrCat("https://127.0.0.1:", port, "/metrics"), {},
                   {own.cert_path, own.key_path});
  };
  for (const int port : {7101, 7102}) {
    INFO(port);
    REQUIRE(Await([&] { return read_as("w1", port).status == 200; }));
  }
  site.MustAtoll({"revoke", "w1", "--yes"});
  for (const int port : {7101, 7102}) {
    INFO(port);
    REQUIRE(Await([&] { return read_as("w1", port).status == 403; }));
    CHECK(absl::StartsWith(read_as("w1", port).body, "revoked: worker/w1 "));
    CHECK(read_as("w2", port).status == 200);
  }
  // A member that starts again gets the list anew.
  server->Interrupt();
  CHECK(server->Wait() == 0);
  const auto again = site.Member("paramserver", "s1", "", {"--metrics-listen=0.0.0.0:7102"});
  CHECK(Await([&] { return read_as("w1", 7102).status == 403; }));
}

TEST_CASE("a_member_comes_back_without_its_token_and_renews_its_certificate") {
  Site site;
  const auto coordinator = site.Coordinator("60s");
  const std::string join = site.Token("worker", 1);
  const auto until = [&] {
    const auto facts = IdentityFolder(site.folder("w1/identity")).Certificate();
    return facts.ok() ? facts->until_unix_s : 0;
  };
  int64_t first = 0;
  {
    const auto worker = site.Member("worker", "w1", join);
    REQUIRE(Await([&] { return (first = until()) > 0; }));
  }
  const auto worker = site.Member("worker", "w1", "");
  CHECK(Await([&] { return absl::StrContains(worker->errors(), "connected to the coordinator"); }));
  CHECK(Await([&] { return until() > first; }));
  CHECK_FALSE(absl::StrContains(worker->errors(), "PRIVATE KEY"));
}

TEST_CASE("init_refuses_a_coordinators_folder_that_does_not_say_its_cluster") {
  Site site;
  std::filesystem::create_directories(site.folder("coordinator"));
  std::ofstream(site.folder("coordinator") + "/coordinator.db") << "records";
  CHECK(site.Init().code == 1);
  CHECK_FALSE(std::filesystem::exists(site.folder("coordinator") + "/trust"));
  CHECK(site.Init({"--cluster=0123456789abcdef"}).code == 0);
}

// The coordinator runs as a package starts it, before there is an authority.
TEST_CASE("init_makes_the_authority_of_the_cluster_that_a_coordinator_has_begun") {
  Site site;
  {
    const auto coordinator = site.StartCoordinator();
    REQUIRE(Await([&] {
      return absl::StrContains(coordinator->errors(), std::string("listening on ") + kAddress);
    }));
    coordinator->Interrupt();
    REQUIRE(coordinator->Wait() == 0);
  }
  const Site::Outcome other = site.Init({"--cluster=0123456789abcdef"});
  CHECK(other.code == 1);
  CHECK(absl::StrContains(other.errors, " is of cluster "));
  const auto coordinator = site.Coordinator();
  const auto worker = site.Member("worker", "w1", site.Token("worker", 1));
  INFO(coordinator->errors());
  CHECK(Await([&] { return absl::StrContains(worker->errors(), "connected to the coordinator"); }));
}

TEST_CASE("misspelt_token_is_reported_differently_from_unknown_token") {
  Site site;
  const auto coordinator = site.Coordinator();
  std::string join = site.Token("operator", 1);
  site.MustAtoll({"join", join, "--name=you", "--context=second"});
  CHECK(absl::StrContains(site.MustAtoll({"certificates"}), "you"));
  join[20] = join[20] == 'A' ? 'B' : 'A';
  const Site::Outcome wrong = site.Atoll({"join", join, "--context=third"});
  CHECK(wrong.code == 1);
  CHECK(absl::StrContains(wrong.errors, "cut or misspelt"));
}

}  // namespace
}  // namespace atl
