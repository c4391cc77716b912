// `atoll run`: a cluster on this machine, a job on it, its progress, its model.

#ifndef ATOLL_CLI_RUN_RUN_H_
#define ATOLL_CLI_RUN_RUN_H_

#include <string>
#include <vector>

#include "cli/commands.h"

namespace atl::cli {

struct RunFlags {
  std::string path;                   // job file; empty: the one that is shipped
  std::vector<std::string> settings;  // KEY=VALUE over the file's
  int workers = 0;                    // 0: two, or as many islands as the job wants
  int servers = 0;                    // 0: those of the earlier run, or one
  std::string folder;                 // empty: atoll-run/NAME
  std::string export_folder;          // empty: FOLDER/model
};

// `App` is CLI::App, `Range` CLI::Range.
template <class Range, class App>
void AddRunFlags(App& app, RunFlags* flags) {
  app.add_option("FILE", flags->path,
                 "job file, TOML; default: a small model of a text that comes with atoll");
  app.add_option("--set", flags->settings, "KEY=VALUE replaces the value of the file; repeatable")
      ->allow_extra_args(false);
  app.add_option("--workers", flags->workers,
                 "number of workers, which share the cores; default: 2, or what the job's "
                 "outer.min_islands wants")
      ->check(Range(1, 64));
  app.add_option("--servers", flags->servers, "number of parameter servers; default: 1")
      ->check(Range(1, 16));
  app.add_option("--folder", flags->folder,
                 "states and logs of the cluster; default: atoll-run/NAME, by the job's name");
  app.add_option("--export", flags->export_folder,
                 "folder of the trained model; default: FOLDER/model");
}

// Runs until the job has ended and is exported. A signal stops the daemons in order, a second one
// at once; the same command later goes on. The exit code; after a signal, ends as that signal does.
int Run(const Global& global, const RunFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_RUN_RUN_H_
