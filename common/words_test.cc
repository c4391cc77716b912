// Words of command lines, and messages about wrong ones.

#include <catch2/catch.hpp>

#include "common/nearest.h"
#include "common/parse_bytes.h"
#include "common/usage.h"

namespace atl {
namespace {

TEST_CASE("sizes are numbers of bytes, with a unit or without") {
  CHECK(ParseBytes("65536").value() == 65536);
  CHECK(ParseBytes("0").value() == 0);
  CHECK(ParseBytes("3KiB").value() == 3 << 10);
  CHECK(ParseBytes("512MiB").value() == 512 << 20);
  CHECK(ParseBytes("4GiB").value() == int64_t{4} << 30);
  CHECK(ParseBytes("2TiB").value() == int64_t{2} << 40);
  for (const char* bad : {"", "GiB", "4GB", "-1", "1.5GiB", "4GiBMiB", "9000000TiB", "much"}) {
    CAPTURE(bad);
    CHECK(ParseBytes(bad).status().message() ==
          absl::StrCat("\"", bad, "\" is no number of bytes; write 4GiB, 512MiB or 65536"));
  }
}

TEST_CASE("the error for a misspelt name has the nearest one, for a strange one all of them") {
  CHECK(NearestName("momentm", {"rate", "momentum"}) == "momentum");
  CHECK(NearestName("colour", {"rate", "momentum"}).empty());
  CHECK(NearestName("mom", {"rate", "momentum"}) == "momentum");
  CHECK(Suggestion("ratte", {"rate", "momentum"}) == "did you mean rate?");
  CHECK(Suggestion("colour", {"rate", "momentum"}) == "there are: rate, momentum");
}

// Returns what the program `tool` prints for these arguments.
std::string Said(std::vector<std::string> arguments) {
  CLI::App app("a tool", "tool");
  std::string name, output;
  int threads = 0, seed = 0, tail = 0, newest = 0;
  bool quiet = false;
  app.add_option("--name", name)->required();
  app.add_option("--seed", seed);
  app.add_option("--threads", threads)->check(CLI::Range(0, 64));
  app.add_option("--tail", tail)->check(CLI::PositiveNumber);
  app.add_option("--newest", newest)->check(CLI::NonNegativeNumber);
  app.add_option("--output", output)->check(CLI::IsMember({"json", "yaml"}));
  app.add_flag("-q,--quiet", quiet);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error);
  }
  return "";
}

TEST_CASE("a wrong command line: the program, what is wrong, and the nearest flag") {
  CHECK(Said({"--name", "a", "-q"}).empty());
  CHECK(Said({}) == "tool: --name is required; see tool --help");
  CHECK(Said({"--nam", "a"}) == "tool: there is no flag --nam; did you mean --name?");
  CHECK(Said({"--nam=a"}) == "tool: there is no flag --nam; did you mean --name?");
  CHECK(Said({"--name=a", "--thraeds", "3", "--quite"}) ==
        "tool: there is no flag --thraeds; did you mean --threads?");
  CHECK(Said({"--name=a", "--colour=red"}) == "tool: there is no flag --colour; see tool --help");
  CHECK(Said({"--name=a", "b"}) == "tool: \"b\" is one argument too many; see tool --help");
  CHECK(Said({"--name=a", "--seed=eight"}) ==
        "tool: --seed = eight: must be a whole number; see tool --help");
  CHECK(Said({"--name=a", "--threads=99"}) ==
        "tool: --threads 99: must be from 0 to 64; see tool --help");
  CHECK(Said({"--name=a", "--tail=0"}) == "tool: --tail 0: must be above 0; see tool --help");
  CHECK(Said({"--name=a", "--newest=-3"}) ==
        "tool: --newest -3: must be at least 0; see tool --help");
  CHECK(Said({"--name=a", "--output=xml"}) ==
        "tool: --output xml: must be one of json, yaml; see tool --help");
  CHECK(Said({"--name=a", "--output"}) == "tool: --output needs a value; see tool --help");
  CHECK(Said({"--name=a", "--thr=3"}) == "tool: there is no flag --thr; did you mean --threads?");
  CHECK(Said({"--name=a", "--tail=all"}) == "tool: --tail all: must be a number; see tool --help");
}

// The same of a program with commands.
std::string SaidByCommands(std::vector<std::string> arguments) {
  CLI::App app("a tool", "tool");
  app.require_subcommand(1);
  app.fallthrough();
  std::string job, coordinator;
  bool follow = false;
  app.add_option("--coordinator", coordinator);
  CLI::App* show = app.add_subcommand("show");
  show->add_option("JOB", job)->required();
  show->add_flag("--follow", follow);
  app.add_subcommand("status");
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error);
  }
  return "";
}

TEST_CASE("a wrong command, or a command's wrong flags") {
  CHECK(SaidByCommands({"status", "--coordinator=a:1"}).empty());
  CHECK(SaidByCommands({"stauts"}) == "tool: there is no command stauts; did you mean status?");
  CHECK(SaidByCommands({"frobnicate"}) == "tool: there is no command frobnicate; see tool --help");
  CHECK(SaidByCommands({}) == "tool: no command is given; see tool --help");
  CHECK(SaidByCommands({"show"}) == "tool show: JOB is required; see tool show --help");
  CHECK(SaidByCommands({"show", "a-1", "--folow"}) ==
        "tool show: there is no flag --folow; did you mean --follow?");
  CHECK(SaidByCommands({"show", "a-1", "--cordinator", "b:2"}) ==
        "tool show: there is no flag --cordinator; did you mean --coordinator?");
  CHECK(SaidByCommands({"show", "a-1", "b-2"}) ==
        "tool show: \"b-2\" is one argument too many; see tool show --help");
}

}  // namespace
}  // namespace atl
