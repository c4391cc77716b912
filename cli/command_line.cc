#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/plan.h"
#include "cli/profile.h"
#include "cli/tokenize.h"
#include "cli/trace.h"
#include "common/usage.h"

namespace atl::cli {
namespace {

constexpr const char* kDaemons[] = {"coordinator", "worker", "paramserver"};

class CommandLine {
 public:
  CommandLine() {
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.add_option("--coordinator", global_.coordinator, "HOST:PORT of the coordinator")
        ->envname("ATOLL_COORDINATOR")
        ->capture_default_str();
    app_.add_flag("--json", global_.json, "print JSON on standard output");
    AddTlsFlags(app_, &global_.tls);
    AddJobCommands();
    AddFollowingCommands();
    AddModelCommands();
    AddPlanCommands();
    for (const char* daemon : kDaemons) {
      app_.add_subcommand(daemon,
                          std::string("run atoll-") + daemon + " with the flags that follow");
    }
  }

  int Run(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return ExplainUsage(app_, error);
    }
    const auto command = run_.find(app_.get_subcommands()[0]);
    if (command != run_.end()) return command->second();
    std::cerr << "atoll: a daemon's name comes first: atoll "
              << app_.get_subcommands()[0]->get_name() << " ...\n";
    return 2;
  }

 private:
  CLI::App* Add(const char* name, const char* what, std::function<int()> command) {
    CLI::App* sub = app_.add_subcommand(name, what);
    run_[sub] = std::move(command);
    return sub;
  }
  CLI::App* WithJob(CLI::App* sub) {
    sub->add_option("JOB", job_, "the job's id, as `atoll ls` shows it")->required();
    return sub;
  }
  CLI::App* WithFile(CLI::App* sub) {
    sub->add_option("FILE", path_, "job file, TOML")->required();
    return sub;
  }
  void AddControl(const char* name, const char* what, Control control) {
    WithJob(Add(name, what, [this, control] { return ControlJob(global_, job_, control); }));
  }

  void AddJobCommands() {
    WithFile(Add("validate", "check a job file", [this] {
      return Validate(global_, path_, ask_);
    }))->add_flag("--ask", ask_, "also ask the coordinator");
    WithFile(Add("submit", "submit a job; prints its id", [this] {
      return Submit(global_, path_, watch_);
    }))->add_flag("--watch", watch_, "then watch it until it ends");
    Add("ls", "list the jobs", [this] { return List(global_); });
    WithJob(Add("show", "a job in full", [this] { return Show(global_, job_, decisions_); }))
        ->add_option("--decisions", decisions_, "how many of the newest decisions")
        ->capture_default_str();
    AddControl("pause", "hold a job", Control::kPause);
    AddControl("resume", "let it go on", Control::kResume);
    AddControl("cancel", "end it now", Control::kCancel);
    WithJob(Add("rm", "forget a job that has ended, its parameters too", [this] {
      return RemoveJob(global_, job_, force_);
    }))->add_flag("--force", force_, "cancel it first, where it has not ended");
  }

  void AddFollowingCommands() {
    WithJob(Add("watch", "draw a job's progress until it ends", [this] {
      return Watch(global_, job_, interval_ms_);
    }))->add_option("--interval-ms", interval_ms_, "least time between two pictures");
    CLI::App* logs = Add("logs", "a job's log", [this] { return Logs(global_, job_, follow_); });
    logs->add_option("JOB", job_, "the job's id; without it, everything");
    logs->add_flag("-f,--follow", follow_, "wait for new lines");
    Add("status", "members, islands, parameter servers and rounds, with reasons", [this] {
      return Status(global_, watch_);
    })->add_flag("--watch", watch_, "again and again");
  }

  void AddModelCommands() {
    CLI::App* exports = WithJob(Add("export", "write the model as a Hugging Face folder",
                                    [this] { return Export(global_, job_, folder_, curve_key_); }));
    exports->add_option("--to", folder_, "folder to make")->required();
    exports->add_option("--curve-key", curve_key_,
                        "file with your secret CURVE key, made by `atoll keygen`");
    AddGenerateFlags(*Add("generate", "make text with an exported model",
                          [this] { return Generate(global_, generate_); }),
                     &generate_);
    AddTokenizeFlags(*Add("tokenize", "make token shards of text or JSONL files",
                          [this] { return TokenizeCommand(global_, tokenize_); }),
                     &tokenize_);
    Add("keygen", "make a secret CURVE key; prints the public one",
        [this] { return Keygen(global_, path_); })
        ->add_option("FILE", path_, "file to make, for --curve-key")
        ->required();
  }

  void AddPlanCommands() {
    Add("profile", "what workers measured: layers' times, links, groups", [this] {
      return Profile(global_, job_);
    })->add_option("JOB", job_, "whose model; without it, the newest job's");
    AddTraceFlags(*WithJob(Add("trace", "one step of a running job, predicted beside measured",
                               [this] { return Trace(global_, job_, trace_); })),
                  &trace_);
    AddPlanFlags(*Add("plan", "the best layout of a job on a cluster, and why",
                      [this] { return PlanCommand(global_, plan_); }),
                 false, &plan_);
    AddPlanFlags(*Add("simulate", "play one layout under one schedule",
                      [this] { return SimulateCommand(global_, plan_); }),
                 true, &plan_);
  }

  CLI::App app_{"atoll: trains one model across islands of machines", "atoll"};
  Global global_;
  std::map<CLI::App*, std::function<int()>> run_;
  std::string path_, job_, folder_, curve_key_;
  bool ask_ = false, force_ = false, watch_ = false, follow_ = false;
  int decisions_ = 10, interval_ms_ = 0;
  GenerateFlags generate_;
  PlanFlags plan_;
  TokenizeFlags tokenize_;
  TraceFlags trace_;
};

}  // namespace

int RunCommandLine(int argc, char** argv) {
  for (const char* daemon : kDaemons) {
    if (argc > 1 && std::string(argv[1]) == daemon) {
      return RunDaemon(std::string("atoll-") + daemon, argv + 1);
    }
  }
  return CommandLine().Run(argc, argv);
}

}  // namespace atl::cli
