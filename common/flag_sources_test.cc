#include "common/flag_sources.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>

namespace atl {
namespace {

// A program with some flags, and where they come from.
struct Program {
  CLI::App app{"", "atoll-worker"};
  std::string name = "none", site;
  int threads = 0;
  bool insecure = false;
  std::vector<std::string> hosts;
  std::map<std::string, std::string> environment;
  std::string toml;

  Program() {
    app.add_option("--name", name);
    app.add_option("--site", site);
    app.add_option("--threads", threads);
    app.add_option("--host", hosts)->allow_extra_args(false);
    app.add_flag("--insecure", insecure);
  }

  absl::Status Parse(std::vector<std::string> given) {
    auto arguments = FlagsFromElsewhere(
        app, given,
        [&](const char* variable) {
          const auto found = environment.find(variable);
          return found == environment.end() ? nullptr : found->second.c_str();
        },
        "worker.toml", toml);
    ATOLL_RETURN_IF_ERROR(arguments.status());
    arguments->insert(arguments->end(), given.begin(), given.end());
    std::reverse(arguments->begin(), arguments->end());
    app.parse(*arguments);
    return absl::OkStatus();
  }
};

TEST_CASE("the_command_line_comes_before_the_environment_and_that_before_the_file") {
  Program program;
  program.environment = {{"ATOLL_NAME", "e"}, {"ATOLL_SITE", "e"}};
  program.toml = "name = \"f\"\nsite = \"f\"\nthreads = 7\n";
  REQUIRE(program.Parse({"--name", "c"}).ok());
  CHECK(program.name == "c");
  CHECK(program.site == "e");
  CHECK(program.threads == 7);
}

TEST_CASE("lists_and_flags_without_a_value_come_from_a_file_too") {
  Program program;
  program.toml = "insecure = true\nhost = [\"a\", \"b\"]\n";
  REQUIRE(program.Parse({}).ok());
  CHECK(program.insecure);
  CHECK(program.hosts == std::vector<std::string>{"a", "b"});
}

TEST_CASE("a_flag_that_begins_like_another_is_not_that_one") {
  Program program;
  program.environment = {{"ATOLL_NAME", "e"}};
  program.app.add_option("--name-server");
  REQUIRE(program.Parse({"--name-server=x"}).ok());
  CHECK(program.name == "e");
}

TEST_CASE("mistakes_in_a_file_are_named_with_their_line") {
  Program program;
  program.toml = "name = \"f\"\nthraeds = 7\n";
  CHECK(program.Parse({}).message() ==
        "worker.toml:2: thraeds: there is no such flag; did you mean threads?");
  program.toml = "name = ";
  CHECK(absl::IsInvalidArgument(program.Parse({})));
  program.toml = "[name]\na = 1\n";
  CHECK(absl::IsInvalidArgument(program.Parse({})));
}

TEST_CASE("flags_of_commands_come_from_the_environment_after_the_command_line") {
  setenv("ATOLL_SUBMIT_WATCH", "true", 1);
  setenv("ATOLL_SUBMIT_LABEL", "e", 1);
  const auto parsed = [](std::vector<const char*> arguments) {
    CLI::App app{"", "atoll"};
    bool watch = false;
    std::string label;
    CLI::App* submit = app.add_subcommand("submit", "");
    submit->add_flag("--watch", watch);
    submit->add_option("--label", label);
    std::string context;
    app.add_option("--context", context);
    app.add_subcommand("show", "")->add_option("--label", label)->check(CLI::Number);
    arguments.insert(arguments.begin(), "atoll");
    ParseFlags(app, static_cast<int>(arguments.size()), arguments.data(), "");
    return std::pair(watch, label);
  };
  CHECK(parsed({"submit"}) == std::pair(true, std::string("e")));
  CHECK(parsed({"submit", "--label=c"}) == std::pair(true, std::string("c")));
  CHECK(parsed({"--context", "show", "submit"}) == std::pair(true, std::string("e")));
  // Another command's are not looked at.
  setenv("ATOLL_SHOW_LABEL", "no number", 1);
  CHECK(parsed({"submit"}) == std::pair(true, std::string("e")));
  unsetenv("ATOLL_SHOW_LABEL");
  CHECK(parsed({"show"}) == std::pair(false, std::string()));
  unsetenv("ATOLL_SUBMIT_WATCH");
  unsetenv("ATOLL_SUBMIT_LABEL");
  CHECK(parsed({"submit"}) == std::pair(false, std::string()));
}

}  // namespace
}  // namespace atl
