// `atoll replay`: plays a coordinator's recording, and compares its decisions. Needs no
// coordinator. Exit code as in commands.h; another decision than the recorded one is a failure.

#ifndef ATOLL_CLI_PLAY_REPLAY_H_
#define ATOLL_CLI_PLAY_REPLAY_H_

#include <string>

#include "cli/commands.h"

namespace atl::cli {

struct ReplayFlags {
  std::string folder;
  std::string until;  // SEGMENT:EVENT; empty: the end
  std::string show;   // a job; empty: none
};

// `App` is CLI::App.
template <class App>
void AddReplayFlags(App& app, ReplayFlags* flags) {
  app.add_option("DIR", flags->folder, "folder of atoll-coordinator --record")->required();
  app.add_option("--until", flags->until, "the last event to play, SEGMENT:EVENT");
  app.add_option("--show", flags->show, "id of a job to show as it is then");
}

int Replay(const Global& global, const ReplayFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_PLAY_REPLAY_H_
