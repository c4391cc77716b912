// The `atoll` command: see README.md, "The command line". Exit codes: 0 done, 1 failed, 2 usage.

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>

#include "cli/commands.h"
#include "cli/plan.h"

int main(int argc, char** argv) {
  using namespace atl::cli;  // NOLINT: this file is the command
  for (const char* daemon : {"coordinator", "worker", "paramserver"}) {
    if (argc > 1 && std::string(argv[1]) == daemon) {
      return RunDaemon(std::string("atoll-") + daemon, argv + 1);
    }
  }

  CLI::App app("atoll: trains one model across islands of machines");
  app.require_subcommand(1);
  app.fallthrough();
  Global global;
  app.add_option("--coordinator", global.coordinator, "HOST:PORT of the coordinator")
      ->envname("ATOLL_COORDINATOR")
      ->capture_default_str();
  app.add_flag("--json", global.json, "print JSON on standard output");
  atl::AddTlsFlags(app, &global.tls);

  std::string path, job, folder, curve_key;
  bool ask = false, watch = false, follow = false;
  int decisions = 10, interval_ms = 0;
  GenerateFlags generate;
  std::map<CLI::App*, std::function<int()>> run;

  const auto add = [&](const char* name, const char* what, std::function<int()> command) {
    CLI::App* sub = app.add_subcommand(name, what);
    run[sub] = std::move(command);
    return sub;
  };
  const auto with_job = [&](CLI::App* sub) {
    sub->add_option("JOB", job, "the job's id, as `atoll ls` shows it")->required();
    return sub;
  };
  const auto with_file = [&](CLI::App* sub) {
    sub->add_option("FILE", path, "job file, TOML")->required();
    return sub;
  };

  with_file(add("validate", "check a job file", [&] {
    return Validate(global, path, ask);
  }))->add_flag("--ask", ask, "also ask the coordinator");
  with_file(add("submit", "submit a job; prints its id", [&] {
    return Submit(global, path, watch);
  }))->add_flag("--watch", watch, "then watch it until it ends");
  add("ls", "list the jobs", [&] { return List(global); });
  with_job(add("show", "a job in full", [&] { return Show(global, job, decisions); }))
      ->add_option("--decisions", decisions, "how many of the newest decisions")
      ->capture_default_str();
  with_job(add("watch", "draw a job's progress until it ends", [&] {
    return Watch(global, job, interval_ms);
  }))->add_option("--interval-ms", interval_ms, "least time between two pictures");
  CLI::App* logs = add("logs", "a job's log", [&] { return Logs(global, job, follow); });
  logs->add_option("JOB", job, "the job's id; without it, everything");
  logs->add_flag("-f,--follow", follow, "wait for new lines");
  with_job(add("pause", "hold a job", [&] { return ControlJob(global, job, Control::kPause); }));
  with_job(
      add("resume", "let it go on", [&] { return ControlJob(global, job, Control::kResume); }));
  with_job(add("cancel", "end it now", [&] { return ControlJob(global, job, Control::kCancel); }));
  add("status", "members, islands, parameter servers and rounds, with reasons", [&] {
    return Status(global, watch);
  })->add_flag("--watch", watch, "again and again");
  CLI::App* exports = with_job(add("export", "write the model as a Hugging Face folder",
                                   [&] { return Export(global, job, folder, curve_key); }));
  exports->add_option("--to", folder, "folder to make")->required();
  exports->add_option("--curve-key", curve_key,
                      "file with your secret CURVE key, made by `atoll keygen`");
  add("keygen", "make a secret CURVE key; prints the public one", [&] {
    return Keygen(global, path);
  })->add_option("FILE", path, "file to make, for --curve-key")->required();
  AddGenerateFlags(*add("generate", "sample text from an exported byte-level model",
                        [&] { return Generate(global, generate); }),
                   &generate);
  PlanFlags plan;
  AddPlanFlags(*add("plan", "the best layout of a job on a cluster, and why",
                    [&] { return PlanCommand(global, plan); }),
               false, &plan);
  AddPlanFlags(*add("simulate", "play one layout under one schedule",
                    [&] { return SimulateCommand(global, plan); }),
               true, &plan);
  for (const char* daemon : {"coordinator", "worker", "paramserver"}) {
    app.add_subcommand(daemon, std::string("run atoll-") + daemon + " with the flags that follow");
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> rest = app.remaining();
    if (app.get_subcommands().empty() && !rest.empty()) {
      std::cerr << "atoll: there is no command " << rest[0] << "; see atoll --help\n";
      return 2;
    }
    return app.exit(error) == 0 ? 0 : 2;
  }
  return run.at(app.get_subcommands()[0])();
}
