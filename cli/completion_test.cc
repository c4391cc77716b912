#include "cli/completion.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace atl::cli {
namespace {

// A program with two commands, one of which takes a job.
struct Program {
  Program() {
    app.add_option("--coordinator", text, "its address");
    app.add_option("-o,--output", text, "its form")->check(CLI::IsMember({"json", "yaml"}));
    app.add_subcommand("ls", "jobs")
        ->add_option("--state", text, "in it")
        ->check(CLI::IsMember({"running", "paused"}));
    app.add_subcommand("show", "a job in full")->add_option("JOB", text);
    app.add_subcommand("token", "join tokens")->add_option("ACTION", text);
    app.add_subcommand("help", "its help")->add_option("COMMAND", text);
    app.add_subcommand("submit", "what's to be done")
        ->add_flag("-w,--watch", watch, "then watch it");
  }

  // Returns what bash offers for the last of these words.
  std::vector<std::string> CompleteInBash(const std::string& words) {
    const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/completion.bash";
    std::ofstream(path) << *CompletionScript(app, "bash") << "COMP_WORDS=(" << words
                        << ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_island\n"
                        << "printf '%s\\n' \"${COMPREPLY[@]}\"\n";
    FILE* bash = popen(("bash -u " + path).c_str(), "r");
    REQUIRE(bash != nullptr);
    std::string output;
    for (char text[4096]; const size_t size = fread(text, 1, sizeof(text), bash);) {
      output.append(text, size);
    }
    CHECK(pclose(bash) == 0);
    std::vector<std::string> offered;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty()) offered.push_back(line);
    }
    return offered;
  }

  CLI::App app{"a program", "island"};
  std::string text;
  bool watch = false;
};

using Words = std::vector<std::string>;

TEST_CASE("bash_completes_commands_and_flags") {
  Program program;
  CHECK(program.CompleteInBash("island s") == Words{"show", "submit"});
  CHECK(program.CompleteInBash("island su") == Words{"submit"});
  CHECK(program.CompleteInBash("island submit --w") == Words{"--watch"});
  CHECK(program.CompleteInBash("island submit --c") == Words{"--coordinator"});
  CHECK(program.CompleteInBash("island show --w").empty());
}

TEST_CASE("bash_completes_arguments_that_are_words") {
  Program program;
  CHECK(program.CompleteInBash("island token ''") == Words{"create", "ls", "rm"});
  CHECK(program.CompleteInBash("island help su") == Words{"submit"});
}

TEST_CASE("bash_completes_values_of_flags_that_are_words") {
  Program program;
  CHECK(program.CompleteInBash("island ls --state ''") == Words{"running", "paused"});
  CHECK(program.CompleteInBash("island ls --state p") == Words{"paused"});
  CHECK(program.CompleteInBash("island show -o y") == Words{"yaml"});
  CHECK(program.CompleteInBash("island --output j") == Words{"json"});
}

TEST_CASE("a_program_that_is_not_there_offers_no_jobs") {
  CHECK(Program().CompleteInBash("island show ''").empty());
}

TEST_CASE("every_shell_gets_every_command_and_flag") {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    INFO(shell);
    const auto script = CompletionScript(Program().app, shell);
    REQUIRE(script.ok());
    for (const std::string word : {"show", "submit", "watch", "coordinator"}) {
      CHECK(script->find(word) != std::string::npos);
    }
  }
}

TEST_CASE("an_unknown_shell_is_refused") {
  CHECK(absl::IsInvalidArgument(CompletionScript(Program().app, "tcsh").status()));
}

}  // namespace
}  // namespace atl::cli
