#include "common/flag_sources.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/http/proxy.h"
#include "common/nearest.h"
#include "common/toml.h"

namespace atl {
namespace {

constexpr int64_t kConfigBytesMax = 1 << 20;
constexpr char kConfigFlag[] = "config";

bool IsGiven(const std::string& name, const std::vector<std::string>& given) {
  const std::string flag = "--" + name;
  return std::any_of(given.begin(), given.end(), [&](const std::string& argument) {
    return argument == flag || absl::StartsWith(argument, flag + "=");
  });
}

std::string EnvironmentName(const std::string& flag) {
  return absl::StrCat("ATOLL_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}})));
}

// The flags that have a value elsewhere: not those that end the program.
std::vector<std::string> ListFlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name != "help" && name != "version" && name != kConfigFlag) names.push_back(name);
    }
  }
  return names;
}

// The command that is called; null: none is named.
CLI::App* CommandIn(CLI::App& app, const std::vector<std::string>& given) {
  for (size_t i = 0; i < given.size(); ++i) {
    const std::vector<CLI::App*> commands = app.get_subcommands(
        [&](const CLI::App* command) { return command->get_name() == given[i]; });
    if (!commands.empty()) return commands[0];
    const CLI::Option* const option = app.get_option_no_throw(given[i]);
    if (option != nullptr && option->get_items_expected_min() > 0) ++i;  // its value
  }
  return nullptr;
}

// A value as an argument of a command line.
absl::StatusOr<std::string> ArgumentFromToml(const toml::node& value) {
  if (const auto* text = value.as_string()) return text->get();
  if (const auto* number = value.as_integer()) return absl::StrCat(number->get());
  if (const auto* number = value.as_floating_point()) return absl::StrCat(number->get());
  if (const auto* yes = value.as_boolean()) return std::string(yes->get() ? "true" : "false");
  return absl::InvalidArgumentError("must be a text, a number, true or false, or a list of them");
}

absl::Status AddArguments(const std::string& name, const toml::node& value,
                          std::vector<std::string>* arguments) {
  const auto add = [&](const toml::node& one) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const std::string argument, ArgumentFromToml(one));
    arguments->push_back(absl::StrCat("--", name, "=", argument));
    return absl::OkStatus();
  };
  const auto* list = value.as_array();
  if (list == nullptr) return add(value);
  for (const toml::node& one : *list) ATOLL_RETURN_IF_ERROR(add(one));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FlagsFromElsewhere(
    const CLI::App& app, const std::vector<std::string>& given,
    const std::function<const char*(const char*)>& environment, const std::string& path,
    const std::string& toml_text) {
  const toml::parse_result file = toml::parse(toml_text);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", file.error().source().begin.line,
                                                   ": ", std::string(file.error().description())));
  }
  std::vector<std::string> arguments;
  const std::vector<std::string> names = ListFlagNames(app);
  std::set<std::string> decided;
  for (const std::string& name : names) {
    if (IsGiven(name, given)) decided.insert(name);
    const char* value = environment(EnvironmentName(name).c_str());
    if (value == nullptr || *value == '\0' || !decided.insert(name).second) continue;
    arguments.push_back(absl::StrCat("--", name, "=", value));
  }
  for (const auto& [key, value] : file.table()) {
    const std::string name(key.str());
    const std::string where = absl::StrCat(path, ":", value.source().begin.line, ": ", name);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string nearest = NearestName(name, names);
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": there is no such flag",
                       nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
    }
    if (decided.count(name) > 0) continue;
    ATOLL_RETURN_IF_ERROR(Annotate(AddArguments(name, value, &arguments), where));
  }
  return arguments;
}

void ParseFlags(CLI::App& app, int argc, const char* const* argv,
                const std::string& default_config) {
  PrepareProxyVariables();
  std::vector<std::string> given(argv + 1, argv + argc);
  std::string path = default_config, text;
  if (!default_config.empty()) {
    const char* other = std::getenv("ATOLL_CONFIG");
    if (other != nullptr && *other != '\0') path = other;
    app.add_option(absl::StrCat("--", kConfigFlag), path,
                   "TOML file with one flag = value a line; the environment takes precedence")
        ->capture_default_str();
    for (size_t i = 0; i < given.size(); ++i) {
      absl::string_view argument = given[i];
      if (absl::ConsumePrefix(&argument, "--config=")) path = std::string(argument);
      if (given[i] == "--config" && i + 1 < given.size()) path = given[i + 1];
    }
    const auto bytes = RealFiles().Read(path, kConfigBytesMax);
    if (bytes.ok()) {
      text.assign(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    } else if (path != default_config || !absl::IsNotFound(bytes.status())) {
      throw CLI::ValidationError(absl::StrCat("--config ", bytes.status().message()));
    }
  }
  for (const std::string& name : ListFlagNames(app)) {  // for --help
    app.get_option("--" + name)->envname(EnvironmentName(name));
  }
  // CLI11 itself reads these, for flags of the command that are not given.
  if (CLI::App* command = CommandIn(app, given); command != nullptr) {
    for (CLI::Option* option : command->get_options()) {
      const std::vector<std::string>& names = option->get_lnames();
      if (names.empty() || names[0] == "help") continue;
      option->envname(EnvironmentName(absl::StrCat(command->get_name(), "-", names[0])));
    }
  }
  const auto arguments = FlagsFromElsewhere(
      app, given, [](const char* name) { return std::getenv(name); }, path, text);
  if (!arguments.ok()) throw CLI::ValidationError(std::string(arguments.status().message()));
  std::vector<std::string> all = *arguments;
  all.insert(all.end(), given.begin(), given.end());
  std::reverse(all.begin(), all.end());  // as CLI11 wants it
  app.parse(all);
}

}  // namespace atl
