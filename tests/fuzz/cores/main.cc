// `./dev fuzz cores`: extreme messages against the cores, with the sanitizers.

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <string>
#include <utility>

#include "tests/fuzz/cores/cores.h"

int main(int argc, char** argv) {
  CLI::App app("Messages with extreme values against whole cores");
  uint64_t seed = 1;
  int64_t messages = 100'000;
  std::string core;
  app.add_option("--seed", seed, "of what is tried")->capture_default_str();
  app.add_option("--messages", messages, "to each core")->capture_default_str();
  app.add_option("--core", core, "coordinator, paramserver or worker; left out: all");
  CLI11_PARSE(app, argc, argv);

  using Try = std::function<atl::fuzz::Tried(uint64_t, int64_t)>;
  const std::pair<std::string, Try> cores[] = {{"coordinator", atl::fuzz::TryCoordinator},
                                               {"paramserver", atl::fuzz::TryParameterServer},
                                               {"worker", atl::fuzz::TryWorker}};
  for (const auto& [name, run] : cores) {
    if (!core.empty() && core != name) continue;
    const atl::fuzz::Tried tried = run(seed, messages);
    std::cout << name << ": " << tried.messages << " messages, " << tried.taken << " taken"
              << std::endl;
  }
  return 0;
}
