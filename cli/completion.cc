#include "cli/completion.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace atl::cli {
namespace {

struct Flag {
  std::string name;  // with its dashes
  std::string what;
  std::string words;  // that its value may be; empty: anything
};

struct CommandCompletion {
  std::string name;
  std::string what;
  std::vector<Flag> flags;
  std::string values;  // shell command that prints what its argument may be; empty: files
};

std::vector<Flag> FlagsFrom(const CLI::App& app) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : app.get_options()) {
    const std::string what = option->get_description();
    // CLI11 has "TEXT:{json,yaml,wide}".
    std::string words = option->get_type_name();
    words.erase(0, std::min(words.find(":{"), words.size()));
    words = absl::StrReplaceAll(words, {{":{", ""}, {"}", ""}, {",", " "}});
    for (const std::string& name : option->get_lnames())
      flags.push_back({"--" + name, what, words});
    for (const std::string& name : option->get_snames()) flags.push_back({"-" + name, what, words});
  }
  return flags;
}

std::vector<const CLI::App*> ListCommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Prints what an argument of the command may be: what the coordinator knows, within a second, or
// words.
std::string ValuesCommand(const CLI::App& app, const CLI::App& command) {
  const std::string call = absl::StrCat("timeout 1 ", app.get_name(), " ");
  const auto takes = [&](const char* argument) {
    return command.get_option_no_throw(argument) != nullptr;
  };
  const auto words = [](const std::string& all) { return absl::StrCat("printf '%s\\n' ", all); };
  if (takes("JOB")) return call + "ls 2>/dev/null | awk 'NR > 1 { print $1 }'";
  if (takes("MEMBER")) {
    return call +
           "status 2>/dev/null | awk '$1 == \"worker\" || $1 == \"paramserver\" { print $2 }'";
  }
  if (takes("NAME") && !command.get_option("NAME")->get_required()) {  // of a context
    return call + "context 2>/dev/null | awk 'NR > 1 { print $(NF - 2) }'";
  }
  if (takes("ACTION")) return words("create ls rm");
  if (takes("SHELL")) return words("bash zsh fish");
  if (!takes("COMMAND")) return "";
  std::string names;
  for (const CLI::App* one : ListCommands(app)) absl::StrAppend(&names, " ", one->get_name());
  return words(names);
}

std::vector<CommandCompletion> CommandsFrom(const CLI::App& app) {
  std::vector<CommandCompletion> commands;
  for (const CLI::App* command : ListCommands(app)) {
    commands.push_back({command->get_name(), command->get_description(), FlagsFrom(*command),
                        ValuesCommand(app, *command)});
  }
  return commands;
}

std::string NamesFrom(const std::vector<Flag>& flags) {
  return absl::StrJoin(flags, " ",
                       [](std::string* out, const Flag& flag) { absl::StrAppend(out, flag.name); });
}

// Bash: the words that a flag's value may be, where it is the word before.
std::string BashValues(const std::string& command, const std::vector<Flag>& flags) {
  std::string cases;
  for (const Flag& flag : flags) {
    if (flag.words.empty()) continue;
    absl::StrAppend(&cases, "    ", command, flag.name, ") COMPREPLY=($(compgen -W '", flag.words,
                    "' -- \"$current\")); return ;;\n");
  }
  return cases;
}

// Inside '...' of a shell; `quote` is what it has in place of one.
std::string Quoted(const std::string& text, const std::string& quote) {
  return absl::StrReplaceAll(text, {{"'", quote}});
}

std::string BashScript(const CLI::App& app) {
  const std::string program = app.get_name();
  const std::vector<CommandCompletion> commands = CommandsFrom(app);
  const std::string global = NamesFrom(FlagsFrom(app));
  const auto names = absl::StrJoin(
      commands, " ",
      [](std::string* out, const CommandCompletion& one) { absl::StrAppend(out, one.name); });
  std::string script = absl::StrCat(
      "# bash completion for ", program, "\n_", program, "() {\n",
      "  local current=${COMP_WORDS[COMP_CWORD]} command= word flags= values=\n",
      "  local previous=${COMP_WORDS[COMP_CWORD-1]}\n",
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case \" ", names,
      " \" in *\" $word \"*) command=$word; break ;; esac\n  done\n  case $command$previous in\n",
      BashValues("*", FlagsFrom(app)));
  for (const CommandCompletion& command : commands) {
    script += BashValues(command.name, command.flags);
  }
  absl::StrAppend(&script, "  esac\n  case $command in\n", "    '') COMPREPLY=($(compgen -W '",
                  names, " ", global, "' -- \"$current\")); return ;;\n");
  for (const CommandCompletion& command : commands) {
    absl::StrAppend(&script, "    ", command.name, ") flags='", NamesFrom(command.flags), "'",
                    command.values.empty()
                        ? ""
                        : absl::StrCat(" values='", Quoted(command.values, "'\\''"), "'"),
                    " ;;\n");
  }
  absl::StrAppend(&script, "  esac\n  if [[ $current == -* ]]; then\n",
                  "    COMPREPLY=($(compgen -W \"$flags ", global, "\" -- \"$current\"))\n",
                  "  elif [[ -n $values ]]; then\n",
                  "    COMPREPLY=($(compgen -W \"$(eval \"$values\")\" -- \"$current\"))\n",
                  "  fi\n}\ncomplete -o default -F _", program, " ", program, "\n");
  return script;
}

std::string ZshValues(const std::vector<Flag>& flags) {
  std::string tests;
  for (const Flag& flag : flags) {
    if (flag.words.empty()) continue;
    absl::StrAppend(&tests, "; [[ ${words[CURRENT-1]} == ", flag.name, " ]] && { compadd ",
                    flag.words, "; return }");
  }
  return tests;
}

std::string ZshScript(const CLI::App& app) {
  const std::string program = app.get_name();
  const auto describe = [](const std::string& name, const std::string& what) {
    return absl::StrCat("'", name, ":", Quoted(absl::StrReplaceAll(what, {{":", "\\:"}}), "'\\''"),
                        "' ");
  };
  const auto describe_flags = [&](const std::vector<Flag>& flags) {
    std::string words;
    for (const Flag& flag : flags) absl::StrAppend(&words, describe(flag.name, flag.what));
    return words;
  };
  std::string script = absl::StrCat("#compdef ", program, "\n_", program, "() {\n",
                                    "  local -a commands flags values\n  commands=(");
  const std::vector<CommandCompletion> commands = CommandsFrom(app);
  for (const CommandCompletion& one : commands) script += describe(one.name, one.what);
  absl::StrAppend(
      &script, ")\n  flags=(", describe_flags(FlagsFrom(app)), ")", ZshValues(FlagsFrom(app)),
      "\n  local command= word\n  for word in ${words[2,CURRENT-1]}; do\n",
      "    [[ -n ${(M)commands:#$word:*} ]] && command=$word && break\n  done\n",
      "  case $command in\n    '') _describe command commands; _describe flag flags ;;\n");
  for (const CommandCompletion& one : commands) {
    absl::StrAppend(&script, "    ", one.name, ") flags+=(", describe_flags(one.flags), ")",
                    ZshValues(one.flags));
    if (!one.values.empty()) {
      absl::StrAppend(&script, "; values=(${(f)\"$(", one.values, ")\"}); _describe value values");
    }
    absl::StrAppend(&script, "; _describe flag flags; _files ;;\n");
  }
  absl::StrAppend(&script, "  esac\n}\n_", program, " \"$@\"\n");
  return script;
}

std::string FishScript(const CLI::App& app) {
  const std::string program = app.get_name();
  const std::string complete = absl::StrCat("complete -c ", program);
  const auto add_flags = [&](const std::vector<Flag>& flags, const std::string& when,
                             std::string* script) {
    for (const Flag& flag : flags) {
      const bool is_long = flag.name.size() > 2;
      absl::StrAppend(script, complete, when, is_long ? " -l " : " -s ",
                      flag.name.substr(is_long ? 2 : 1),
                      flag.words.empty() ? "" : absl::StrCat(" -x -a '", flag.words, "'"), " -d '",
                      Quoted(flag.what, "\\'"), "'\n");
    }
  };
  std::string script = absl::StrCat("# fish completion for ", program, "\n");
  add_flags(FlagsFrom(app), "", &script);
  for (const CommandCompletion& one : CommandsFrom(app)) {
    absl::StrAppend(&script, complete, " -n __fish_use_subcommand -a ", one.name, " -d '",
                    Quoted(one.what, "\\'"), "'\n");
    const std::string when = absl::StrCat(" -n '__fish_seen_subcommand_from ", one.name, "'");
    if (!one.values.empty()) {
      absl::StrAppend(&script, complete, when, " -f -a \"(",
                      absl::StrReplaceAll(one.values, {{"$", "\\$"}, {"\"", "\\\""}}), ")\"\n");
    }
    add_flags(one.flags, when, &script);
  }
  return script;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return BashScript(app);
  if (shell == "zsh") return ZshScript(app);
  if (shell == "fish") return FishScript(app);
  return absl::InvalidArgumentError(
      absl::StrCat("completion ", shell, ": must be bash, zsh or fish"));
}

}  // namespace atl::cli
