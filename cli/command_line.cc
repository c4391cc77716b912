#include "cli/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cli/backup.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/confirm.h"
#include "cli/contexts.h"
#include "cli/doctor/doctor.h"
#include "cli/examples.h"
#include "cli/list.h"
#include "cli/metrics.h"
#include "cli/model/evaluate.h"
#include "cli/model/generate.h"
#include "cli/model/predict.h"
#include "cli/model/tokenize.h"
#include "cli/plan.h"
#include "cli/play/rehearse.h"
#include "cli/play/replay.h"
#include "cli/profile.h"
#include "cli/run/program.h"
#include "cli/run/run.h"
#include "cli/text/output.h"
#include "cli/text/printable.h"
#include "cli/text/render.h"
#include "cli/trace.h"
#include "cli/trust/verify.h"
#include "cli/trust_commands.h"
#include "common/flag_sources.h"
#include "common/nearest.h"
#include "common/usage.h"

namespace atl::cli {
namespace {

// Colours and widths are for terminals: what is piped is the same everywhere.
void SetUpTerminal() {
  if (isatty(STDOUT_FILENO) != 1) return;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string terminal = variable("TERM");
  SetColour(variable("NO_COLOR").empty() && !terminal.empty() && terminal != "dumb");
  if (!IsWide()) SetTerminalWidth(OutputSize().columns);
}

constexpr char kJobHelp[] = "the job's id, or its beginning, as `atoll ls` shows it";
constexpr char kStrictHelp[] =
    "what the job names and is not on this machine is an error, not a warning";
constexpr const char* kDaemons[] = {"coordinator", "worker", "paramserver"};

class CommandLine {
 public:
  CommandLine() {
    app_.require_subcommand(1);
    app_.fallthrough();
    coordinator_ = app_.add_option("--coordinator", global_.coordinator,
                                   "HOST:PORT of the coordinator; of several, all, with commas")
                       ->capture_default_str();
    app_.add_option("--context", context_,
                    "name of a cluster in ~/.config/atoll/config.toml; default: the one in use");
    auto* output = app_.add_option("-o,--output", output_, "print json, yaml, or wide tables")
                       ->check(CLI::IsMember({"json", "yaml", "wide"}));
    app_.add_flag("--json", json_, "the same as -o json")->excludes(output);
    AddTlsFlags(app_, &global_.tls);
    AddVersionFlag(app_);
    group_ = "Jobs";
    AddJobCommands();
    AddFollowingCommands();
    group_ = "Model and data";
    AddModelCommands();
    group_ = "Cluster";
    AddClusterCommands();
    AddTrustCommands();
    group_ = "Planning and measurement";
    AddPlanCommands();
    group_ = "This program";
    AddProgramCommands();
    for (const char* daemon : kDaemons) {
      app_.add_subcommand(daemon,
                          std::string("run atoll-") + daemon + " with the flags that follow")
          ->group("Daemons");
    }
  }

  int Run(int argc, char** argv) {
    if (argc < 2) {
      std::cerr << AllCommands() << "\nTo begin: atoll run\n";
      return 2;
    }
    try {
      ParseFlags(app_, argc, argv, "");
    } catch (const CLI::ParseError& error) {
      return ExplainUsage(app_, error);
    }
    SetUpOutput();
    const CLI::App* given = app_.get_subcommands()[0];
    const auto command = run_.find(given);
    if (command != run_.end()) {
      const absl::Status used = local_.count(given) > 0
                                    ? absl::OkStatus()
                                    : UseContext(context_, coordinator_->count() > 0, &global_);
      return used.ok() ? command->second() : Fail(used, 2);
    }
    return FailUsage(
        absl::StrCat("a daemon's name comes first: atoll ", given->get_name(), " ..."));
  }

 private:
  void SetUpOutput() {
    global_.structured = json_ || output_ == "json" || output_ == "yaml";
    SetOutputFormat(output_ == "yaml"    ? OutputFormat::kYaml
                    : output_ == "wide"  ? OutputFormat::kWide
                    : global_.structured ? OutputFormat::kJson
                                         : OutputFormat::kText);
    SetUpTerminal();
  }
  CLI::App* Add(const char* name, const char* what, std::function<int()> command) {
    CLI::App* sub = app_.add_subcommand(name, what);
    sub->group(group_);
    sub->footer(ExamplesText(name));
    run_[sub] = std::move(command);
    return sub;
  }
  // One that needs no coordinator, or says itself which.
  CLI::App* AddLocal(const char* name, const char* what, std::function<int()> command) {
    CLI::App* sub = Add(name, what, std::move(command));
    local_.insert(sub);
    return sub;
  }
  CLI::App* WithJob(CLI::App* sub) {
    sub->add_option("JOB", job_, kJobHelp)->required();
    return sub;
  }
  void AddControl(const char* name, const char* what, JobCall call) {
    CLI::App* sub =
        Add(name, what, [this, call] { return ControlJobs(global_, jobs_, call, yes_); });
    sub->add_option("JOB", jobs_, "ids, or their beginnings")->required();
    if (call == &Client::Cancel) AddYesFlag(*sub, &yes_);
  }

  void AddJobCommands() {
    AddRunFlags<CLI::Range>(
        *AddLocal("run", "train a job on a cluster of this machine, and export its model",
                  [this] { return atl::cli::Run(global_, run_flags_); }),
        &run_flags_);
    CLI::App* validate =
        Add("validate", "check a job file", [this] { return Validate(global_, validate_); });
    validate->add_option("FILE", validate_.path, "job file, TOML")->required();
    validate->add_flag("--live", validate_.live, "also have the coordinator check it");
    validate->add_flag("--strict", validate_.strict, kStrictHelp);
    CLI::App* submit =
        Add("submit", "submit a job; prints its id", [this] { return Submit(global_, submit_); });
    CLI::Option* file =
        submit->add_option("FILE", submit_.path, "job file, TOML; -: standard input");
    submit
        ->add_option("--from", submit_.from,
                     "JOB or JOB@VERSION: with the settings of that job, begins with its newest "
                     "parameters")
        ->excludes(file);
    submit
        ->add_option("--set", submit_.settings,
                     "KEY=VALUE replaces the value of the file; repeatable")
        ->allow_extra_args(false);
    submit->add_option("--rehearsed", submit_.rehearsed,
                       "what atoll rehearse --json printed for this job: atoll show compares");
    submit->add_flag("--unchecked", submit_.unchecked,
                     "do not look at the data and weights that lie on this machine");
    CLI::Option* dry_run = submit->add_flag("--dry-run", submit_.dry_run,
                                            "only check it, here and at the coordinator");
    submit->add_flag("--strict", submit_.strict, kStrictHelp)->needs(dry_run);
    submit->add_flag("--watch", submit_.watch, "then watch it until it ends")->excludes(dry_run);
    CLI::App* list = Add("ls", "list the jobs", [this] { return List(global_, list_); });
    list->add_option("--state", list_.states,
                     "list only jobs in these states, such as running,paused")
        ->delimiter(',')
        ->check(CLI::IsMember(ListStates()));
    list->add_option("--sort", list_.sort, "order of the jobs, smallest first; age: youngest first")
        ->capture_default_str()
        ->check(CLI::IsMember(ListSortKeys()));
    list->add_flag("--reverse", list_.reverse, "reverse the order");
    list->add_option("--newest", list_.newest, "list only the newest N")
        ->check(CLI::PositiveNumber);
    CLI::App* show = WithJob(Add("show", "print one job with its islands, plans and decisions",
                                 [this] { return Show(global_, job_, decisions_, settings_); }));
    show->add_option("--decisions", decisions_, "number of newest decisions to print")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    show->add_flag("--settings", settings_, "print the job's settings instead, as a job file");
    WithJob(Add("set", "change settings of a job that has not ended",
                [this] { return ChangeCommand(global_, job_, changed_); }))
        ->add_option("SETTING", changed_, "KEY=VALUE, such as inner.learning_rate=1e-4")
        ->required();
    AddControl("pause", "pause a job", &Client::Pause);
    AddControl("resume", "resume a paused or failed job", &Client::Resume);
    AddControl("cancel", "cancel a job", &Client::Cancel);
    AddControl("adopt", "rebuild an orphaned job from its servers", &Client::Adopt);
    CLI::App* remove =
        Add("rm", "delete jobs that have ended or are orphaned, with their parameters",
            [this] { return RemoveJobs(global_, remove_); });
    auto* jobs = remove->add_option("JOB", remove_.jobs, "ids, or their beginnings");
    auto* all = remove->add_flag("--all", remove_.all, "every job")->excludes(jobs);
    remove->add_flag("--ended", remove_.ended, "with --all: only jobs that have ended")->needs(all);
    remove->add_flag("--force", remove_.force, "first cancel jobs that have not ended");
    AddYesFlag(*remove, &remove_.yes);
  }

  void AddFollowingCommands() {
    WithJob(Add("watch", "show a job's progress until it ends",
                [this] { return Watch(global_, job_, interval_ms_); }))
        ->add_option("--interval-ms", interval_ms_, "minimum time between two updates")
        ->check(CLI::PositiveNumber);
    CLI::App* logs = Add("logs", "print a job's log", [this] { return Logs(global_, logs_); });
    logs->add_option("JOB", logs_.job, "the job's id, or its beginning; default: the whole log");
    logs->add_flag("-f,--follow", logs_.follow, "wait for new lines");
    logs->add_option("-n,--tail", logs_.tail, "print only the newest N lines")
        ->check(CLI::PositiveNumber);
    logs->add_option("--since", logs_.since,
                     "print only lines since then: 10m, 2h, or a time (RFC 3339)");
    logs->add_option("--severity", logs_.severity,
                     "minimum severity: debug (with every round), info, warning or error")
        ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
    logs->add_option("--grep", logs_.contains, "print only lines with this text; case is ignored");
    CLI::App* metrics = WithJob(Add("metrics", "print a job's curves and merges for other programs",
                                    [this] { return Metrics(global_, job_, metrics_); }));
    AddMetricsFlags(*metrics, &metrics_);
    CLI::App* verify =
        Add("verify", "check that a job's decisions and signatures are those that were made",
            [this] { return VerifyCommand(global_, verify_); });
    verify->add_option("JOB", verify_.job, kJobHelp)->required();
    verify->add_option("--backup", verify_.backup,
                       "file of `atoll backup` to read instead of the coordinator's answer");
  }

  void AddModelCommands() {
    CLI::App* exports = Add("export", "write the model as a Hugging Face folder",
                            [this] { return Export(global_, export_); });
    exports->add_option("JOB", export_.job, kJobHelp)->required();
    exports->add_option("--to", export_.folder, "folder to create")->required();
    exports->add_option("--curve-key", export_.curve_key_path,
                        "file with your secret CURVE key, made by `atoll keygen`");
    exports->add_flag("--merge", export_.merge,
                      "write the model with its adapter merged in, instead of the adapter");
    exports->add_flag("--ema", export_.ema,
                      "write the moving average of the parameters (inner.ema)");
    exports->add_option("--dtype", export_.dtype, "what weights are written as: fp32, bf16 or fp16")
        ->capture_default_str()
        ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
    CLI::App* recover =
        AddLocal("recover",
                 "write the newest whole model out of parameter servers' folders, without "
                 "any daemon",
                 [this] { return RecoverCommand(global_, recover_); });
    recover->add_option("--from", recover_.from, "--state-dir of every parameter server of the job")
        ->required();
    recover->add_option("--job", recover_.job, "the job's id, where the folders have several");
    recover->add_option("--to", recover_.to, "folder to make")->required();
    AddGenerateFlags(*AddLocal("generate", "generate text with an exported model",
                               [this] { return Generate(global_, generate_); }),
                     &generate_);
    AddEvaluateFlags(*AddLocal("evaluate", "score an exported model in tasks",
                               [this] { return Evaluate(global_, evaluate_); }),
                     &evaluate_);
    AddPredictFlags(*AddLocal("predict", "fill masks in a text, or classify images",
                              [this] { return Predict(global_, predict_); }),
                    &predict_);
    AddTokenizeFlags(*AddLocal("tokenize", "make token shards of text or JSONL files",
                               [this] { return TokenizeCommand(global_, tokenize_); }),
                     &tokenize_);
  }

  void AddPlanCommands() {
    Add("profile", "print measured layer times, links and groups", [this] {
      return Profile(global_, job_);
    })->add_option("JOB", job_, "job whose model is meant; default: the newest job");
    AddTraceFlags(
        *WithJob(Add("trace", "record one step of a running job and compare it with its prediction",
                     [this] { return Trace(global_, job_, trace_); })),
        &trace_);
    AddPlanFlags(*Add("plan", "find the best layout of a job on a cluster, with the reason",
                      [this] { return PlanCommand(global_, plan_); }),
                 false, &plan_);
    AddPlanFlags(*Add("simulate", "simulate one layout under one schedule",
                      [this] { return SimulateCommand(global_, plan_); }),
                 true, &plan_);
    AddRehearseFlags(*AddLocal("rehearse", "play a job's whole run under failures, many times",
                               [this] { return Rehearse(global_, rehearse_); }),
                     &rehearse_);
  }

  void AddClusterCommands() {
    Add("status", "print members, islands, parameter servers and rounds, with reasons", [this] {
      return Status(global_, watch_);
    })->add_flag("--watch", watch_, "repeat until interrupted");
    AddReplayFlags(*AddLocal("replay", "play a coordinator's recording, and compare its decisions",
                             [this] { return Replay(global_, replay_); }),
                   &replay_);
    AddDoctorFlags(*Add("doctor", "check this machine and the connection to the cluster",
                        [this] { return Doctor(global_, doctor_); }),
                   &doctor_);
    CLI::App* refill =
        WithJob(Add("refill", "restore a parameter server's lost shards from an island",
                    [this] { return RefillCommand(global_, job_, server_); }));
    refill->add_option("SERVER", server_, "parameter server that lost its folder")->required();
    CLI::App* drain = Add("drain", "empty a worker or parameter server before it is stopped",
                          [this] { return DrainCommand(global_, drain_); });
    drain
        ->add_option("MEMBER", drain_.member,
                     "its name; worker/NAME or paramserver/NAME where both have it")
        ->required();
    CLI::Option* undo = drain->add_flag("--undo", drain_.undo, "let it have work or shards again");
    CLI::Option* wait =
        drain->add_flag("--wait", drain_.wait, "until it can be stopped")->excludes(undo);
    drain->add_option("--timeout", drain_.timeout_s, "with --wait: seconds; then exit code 1")
        ->capture_default_str()
        ->check(CLI::Range(1, 1'000'000))
        ->needs(wait);
    Add("backup", "copy the coordinator's state into a file, while it serves",
        [this] { return Backup(global_, path_); })
        ->add_option("--to", path_, "file to make, for atoll-coordinator --restore")
        ->required();
    AddLocal("keygen", "create a secret CURVE key; prints the public one",
             [this] { return Keygen(global_, path_); })
        ->add_option("FILE", path_, "file to make, for --curve-key")
        ->required();
  }

  void AddTrustCommands() {
    AddInitFlags(*AddLocal("init", "create a cluster's authority, and a certificate for you",
                           [this] { return Init(global_, init_); }),
                 &init_);
    AddTokenFlags(*Add("token", "create, list or delete join tokens",
                       [this] { return TokenCommand(global_, token_); }),
                  &token_);
    AddJoinFlags(*AddLocal("join", "get a certificate for yourself by a token",
                           [this] { return JoinCommand(global_, join_); }),
                 &join_);
    AddRevokeFlags(*Add("revoke", "revoke the access of a member or user at once",
                        [this] { return Revoke(global_, revoke_); }),
                   &revoke_);
    Add("certificates", "list the certificates of members and users, with their validity",
        [this] { return Members(global_); });
    Add("audit", "print the audit log: actions and refusals",
        [this] { return Audit(global_, audit_tail_); })
        ->add_option("-n,--tail", audit_tail_,
                     "print only the newest N actions and N refusals; 0: all")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    AddLocal("context", "list the clusters that you have joined, or select one", [this] {
      return Contexts(global_, context_flags_);
    })->add_option("NAME", context_flags_.name, "name of the cluster to select");
  }

  void AddProgramCommands() {
    AddLocal("completion", "print a script that completes commands in a shell",
             [this] {
               const absl::StatusOr<std::string> script = CompletionScript(app_, shell_);
               if (!script.ok()) return Fail(script.status(), 2);
               std::cout << *script;
               return 0;
             })
        ->add_option("SHELL", shell_, "bash, zsh or fish")
        ->required();
    AddLocal("help", "print the help of a command", [this] {
      return Help();
    })->add_option("COMMAND", help_for_, "name of the command; default: all of them, by purpose");
    AddLocal("version", "print the version", [this] {
      std::cout << app_.version() << "\n";
      return 0;
    });
  }

  std::string AllCommands() {
    return app_.get_formatter()->make_help(&app_, app_.get_name(), CLI::AppFormatMode::Normal);
  }

  // Prints the help of the command that is named, or of all.
  int Help() {
    if (help_for_.empty()) {
      std::cout << AllCommands();
      return 0;
    }
    for (const char* daemon : kDaemons) {
      if (help_for_ != daemon) continue;
      std::string name = std::string("atoll-") + daemon, flag = "--help";
      char* arguments[] = {name.data(), flag.data(), nullptr};
      return RunDaemon(name, arguments);
    }
    std::vector<std::string> names;
    for (const CLI::App* command : app_.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
      if (command->get_name() != help_for_) continue;
      std::cout << app_.get_formatter()->make_help(command, "atoll " + help_for_,
                                                   CLI::AppFormatMode::Normal);
      return 0;
    }
    const std::string nearest = NearestName(help_for_, names);
    return FailUsage(
        absl::StrCat("there is no command ", help_for_, "; ",
                     nearest.empty() ? "see atoll help" : "did you mean " + nearest + "?"));
  }

  CLI::App app_{"atoll: trains one model across islands of machines", "atoll"};
  Global global_;
  CLI::Option* coordinator_ = nullptr;
  std::string context_, output_;
  bool json_ = false;
  std::map<const CLI::App*, std::function<int()>> run_;
  std::set<const CLI::App*> local_;
  const char* group_ = "";  // of the commands that are being added
  std::string path_, job_, shell_, help_for_;
  ExportFlags export_;
  std::vector<std::string> jobs_;
  ValidateFlags validate_;
  SubmitFlags submit_;
  std::vector<std::string> changed_;
  RunFlags run_flags_;
  ListFlags list_;
  LogFlags logs_;
  std::string server_;
  DrainFlags drain_;
  RemoveFlags remove_;
  MetricsFlags metrics_;
  VerifyFlags verify_;
  bool watch_ = false, yes_ = false, settings_ = false;
  int decisions_ = 10, interval_ms_ = 0;
  DoctorFlags doctor_;
  EvaluateFlags evaluate_;
  GenerateFlags generate_;
  RecoverFlags recover_;
  PlanFlags plan_;
  RehearseFlags rehearse_;
  ReplayFlags replay_;
  PredictFlags predict_;
  TokenizeFlags tokenize_;
  TraceFlags trace_;
  InitFlags init_;
  TokenFlags token_;
  JoinFlags join_;
  RevokeFlags revoke_;
  ContextFlags context_flags_;
  int64_t audit_tail_ = 100;
};

}  // namespace

int RunCommandLine(int argc, char** argv) {
  for (const char* daemon : kDaemons) {
    if (argc > 1 && std::string(argv[1]) == daemon) {
      return RunDaemon(std::string("atoll-") + daemon, argv + 1);
    }
  }
  const PrintableOutput output(std::cout), errors(std::cerr);
  const int code = CommandLine().Run(argc, argv);
  // The printed text may be all that a script keeps.
  if (std::cout.flush() || code != 0) return code;
  std::cerr << "atoll: standard output cannot be written; is the disk full?\n";
  return 1;
}

}  // namespace atl::cli
