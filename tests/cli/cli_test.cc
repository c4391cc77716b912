// Tests of the outputs and exit codes of the `atoll` command.

#include <algorithm>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "common/net/control/attach_client.h"
#include "common/version.h"
#include "tests/catch/limits.h"
#include "tests/cli/command.h"
#include "tests/cli/coordinator.h"

namespace atl {
namespace {

constexpr char kJob[] = R"(name = "tiny"
[model]
hidden = 64
layers = 2
heads = 4
[data]
path = "corpus.txt"
[schedule]
train_tokens = 1_000_000
)";

struct Outcome {
  int code = -1;
  std::string out, errors;
};

// A coordinator, and a user at a terminal of it.
struct CliFixture {
  std::vector<std::string> With(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "cli/atoll");
    arguments.push_back("--coordinator=" + address);
    return arguments;
  }
  // Confirms what cannot be undone.
  Outcome Run(std::vector<std::string> arguments) {
    const bool confirmed = arguments[0] == "rm" || arguments[0] == "cancel";
    if (confirmed) arguments.emplace_back("--yes");
    return RunAs(std::move(arguments));
  }
  Outcome RunAs(std::vector<std::string> arguments) {
    Command command(With(std::move(arguments)), folder);
    const int code = command.Wait();
    return {code, command.rest(), command.errors()};
  }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder + "/" + name) << text;
    return folder + "/" + name;
  }
  // The id of a new job.
  // The new job's id.
  std::string Submit(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"submit", Write("job.toml", kJob)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome submitted = Run(arguments);
    REQUIRE(submitted.code == 0);
    REQUIRE(submitted.errors.empty());
    REQUIRE(absl::StrContains(submitted.out, "-"));
    return submitted.out.substr(0, submitted.out.size() - 1);
  }
  void Restart() {
    const int port = coordinator->port();
    coordinator.reset();
    coordinator.emplace(state, TlsOptions{}, port);
  }

  const std::string folder = FreshFolder();
  const std::string state = FreshFolder();
  std::optional<TestCoordinator> coordinator{std::in_place, state};
  const std::string address = coordinator->address();
};

TEST_CASE("a job on the command line: submitted, listed, held, ended") {
  CliFixture fixture;
  CHECK(fixture.Run({"ls"}).out == "no jobs; submit one with: atoll submit job.toml\n");
  const std::string job = fixture.Submit();

  const Outcome list = fixture.Run({"ls"});
  CHECK(absl::StartsWith(list.out, "job "));
  CHECK(absl::StrContains(list.out, "\n" + job + "  queued "));
  CHECK(absl::StartsWith(fixture.Run({"show", job}).out, job + ": queued"));
  const Outcome paused = fixture.Run({"pause", job});
  CHECK(paused.code == 1);
  CHECK(paused.out.empty());
  CHECK(paused.errors == "atoll: job " + job + " is queued: only a running job can be paused\n");
  CHECK(absl::StartsWith(fixture.Run({"cancel", job}).out, job + ": cancelled by "));

  const Outcome watched = fixture.Run({"watch", job});
  CHECK(watched.code == 1);
  CHECK(absl::StartsWith(watched.out, job + ": cancelled"));
  CHECK(absl::StartsWith(watched.errors, "atoll: " + job + " is cancelled by "));
  const Outcome logs = fixture.Run({"logs", job, "-f"});  // ends, since the job has
  CHECK(logs.code == 0);
  CHECK(absl::StrContains(logs.out, "Z info    " + job + ": "));
}

TEST_CASE("without_a_terminal_what_cannot_be_undone_needs_yes_and_nothing_is_changed") {
  CliFixture fixture;
  const std::string job = fixture.Submit();
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"cancel", job}, {"rm", job, "--force"}, {"revoke", "w1"}}) {
    const Outcome refused = fixture.RunAs(command);
    CHECK(refused.code == 2);
    CHECK(refused.out.empty());
    CHECK(absl::StrContains(refused.errors, "--yes"));
  }
  CHECK(absl::StartsWith(fixture.Run({"show", job}).out, job + ": queued"));
}

TEST_CASE(
    "a job that runs is removed only by force, one that has ended at once, and then is not found") {
  CliFixture fixture;
  const std::string first = fixture.Submit();
  const Outcome refused = fixture.Run({"rm", first});
  CHECK(refused.code == 1);
  CHECK(refused.errors == "atoll: job " + first +
                              " is queued: only a job that has ended can be removed: cancel it "
                              "first, or add --force\n");
  CHECK(fixture.Run({"rm", first, "--force"}).out == first + ": removed\n");
  const std::string second = fixture.Submit();
  CHECK(second != first);  // ids are not given twice
  REQUIRE(fixture.Run({"cancel", second}).code == 0);
  CHECK(fixture.Run({"rm", second}).out == second + ": removed\n");
  fixture.Restart();
  for (const std::string& job : {first, second}) {
    CHECK(fixture.Run({"show", job}).code == 1);
    const Outcome removed = fixture.Run({"rm", job});
    CHECK(removed.code == 1);
    CHECK(removed.errors == absl::StrCat("atoll: there is no job ", job, ": see atoll ls\n"));
  }
  CHECK_FALSE(absl::StrContains(fixture.Run({"ls"}).out, "tiny"));
  const std::string third = fixture.Submit();
  CHECK((third != first && third != second));
}

TEST_CASE("jobs_are_named_by_an_unambiguous_beginning_of_their_id_and_several_at_once") {
  CliFixture fixture;
  const std::string path = fixture.Write("job.toml", kJob);
  std::vector<std::string> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(fixture.Submit());
  const std::string other = fixture.Submit({"--set", "name=other"});
  CHECK(fixture.Run({"cancel", "o"}).out.find(other + ": cancelled") == 0);
  const Outcome ambiguous = fixture.Run({"cancel", "tiny"});
  CHECK(ambiguous.code == 1);
  CHECK(fixture.Run({"cancel", ""}).errors ==
        "atoll: JOB is empty: name one that atoll ls prints\n");
  CHECK(absl::StartsWith(ambiguous.errors, "atoll: 3 jobs begin with tiny: "));
  CHECK(fixture.Run({"cancel", jobs[0], jobs[1]}).code == 0);
  REQUIRE(fixture.Run({"rm", jobs[0]}).code == 0);
  CHECK(fixture.Run({"show", jobs[0]}).code == 1);
  // A number is named whole: the beginning of another job's is no job.
  CHECK(fixture.Run({"show", jobs[1].substr(0, jobs[1].size() - 1)}).code == 1);
  CHECK(fixture.Run({"rm", "--all", "--ended"}).out ==
        absl::StrCat(jobs[1], ": removed\n", other, ": removed\n"));
  CHECK(fixture.Run({"rm"}).code == 2);
}

TEST_CASE("submit_reads_standard_input_takes_settings_and_changes_nothing_on_a_dry_run") {
  CliFixture fixture;
  const std::string path = fixture.Write("job.toml", kJob);
  CHECK(fixture.Run({"submit", path, "--dry-run"}).code == 0);
  CHECK(fixture.Run({"submit", path, "--set", "outer.momentm=0.9"}).code == 1);
  CHECK(fixture.Run({"submit", path, "--set", "outer.momentum=2"}).code == 1);
  CHECK(fixture.Run({"submit", path, "--set", "momentum"}).code == 1);
  CHECK(fixture.Run({"ls"}).out == "no jobs; submit one with: atoll submit job.toml\n");
  CHECK(fixture.Run({"submit", path, "--set", "outer.momentum=0.5", "--set", "model.family=gpt2"})
            .code == 0);
  const std::string json = fixture.Run({"show", "tiny", "--json"}).out;
  CHECK(absl::StrContains(json, "\"momentum\": 0.5"));
  CHECK(absl::StrContains(json, "MODEL_FAMILY_GPT2"));
}

TEST_CASE("logs_and_ls_show_what_their_filters_say") {
  CliFixture fixture;
  const std::string path = fixture.Write("job.toml", kJob);
  std::vector<std::string> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(fixture.Submit());
  REQUIRE(fixture.Run({"cancel", jobs[1]}).code == 0);
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  const std::string all = fixture.Run({"logs"}).out;
  REQUIRE(lines(all) > 3);
  const std::string tail = fixture.Run({"logs", "--tail", "2"}).out;
  CHECK(lines(tail) == 2);
  CHECK(absl::EndsWith(all, tail));
  CHECK(fixture.Run({"logs", "--since", "1h"}).out == all);
  CHECK(fixture.Run({"logs", "--since", "2999-01-01T00:00:00Z"}).out.empty());
  CHECK(fixture.Run({"logs", "--since", "yesterday"}).code == 1);
  CHECK(fixture.Run({"logs", "--severity", "error"}).out.empty());
  CHECK(absl::StrContains(fixture.Run({"logs", jobs[1], "--grep", "CANCEL"}).out, "cancel"));
  CHECK(lines(fixture.Run({"ls", "--state", "queued"}).out) == 3);  // with the header
  CHECK(lines(fixture.Run({"ls", "--newest", "1"}).out) == 2);
  CHECK(fixture.Run({"ls", "--state", "asleep"}).code == 2);
  CHECK(fixture.Run({"ls", "--sort", "colour"}).code == 2);
}

TEST_CASE("curves_go_to_one_event_file_a_job_or_the_command_says_why_they_cannot") {
  CliFixture fixture;
  const std::string job = fixture.Submit();
  const std::string folder = fixture.folder + "/board/curves";
  const Outcome written = fixture.Run({"metrics", job, "--tensorboard", folder});
  CHECK(written.code == 0);
  CHECK(fixture.Run({"metrics", job, "--tensorboard", folder}).out == written.out);
  const std::filesystem::directory_iterator files(folder);
  CHECK(std::distance(begin(files), end(files)) == 1);
  CHECK(fixture.Run({"metrics", job, "--tensorboard", ""}).code == 2);
  const std::string no_folder = fixture.Write("file", "") + "/curves";
  const Outcome refused = fixture.Run({"metrics", job, "--tensorboard", no_folder});
  CHECK(refused.code == 1);
  CHECK(refused.errors == absl::StrCat("atoll: ", no_folder, ": Not a directory\n"));
}

TEST_CASE("validate checks here, or also at the coordinator, and prints every default as JSON") {
  CliFixture fixture;
  const std::string path = fixture.Write("job.toml", kJob);
  const std::string valid =
      absl::StrCat(path, ": valid; not looked at: ", fixture.folder, "/corpus.txt\n");
  CHECK(fixture.Run({"validate", path}).out == valid);
  CHECK(fixture.Run({"validate", "--live", path}).out == valid);
  for (const char* flag : {"--json", "--live"}) {
    const Outcome json = fixture.Run({"validate", path, "--json", flag});
    CHECK(json.code == 0);
    CHECK(absl::StrContains(json.out, "\"steps_per_round\": \"0\""));
  }
  const std::string bad = fixture.Write("bad.toml", absl::StrCat(kJob, "train_tokns = 3\n"));
  const Outcome refused = fixture.Run({"validate", bad});
  CHECK(refused.code == 1);
  CHECK(refused.errors == absl::StrCat("atoll: ", bad,
                                       ":10: schedule.train_tokns: there is no such field; did you "
                                       "mean train_tokens?\n"));
}

TEST_CASE("wrong usage is exit code 2, no coordinator is 1, help is 0") {
  CliFixture fixture;
  CHECK(fixture.Run({"frobnicate"}).code == 2);
  CHECK(fixture.Run({"show"}).code == 2);
  CHECK(fixture.Run({"ls", "--bogus"}).code == 2);
  const Outcome help = fixture.Run({"--help"});
  CHECK(help.code == 0);
  // It dials where a coordinator without --listen is.
  CHECK(absl::StrContains(help.out, absl::StrCat("=", ServerOptions().listen, " ")));
  CHECK(fixture.Run({"stauts"}).errors ==
        "atoll: there is no command stauts; did you mean status?\n");
  const Outcome unknown = fixture.Run({"show", "none-1"});
  CHECK(unknown.code == 1);
  CHECK(unknown.errors == "atoll: there is no job none-1: see atoll ls\n");
  fixture.coordinator.reset();
  for (const auto& command : {std::vector<std::string>{"ls"}, {"watch", "none-1"}}) {
    const Outcome unreachable = fixture.Run(command);
    CHECK(unreachable.code == 1);
    CHECK(absl::StartsWith(unreachable.errors, "atoll: nothing listens at 127.0.0.1:"));
    CHECK(absl::StrContains(unreachable.errors,
                            "is the coordinator running, and is --coordinator right?"));
  }
}

TEST_CASE("programs_get_documents_with_a_version_and_errors_as_objects") {
  CliFixture fixture;
  const std::string job = fixture.Submit();
  const auto list = nlohmann::json::parse(fixture.Run({"ls", "-o", "json"}).out);
  CHECK(list["schema_version"] == 1);
  CHECK(list["jobs"][0]["job"] == job);
  CHECK(absl::StrContains(fixture.Run({"ls", "-o", "yaml"}).out, "job: \"" + job + "\"\n"));
  const Outcome none = fixture.Run({"show", "none-1", "-o", "json"});
  CHECK(none.code == 1);
  CHECK(none.out.empty());
  const auto error = nlohmann::json::parse(none.errors)["error"];
  CHECK(error["code"] == "NOT_FOUND");
  CHECK(absl::StrContains(error["message"].get<std::string>(), "none-1"));
  CHECK(fixture.Run({"ls", "-o", "xml"}).code == 2);
}

TEST_CASE("doctor_finds_the_version_of_a_coordinator_that_it_reaches") {
  CliFixture fixture;
  const Outcome doctor = fixture.Run({"doctor", "--json"});
  REQUIRE(doctor.code >= 0);
  int versions = 0;
  const auto findings = nlohmann::json::parse(doctor.out)["findings"];
  for (const nlohmann::json& finding : findings) {
    if (finding["check"] != "version") continue;
    ++versions;
    CHECK(finding["level"] == "ok");
    CHECK(finding["found"] == kSoftwareVersion);
  }
  CHECK(versions == 1);
  const auto clock = std::find_if(findings.begin(), findings.end(),
                                  [](const nlohmann::json& f) { return f["check"] == "clock"; });
  REQUIRE(clock != findings.end());
  CHECK((*clock)["level"] == "ok");
}

TEST_CASE("status on a pipe is text or JSON lines without escape codes, again and again") {
  CliFixture fixture;
  const Outcome once = fixture.Run({"status"});
  CHECK(absl::StartsWith(once.out, "coordinator: cluster c"));
  CHECK(absl::StrContains(once.out, "no members\n"));
  Command lines(fixture.With({"status", "--watch", "--json"}), fixture.folder);
  for (int i = 0; i < 2; ++i) {
    const std::string line = lines.Line();
    CHECK(absl::StrContains(line, "\"epoch\":\"1\","));
    CHECK(absl::EndsWith(line, "}"));
  }
  Command text(fixture.With({"status", "--watch"}), fixture.folder);
  const std::string line = text.Line();
  CHECK(absl::StartsWith(line, "coordinator: cluster c"));
  CHECK_FALSE(absl::StrContains(line, "\x1b"));
}

TEST_CASE("watch and logs -f outlive a restart of the coordinator, and say so") {
  CliFixture fixture;
  const std::string job = fixture.Submit();
  const std::string watch_folder = FreshFolder(), logs_folder = FreshFolder();
  Command watch(fixture.With({"watch", job, "--json"}), watch_folder);
  Command logs(fixture.With({"logs", job, "-f"}), logs_folder);
  CHECK(absl::StrContains(watch.Line(), "JOB_STATE_QUEUED"));
  const std::string first = logs.Line();
  CHECK(absl::StrContains(first, job + ": "));

  fixture.Restart();
  CHECK(absl::StrContains(watch.Line(), "JOB_STATE_QUEUED"));  // connected again
  REQUIRE(fixture.Run({"cancel", job}).code == 0);
  CHECK(watch.Wait() == 1);
  CHECK(absl::StrContains(watch.rest(), "JOB_STATE_CANCELLED"));
  CHECK(absl::StrContains(watch.errors(), "retrying for 5 min 0 s\n"));
  CHECK(absl::StrContains(watch.errors(), "atoll: connected again\n"));
  CHECK(logs.Wait() == 0);
  CHECK(absl::StrContains(logs.rest(), "cancel"));
  CHECK_FALSE(absl::StrContains(logs.rest(), first));  // nothing twice
  CHECK(absl::StrContains(logs.errors(), "atoll: connected again\n"));
}

TEST_CASE("Ctrl-C ends a watch and not the job, and says so") {
  CliFixture fixture;
  const std::string job = fixture.Submit();
  Command watch(fixture.With({"watch", job, "--json"}), fixture.folder);
  REQUIRE(absl::StrContains(watch.Line(), "JOB_STATE_QUEUED"));
  watch.Interrupt();
  CHECK(watch.Wait() == -1);
  CHECK(watch.errors() == "\natoll: " + job + " goes on; see it again by atoll watch " + job +
                              ", end it by atoll cancel " + job + "\n");
  CHECK(absl::StrContains(fixture.Run({"ls"}).out, "\n" + job + "  queued "));
}

// Attached as a worker of one device, with heartbeats, until it goes.
class Attached {
 public:
  Attached(const std::string& coordinator, const NodeId& name) {
    AttachOptions options;
    options.coordinator = coordinator;
    options.name = name;
    options.incarnation = 1;
    auto client = WorkerAttach::Open(options, [this](WorkerAttach::Event event) {
      const std::lock_guard lock(mutex_);
      if (std::holds_alternative<AttachOpened>(event)) opened_ = true;
      if (std::holds_alternative<ToWorker>(event)) welcomed_ = true;
      changed_.notify_all();
    });
    REQUIRE(client.ok());
    client_ = *std::move(client);
    Await(opened_);
    WorkerHello hello;
    hello.software_version = kSoftwareVersion;
    hello.devices = {{"cpu", int64_t{8} << 30, 2}};
    REQUIRE(client_->Send(hello));
    Await(welcomed_);
    beats_ = std::jthread([this](const std::stop_token& stop) {
      std::unique_lock lock(mutex_);
      while (!changed_.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; }) &&
             !stop.stop_requested()) {
        client_->Send(WorkerHeartbeat{});
      }
    });
  }

 private:
  void Await(const bool& what) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, testing::kHangLimit, [&] { return what; }));
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool opened_ = false, welcomed_ = false;  // guarded by mutex_
  std::unique_ptr<WorkerAttach> client_;
  std::jthread beats_;
};

TEST_CASE("profile shows the workers; plan --profile and --live refuse what is not measured") {
  CliFixture fixture;
  const Outcome no_worker = fixture.Run({"profile"});
  CHECK(no_worker.code == 1);
  CHECK(absl::StrContains(no_worker.errors, "no worker is attached"));
  const Attached worker(fixture.address, "w1");
  const Outcome text = fixture.Run({"profile"});
  CHECK(text.code == 0);
  CHECK(absl::StrContains(text.out, "w1/0"));
  CHECK(absl::StrContains(text.out, "layer times: none measured"));
  CHECK(absl::StrContains(text.out, "1 of 1 devices not measured"));
  CHECK(fixture.Run({"profile", "tiny-9"}).code == 1);
  const std::string file = fixture.Write("profile.json", fixture.Run({"profile", "--json"}).out);
  const std::string job = fixture.Write("job.toml", kJob);
  const Outcome planned = fixture.Run({"plan", job, "--profile", file});
  INFO(planned.errors);
  // The worker's device has not been measured: there is nothing to plan with.
  CHECK(planned.code == 1);
  CHECK(absl::StrContains(planned.errors, "\"w1/0\""));
  CHECK(absl::StrContains(fixture.Run({"plan", job, "--live"}).errors, "\"w1/0\""));
  CHECK(fixture.Run({"plan", job}).code == 2);
  CHECK(fixture.Run({"plan", job, "--live", "--profile", file}).code == 2);
  const Outcome bad =
      fixture.Run({"plan", job, "--profile", fixture.Write("bad.json", "{\"a\": 1}")});
  CHECK(bad.code == 1);
  CHECK(absl::StrContains(bad.errors, "bad.json: is no profile"));
}

TEST_CASE("keygen makes a file that stays, for its owner only, and prints the public key") {
  CliFixture fixture;
  const Outcome made = fixture.Run({"keygen", fixture.folder + "/w1.key"});
  CHECK(made.code == 0);
  CHECK(made.out.size() == 40 + 2 + 2 + 1);
  CHECK(absl::EndsWith(made.out, "  w1\n"));
  const Outcome twice = fixture.Run({"keygen", fixture.folder + "/w1.key"});
  CHECK(twice.code == 1);
  CHECK(absl::StrContains(twice.errors, "File exists"));
}

}  // namespace
}  // namespace atl
