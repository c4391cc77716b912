// Who gets in and who does not, with real certificates and keys, from the files to the tensors.

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/net/control/attach_client.h"
#include "proto/trust.pb.h"
#include "tests/catch/limits.h"
#include "tests/cli/command.h"
#include "tests/cli/coordinator.h"
#include "tests/security/tiny_job.h"

namespace atl {
namespace {

// An authority of its own, and what it has signed.
class Authority {
 public:
  // `role` as deploy/certificates knows it; a coordinator's certificate names `hosts`.
  TlsOptions Sign(const std::string& role, const std::string& name, const std::string& hosts = "") {
    const std::string command = absl::StrCat("deploy/certificates ", folder_, " ", role, " '", name,
                                             "' ", hosts, " > /dev/null");
    INFO(command);
    REQUIRE(std::system(command.c_str()) == 0);
    TlsOptions tls;
    tls.ca_path = folder_ + "/ca.pem";
    const std::string file = name.substr(0, name.find('*'));  // as deploy/certificates says
    tls.cert_path = absl::StrCat(folder_, "/", file, ".pem");
    tls.key_path = absl::StrCat(folder_, "/", file, ".key");
    return tls;
  }

 private:
  const std::string folder_ = FreshFolder();
};

std::vector<std::string> Flags(const TlsOptions& tls) {
  if (tls.ca_path.empty()) return {};
  return {"--tls-ca=" + tls.ca_path, "--tls-cert=" + tls.cert_path, "--tls-key=" + tls.key_path};
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Outcome {
  int code = -1;
  std::string out, errors;
};

// `atoll` by a user with these certificates.
Outcome Atoll(const TestCoordinator& coordinator, const TlsOptions& tls,
              const std::vector<std::string>& arguments) {
  const std::string folder = FreshFolder();
  Command command(std::vector<std::string>{"cli/atoll", "--coordinator=" + coordinator.address()} +
                      Flags(tls) + arguments,
                  folder);
  const int code = command.Wait();
  return {code, command.rest(), command.errors()};
}

constexpr char kTlsFailed[] = "TLS with the coordinator at ";

// Returns what a worker's attach client receives first: "welcome", or why there is no connection.
std::string ReceiveFirst(const TestCoordinator& coordinator, const TlsOptions& tls) {
  std::mutex mutex;
  std::condition_variable changed;
  std::string first;
  bool opened = false;
  AttachOptions options{.coordinator = coordinator.address(), .tls = tls, .name = "w1"};
  options.incarnation = 1;
  const auto client = WorkerAttach::Open(options, [&](WorkerAttach::Event event) {
                        const std::lock_guard lock(mutex);
                        opened = opened || std::holds_alternative<AttachOpened>(event);
                        if (const auto* lost = std::get_if<AttachLost>(&event))
                          first = lost->reason;
                        const auto* message = std::get_if<ToWorker>(&event);
                        if (message && std::holds_alternative<Welcome>(message->message)) {
                          first = "welcome";
                        }
                        changed.notify_all();
                      }).value();
  std::unique_lock lock(mutex);
  REQUIRE(changed.wait_for(lock, testing::kHangLimit, [&] { return opened || !first.empty(); }));
  if (first.empty()) {
    lock.unlock();
    client->Send(WorkerHello{"0.1.0", {}, {}});
    lock.lock();
  }
  REQUIRE(changed.wait_for(lock, testing::kHangLimit, [&] { return !first.empty(); }));
  lock.unlock();
  client->Close(Duration{0});
  return first;
}

TEST_CASE(
    "mutual TLS: our own get in; strangers and plaintext do not, and the error says what to "
    "check") {
  Authority ours, others;
  TestCoordinator coordinator(FreshFolder(), ours.Sign("coordinator", "c", "127.0.0.1 localhost"));

  const TlsOptions member = ours.Sign("worker", "w1");
  CHECK(Atoll(coordinator, ours.Sign("operator", "me"), {"ls"}).code == 0);
  CHECK(ReceiveFirst(coordinator, member) == "welcome");

  TlsOptions stranger = others.Sign("operator", "stranger");
  CHECK(absl::StartsWith(ReceiveFirst(coordinator, others.Sign("worker", "w1")), kTlsFailed));
  const Outcome refused = Atoll(coordinator, stranger, {"ls"});
  CHECK(refused.code == 1);
  CHECK(absl::StartsWith(refused.errors, "atoll: TLS with the coordinator at "));

  SECTION("a stranger who trusts our authority is not trusted by it") {
    stranger.ca_path = member.ca_path;
    CHECK(Atoll(coordinator, stranger, {"ls"}).code == 1);
    CHECK(absl::StartsWith(ReceiveFirst(coordinator, stranger), kTlsFailed));
  }
  SECTION("plaintext") {
    const Outcome plain = Atoll(coordinator, {}, {"ls"});
    CHECK(plain.code == 1);
    CHECK(
        absl::StrContains(plain.errors, " requires TLS: give --tls-ca, --tls-cert and --tls-key"));
    CHECK(absl::StrContains(ReceiveFirst(coordinator, {}), " requires TLS"));
  }
}

TEST_CASE("a coordinator whose certificate names another host is not believed") {
  Authority ours;
  TestCoordinator coordinator(FreshFolder(), ours.Sign("coordinator", "c", "elsewhere.example"));
  const TlsOptions member = ours.Sign("worker", "w1");
  const Outcome refused = Atoll(coordinator, member, {"ls"});
  CHECK(refused.code == 1);
  INFO(refused.errors);
  CHECK(absl::StartsWith(refused.errors, "atoll: TLS with the coordinator at "));
  CHECK(absl::StartsWith(ReceiveFirst(coordinator, member), kTlsFailed));
}

TEST_CASE("a_role_allows_its_own_calls_and_no_others") {
  Authority ours;
  TestCoordinator coordinator(FreshFolder(), ours.Sign("coordinator", "c", "127.0.0.1"));
  const std::string folder = FreshFolder();
  WriteTinyJob(folder);
  const Outcome submitted =
      Atoll(coordinator, ours.Sign("operator", "me"), {"submit", folder + "/job.toml"});
  REQUIRE(submitted.code == 0);
  const std::string job = submitted.out.substr(0, submitted.out.size() - 1);
  struct Row {
    std::string role;
    bool reads, changes, attaches_as_worker;
  };
  for (const Row& row :
       {Row{"viewer", true, false, false}, Row{"worker", false, false, true},
        Row{"paramserver", false, false, false}, Row{"coordinator", false, false, false},
        Row{"operator", true, true, false}}) {
    INFO(row.role);
    const TlsOptions tls = ours.Sign(row.role, row.role == "worker" ? "w1" : row.role);
    CHECK((Atoll(coordinator, tls, {"ls"}).code == 0) == row.reads);
    CHECK((Atoll(coordinator, tls, {"status"}).code == 0) == row.reads);
    for (const std::string command : {"pause", "resume", "cancel", "rm"}) {
      INFO(command);
      std::vector<std::string> arguments = {command, job};
      if (command == "cancel" || command == "rm") arguments.emplace_back("--yes");
      const Outcome outcome = Atoll(coordinator, tls, arguments);
      CHECK(absl::StrContains(outcome.errors, "does not allow") != row.changes);
    }
    const std::string first = ReceiveFirst(coordinator, tls);
    CHECK((first == "welcome") == row.attaches_as_worker);
    CHECK(absl::StrContains(first, ": role: ") != row.attaches_as_worker);
  }
}

TEST_CASE("a_tail_of_the_audit_log_shows_the_newest_actions_behind_any_refusals") {
  Authority ours;
  TestCoordinator coordinator(FreshFolder(), ours.Sign("coordinator", "c", "127.0.0.1"));
  const TlsOptions me = ours.Sign("operator", "me"), temporary_peer = ours.Sign("viewer", "guest");
  const std::string folder = FreshFolder();
  WriteTinyJob(folder);
  const Outcome submitted = Atoll(coordinator, me, {"submit", folder + "/job.toml"});
  REQUIRE(submitted.code == 0);
  const std::string job = submitted.out.substr(0, submitted.out.size() - 1);
  for (int i = 0; i < 4; ++i) CHECK(Atoll(coordinator, temporary_peer, {"pause", job}).code == 1);
  const Outcome audit = Atoll(coordinator, me, {"audit", "--tail=1", "--json"});
  REQUIRE(audit.code == 0);
  std::vector<std::string> actions, refused;
  for (const absl::string_view line : absl::StrSplit(audit.out, '\n', absl::SkipEmpty())) {
    v1::AuditEntry entry;
    google::protobuf::util::JsonParseOptions with_schema_version;
    with_schema_version.ignore_unknown_fields = true;
    REQUIRE(JsonStringToMessage(std::string(line), &entry, with_schema_version).ok());
    const bool refusal = entry.denial() != v1::TRUST_DENIAL_UNSPECIFIED;
    (refusal ? refused : actions).push_back(entry.who());
  }
  CHECK(actions == std::vector<std::string>{"operator/me"});
  CHECK(refused == std::vector<std::string>{"viewer/guest"});
}

TEST_CASE("a_worker_attaches_under_the_name_in_its_certificate_only") {
  Authority ours;
  TestCoordinator coordinator(FreshFolder(), ours.Sign("coordinator", "c", "127.0.0.1"));
  CHECK(absl::StrContains(ReceiveFirst(coordinator, ours.Sign("worker", "w2")), ": name: "));
  CHECK(ReceiveFirst(coordinator, ours.Sign("worker", "w*")) == "welcome");
}

// A key file and its line for --curve-clients.
std::string Keygen(const std::string& path) {
  const std::string folder = FreshFolder();
  Command keygen({"cli/atoll", "keygen", path}, folder);
  const std::string line = keygen.Line();
  REQUIRE(keygen.Wait() == 0);
  return line + "\n";
}

// Numbers of what `atoll verify` prints of the job, by name; none: it has failed.
std::map<std::string, double> Verify(const TestCoordinator& coordinator, const TlsOptions& tls,
                                     const std::string& job,
                                     const std::vector<std::string>& more = {}) {
  const Outcome verified =
      Atoll(coordinator, tls, std::vector<std::string>{"verify", job, "-o", "json"} + more);
  std::map<std::string, double> numbers;
  INFO(verified.out << verified.errors);
  if (verified.code != 0) return numbers;
  google::protobuf::Struct document;
  REQUIRE(google::protobuf::util::JsonStringToMessage(verified.out, &document).ok());
  for (const auto& [name, value] : document.fields()) {
    if (value.has_number_value()) numbers[name] = value.number_value();
  }
  return numbers;
}

TEST_CASE("a job over TLS and keys: trained, watched and exported by those who are listed") {
  Authority ours;
  const std::string folder = FreshFolder(), server_folder = FreshFolder(),
                    worker_folder = FreshFolder();
  TestCoordinator coordinator(FreshFolder(), ours.Sign("coordinator", "c", "127.0.0.1"));
  const auto file = [&](const char* name) { return absl::StrCat(folder, "/", name); };
  Keygen(file("server.key"));
  Keygen(file("stranger.key"));
  std::ofstream(file("clients")) << "# who may push and pull\n"
                                 << Keygen(file("worker.key")) << Keygen(file("me.key"));
  WriteTinyJob(folder);
  const std::string to = "--coordinator=" + coordinator.address();
  Command server(
      std::vector<std::string>{"paramserver/atoll-paramserver", to, "--name=s1",
                               "--state-dir=" + server_folder + "/state", "--memory-bytes=64MiB",
                               "--threads=1", "--curve-key=" + file("server.key"),
                               "--curve-clients=" + file("clients")} +
          Flags(ours.Sign("paramserver", "s1")),
      server_folder);
  Command worker(std::vector<std::string>{"worker/atoll-worker", to, "--name=w1", "--threads=1",
                                          "--state-dir=" + worker_folder + "/state",
                                          "--curve-key=" + file("worker.key")} +
                     Flags(ours.Sign("worker", "w1")),
                 worker_folder);
  const TlsOptions me = ours.Sign("operator", "me");
  const Outcome trained = Atoll(coordinator, me, {"submit", "--watch", file("job.toml")});
  INFO(trained.errors << server.errors() << worker.errors());
  REQUIRE(trained.code == 0);

  const std::string job = trained.out.substr(0, trained.out.find('\n'));
  std::map<std::string, double> verified = Verify(coordinator, me, job);
  CHECK(verified["decisions"] >= 2);
  CHECK(verified["signed_contributions"] >= 2);
  CHECK(verified["signatures_checked"] == verified["signed_contributions"]);
  CHECK(verified["unsigned_contributions"] == 0);
  REQUIRE(Atoll(coordinator, me, {"backup", "--to", file("backup")}).code == 0);
  CHECK(Verify(coordinator, me, job, {"--backup", file("backup")}) == verified);
  TlsOptions stranger = me;  // whose authority has signed for none of these members
  stranger.ca_path = Authority().Sign("operator", "me").ca_path;
  CHECK(Verify(coordinator, stranger, job, {"--backup", file("backup")}).empty());

  const auto Export = [&](const std::vector<std::string>& key) {
    return Atoll(coordinator, me,
                 std::vector<std::string>{"export", job, "--to", file("model")} + key);
  };
  const Outcome without = Export({});
  INFO(without.errors);
  CHECK(without.code == 1);
  CHECK(absl::StrContains(without.errors, "takes only clients with a key and we have none"));
  const Outcome unlisted = Export({"--curve-key=" + file("stranger.key")});
  CHECK(unlisted.code == 1);
  CHECK(absl::StrContains(unlisted.errors, "the server does not know our key"));
  CHECK_FALSE(std::filesystem::exists(file("model")));
  const Outcome listed = Export({"--curve-key=" + file("me.key")});
  INFO(listed.errors);
  CHECK(listed.code == 0);
  CHECK(std::filesystem::exists(file("model") + "/config.json"));
}

// Standard error of a daemon that refuses its flags.
std::string Refused(std::vector<std::string> arguments) {
  const std::string folder = FreshFolder();
  arguments.push_back("--state-dir=" + folder + "/state");
  Command command(arguments, folder);
  CHECK(command.Wait() == 2);
  return command.errors();
}

void LetOthersRead(const std::string& path) {
  std::filesystem::permissions(path, std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
}

TEST_CASE("a_key_that_everybody_may_read_is_refused_by_every_daemon") {
  Authority ours;
  const std::string curve = FreshFolder() + "/key";
  Keygen(curve);
  struct Row {
    std::string role;
    std::vector<std::string> more;
    bool has_curve;
  };
  for (const Row& row : {Row{"coordinator", {"--listen=127.0.0.1:0"}, false},
                         Row{"paramserver", {"--coordinator=127.0.0.1:1", "--name=s1"}, true},
                         Row{"worker", {"--coordinator=127.0.0.1:1", "--name=w1"}, true}}) {
    INFO(row.role);
    const TlsOptions tls = ours.Sign(row.role, row.role, "127.0.0.1");
    const std::vector<std::string> command =
        std::vector<std::string>{absl::StrCat(row.role, "/atoll-", row.role)} + row.more +
        Flags(tls);
    if (row.has_curve) {
      LetOthersRead(curve);
      const std::string said = Refused(command + std::vector<std::string>{"--curve-key=" + curve});
      CHECK(absl::StrContains(said, "--curve-key " + curve));
    }
    LetOthersRead(tls.key_path);
    CHECK(absl::StrContains(Refused(command), "chmod o="));
  }
}

TEST_CASE("a_key_that_everybody_may_read_is_refused_by_the_command_line") {
  Authority ours;
  TestCoordinator coordinator(FreshFolder(), ours.Sign("coordinator", "c", "127.0.0.1"));
  const TlsOptions me = ours.Sign("operator", "me");
  CHECK(Atoll(coordinator, me, {"ls"}).code == 0);
  LetOthersRead(me.key_path);
  const Outcome refused = Atoll(coordinator, me, {"ls"});
  CHECK(refused.code != 0);
  CHECK(absl::StrContains(refused.errors, "chmod o= " + me.key_path));
}

TEST_CASE("a_certificate_that_belongs_to_another_key_is_refused") {
  Authority ours;
  TlsOptions tls = ours.Sign("coordinator", "c", "127.0.0.1");
  tls.key_path = ours.Sign("coordinator", "d", "127.0.0.1").key_path;
  CHECK(absl::StrContains(
      Refused(std::vector<std::string>{"coordinator/atoll-coordinator", "--listen=127.0.0.1:0"} +
              Flags(tls)),
      "does not belong to the private key"));
}

TEST_CASE(
    "a daemon with a wrong flag ends with one line: the flag, what is wrong, what was meant") {
  const std::vector<std::string> worker = {"worker/atoll-worker", "--coordinator=127.0.0.1:1",
                                           "--name=w1"};
  CHECK(
      Refused(worker + std::vector<std::string>{"--peer-endpoint=127.0.0.1:7200"}) ==
      "atoll-worker: --peer-endpoint: \"127.0.0.1:7200\" must be tcp://ADDRESS:PORT; did you mean "
      "tcp://127.0.0.1:7200?\n");
  CHECK(
      Refused(worker + std::vector<std::string>{"--memory-bytes=8GB"}) ==
      "atoll-worker: --memory-bytes: \"8GB\" is no number of bytes; write 4GiB, 512MiB or 65536\n");
  CHECK(Refused(worker + std::vector<std::string>{"--thraeds=8"}) ==
        "atoll-worker: there is no flag --thraeds; did you mean --threads?\n");
  const std::vector<std::string> server = {"paramserver/atoll-paramserver",
                                           "--coordinator=127.0.0.1:1", "--name=s1"};
  CHECK(Refused(server + std::vector<std::string>{"--listen=127.0.0.1:7100"}) ==
        "atoll-paramserver: --listen: \"127.0.0.1:7100\" must be tcp://ADDRESS:PORT; did you mean "
        "tcp://127.0.0.1:7100?\n");
  CHECK(Refused(server + std::vector<std::string>{"--advertise=ps:7100"}) ==
        "atoll-paramserver: --advertise: \"ps:7100\" must be tcp://ADDRESS:PORT; did you mean "
        "tcp://ps:7100?\n");
  CHECK(Refused(server + std::vector<std::string>{"--memory-bytes=0"}) ==
        "atoll-paramserver: --memory-bytes must not be 0\n");
  CHECK(absl::StrContains(Refused(server + std::vector<std::string>{"--listen=tcp://10.0.0.1:1"}),
                          "or --insecure where the network is private"));
}

TEST_CASE("a worker that only its own machine reaches, of a coordinator elsewhere, says so") {
  const std::vector<std::string> worker = {
      "worker/atoll-worker", "--coordinator=192.0.2.1:7000", "--insecure",
      "--name=w1",           "--memory-bytes=64MiB",         "--curve-key=none"};  // which ends it
  const char* warning = "islands that they share need --peer-endpoint=tcp://ADDRESS:7200";
  CHECK(absl::StrContains(Refused(worker), warning));
  CHECK_FALSE(absl::StrContains(
      Refused(worker + std::vector<std::string>{"--peer-endpoint=tcp://192.0.2.7:7200"}), warning));
}

TEST_CASE("keyed workers all-reduce their gradients over encrypted links, without --insecure") {
  Authority ours;
  const std::string folder = FreshFolder();
  TestCoordinator coordinator(FreshFolder(), ours.Sign("coordinator", "c", "127.0.0.1"));
  const auto file = [&](const std::string& name) { return folder + "/" + name; };
  Keygen(file("server.key"));
  std::ofstream(file("clients")) << Keygen(file("w1.key")) << Keygen(file("w2.key"));
  WriteTinyJob(folder, "[layout]\nisland = \"all\"\nworkers_per_island = 2\nreplicas = 2\n");
  const std::string to = "--coordinator=" + coordinator.address();
  const auto daemon = [&](const std::string& role, const std::string& name,
                          const std::vector<std::string>& more) {
    const std::string home = FreshFolder(), program = absl::StrCat(role, "/atoll-", role);
    return std::make_unique<Command>(
        std::vector<std::string>{program, to, "--name=" + name, "--threads=1",
                                 "--state-dir=" + home + "/state"} +
            more + Flags(ours.Sign(role, name)),
        home);
  };
  const auto server = daemon("paramserver", "s1",
                             {"--memory-bytes=64MiB", "--curve-key=" + file("server.key"),
                              "--curve-clients=" + file("clients")});
  const auto w1 = daemon("worker", "w1", {"--curve-key=" + file("w1.key")});
  const auto w2 = daemon("worker", "w2", {"--curve-key=" + file("w2.key")});
  const TlsOptions me = ours.Sign("operator", "me");
  const Outcome trained = Atoll(coordinator, me, {"submit", "--watch", file("job.toml")});
  INFO(trained.errors << server->errors() << w1->errors() << w2->errors());
  CHECK(trained.code == 0);
  // The leader signs for both.
  std::map<std::string, double> verified =
      Verify(coordinator, me, trained.out.substr(0, trained.out.find('\n')));
  CHECK(verified["signatures_checked"] >= 2);
  CHECK(verified["unsigned_contributions"] == 0);
  for (const auto* worker : {w1.get(), w2.get()}) {
    CHECK(absl::StrContains(worker->errors(),
                            "all-reduces with other workers go over the peer link, "
                            "encrypted: all members have keys"));
  }
}

}  // namespace
}  // namespace atl
