#include "common/usage.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/nearest.h"
#include "common/version.h"

namespace atl {
namespace {

constexpr double kUnbounded = 1e300;  // beyond it a range has no upper bound

bool IsFlag(absl::string_view word) { return absl::StartsWith(word, "-"); }

// Lists the flags of `app` and of the command that was given, without dashes.
std::vector<std::string> ListFlagNames(const CLI::App& app, const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* one : {&command, &app}) {
    for (const CLI::Option* option : one->get_options()) {
      const std::vector<std::string>& more = option->get_lnames();
      names.insert(names.end(), more.begin(), more.end());
    }
  }
  return names;
}

std::vector<std::string> ListCommands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(one->get_name());
  }
  return names;
}

// CLI11 has "--tail: Value 0 not in range 0.000000 to 17976931...", with every digit of a bound.
std::optional<std::string> OutsideRange(absl::string_view what) {
  const std::vector<std::string> flag = absl::StrSplit(what, absl::MaxSplits(": Value ", 1));
  if (flag.size() != 2) return std::nullopt;
  const std::vector<std::string> value =
      absl::StrSplit(flag[1], absl::MaxSplits(" not in range ", 1));
  if (value.size() != 2) return std::nullopt;
  const std::vector<std::string> bounds = absl::StrSplit(value[1], " to ");
  double low = 0, high = 0, number = 0;
  if (bounds.size() != 2 || !absl::SimpleAtod(bounds[0], &low) ||
      !absl::SimpleAtod(bounds[1], &high)) {
    return std::nullopt;
  }
  const std::string of = absl::StrCat(flag[0], " ", value[0], ": must be ");
  if (!absl::SimpleAtod(value[0], &number)) return absl::StrCat(of, "a number");
  if (high < kUnbounded) return absl::StrFormat("%sfrom %.15g to %.15g", of, low, high);
  return absl::StrFormat("%s%s %.15g", of, number == low ? "above" : "at least", low);
}

// CLI11 has "--output: xml not in {json,yaml}", and "--output: 1 required TEXT missing".
std::optional<std::string> NoSuchValue(absl::string_view what) {
  const std::vector<std::string> flag = absl::StrSplit(what, absl::MaxSplits(": ", 1));
  if (flag.size() != 2) return std::nullopt;
  if (absl::StartsWith(flag[1], "1 required ")) return flag[0] + " needs a value";
  const std::vector<std::string> value = absl::StrSplit(flag[1], absl::MaxSplits(" not in {", 1));
  if (value.size() != 2) return std::nullopt;
  return absl::StrCat(flag[0], " ", value[0], ": must be one of ",
                      absl::StrReplaceAll(value[1], {{",", ", "}, {"}", ""}}));
}

// CLI11 has "Could not convert: --threads = eight".
std::string CannotBeRead(const CLI::App& app, const CLI::App& command, absl::string_view what) {
  if (const auto outside = OutsideRange(what)) return *outside;
  if (const auto no_such = NoSuchValue(what)) return *no_such;
  if (!absl::ConsumePrefix(&what, "Could not convert: ")) return std::string(what);
  const std::string name(what.substr(0, what.find(" = ")));
  const CLI::Option* option = command.get_option_no_throw(name);
  if (option == nullptr) option = app.get_option_no_throw(name);
  const std::string type = option == nullptr ? "" : option->get_type_name();
  return absl::StrCat(what, ": must be ",
                      type == "INT"    ? "a whole number"
                      : type == "UINT" ? "a whole number from 0"
                                       : "a number");
}

}  // namespace

std::string UsageError(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  const CLI::App& command = given.empty() ? app : *given.front();
  const std::string program =
      given.empty() ? app.get_name() : absl::StrCat(app.get_name(), " ", command.get_name());
  const auto say = [&](const std::string& what, const std::string& meant) {
    const std::string more = meant.empty() ? absl::StrCat("see ", program, " --help")
                                           : absl::StrCat("did you mean ", meant, "?");
    return absl::StrCat(program, ": ", what, "; ", more);
  };
  // A misspelt flag is the mistake, also where the right one is then said to be missing.
  const bool missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  const bool extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const std::vector<std::string> words = app.remaining(true);
  if ((missing || extra) && !words.empty()) {
    const std::vector<std::string> commands = ListCommands(app);
    if (!commands.empty() && given.empty() && !IsFlag(words[0])) {
      return say(absl::StrCat("there is no command ", words[0]), NearestName(words[0], commands));
    }
    for (const std::string& word : words) {
      if (!IsFlag(word)) continue;
      const std::string flag = word.substr(0, word.find('='));
      const std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
      const std::string nearest = NearestName(name, ListFlagNames(app, command));
      return say("there is no flag " + flag, nearest.empty() ? "" : "--" + nearest);
    }
    if (extra) return say(absl::StrCat("\"", words[0], "\" is one argument too many"), "");
  }
  if (missing && given.empty() && !ListCommands(app).empty()) return say("no command is given", "");
  return say(CannotBeRead(app, command, error.what()), "");
}

void AddVersionFlag(CLI::App& app) {
  app.set_version_flag("--version", absl::StrCat(app.get_name(), " ", kSoftwareVersion),
                       "print the version");
}

int ExplainUsage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  std::fprintf(stderr, "%s\n", UsageError(app, error).c_str());
  return 2;
}

}  // namespace atl
