#include "coordinator/core/testing/command.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/check.h"

namespace atl::testing {

Command::Command(const std::string& line) {
  for (const std::string& token :
       std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))) {
    const size_t equals = token.find('=');
    if (equals == std::string::npos) {
      words.push_back(token);
    } else {
      arguments[token.substr(0, equals)] = token.substr(equals + 1);
    }
  }
}

bool Command::Has(const std::string& word) const {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string Command::Text(const std::string& key, const std::string& otherwise) const {
  auto it = arguments.find(key);
  return it == arguments.end() ? otherwise : it->second;
}

int64_t Command::Int(const std::string& key, int64_t otherwise) const {
  int64_t value = otherwise;
  if (arguments.contains(key)) ATOLL_CHECK(absl::SimpleAtoi(arguments.at(key), &value), key);
  return value;
}

double Command::Real(const std::string& key, double otherwise) const {
  double value = otherwise;
  if (arguments.contains(key)) ATOLL_CHECK(absl::SimpleAtod(arguments.at(key), &value), key);
  return value;
}

int64_t Command::Number(size_t word) const {
  int64_t number = 0;
  ATOLL_CHECK(absl::SimpleAtoi(words.at(word), &number), words.at(word));
  return number;
}

std::vector<PositionRange> Command::Ranges(const std::string& key) const {
  std::vector<PositionRange> ranges;
  for (const std::string& text :
       std::vector<std::string>(absl::StrSplit(Text(key), ',', absl::SkipEmpty()))) {
    const std::vector<std::string> ends = absl::StrSplit(text, '-');
    PositionRange range;
    ATOLL_CHECK(ends.size() == 2 && absl::SimpleAtoi(ends[0], &range.begin) &&
                    absl::SimpleAtoi(ends[1], &range.end),
                text);
    ranges.push_back(range);
  }
  return ranges;
}

std::optional<CoordinatorEvent> ParseEvent(const Command& command) {
  const std::string& verb = command.words[0];
  const std::map<std::string, JobCommand> controls = {
      {"pause", JobCommand::kPause},           {"resume", JobCommand::kResume},
      {"cancel", JobCommand::kCancel},         {"adopt", JobCommand::kAdopt},
      {"refill", JobCommand::kRefill},         {"remove", JobCommand::kRemove},
      {"note-export", JobCommand::kNoteExport}};
  if (const auto control = controls.find(verb); control != controls.end()) {
    return ControlJob{1,
                      command.words.at(1),
                      control->second,
                      command.Has("force"),
                      command.Text("server"),
                      command.Int("version", kNoVersion)};
  }
  if (verb == "drain") return DrainMember{1, command.words.at(1), !command.Has("undo")};
  if (verb == "sites") {
    SitesFound found;
    for (const auto& [worker, site] : command.arguments) {
      found.workers.push_back({worker, site, absl::StrCat("measured: near ", site)});
    }
    return found;
  }
  if (verb == "rates") {  // rates paris-oslo=1000000
    SitesFound found;
    for (const auto& [pair, rate] : command.arguments) {
      const size_t dash = pair.find('-');
      found.rates[{pair.substr(0, dash), pair.substr(dash + 1)}] = std::stod(rate);
    }
    return found;
  }
  if (verb != "changed") return std::nullopt;
  return ProfileChanged{{command.words.at(1)},
                        absl::StrReplaceAll(command.Text("reason"), {{"_", " "}}),
                        command.Has("unusable"),
                        command.Text("subject"),
                        command.Real("size", 1)};
}

JobSpec ParseJobSpec(const Command& command) {
  JobSpec spec;
  spec.name = command.Text("name", "lm");
  spec.model.hidden = 8;
  spec.model.layers = 2;
  spec.model.heads = 2;
  spec.data.path = "text";
  spec.data.sequence_length = 10;
  for (const absl::string_view site :
       absl::StrSplit(command.Text("sites"), ',', absl::SkipEmpty())) {
    spec.data.path.clear();
    spec.data.sites.push_back({std::string(site), absl::StrCat("text-", site), ""});
  }
  if (command.arguments.contains("set")) {
    spec.data.validation.push_back({command.Text("set"), "more-text"});
  }
  for (const absl::string_view every :
       absl::StrSplit(command.Text("evaluate"), ',', absl::SkipEmpty())) {
    EvaluationSpec& task = spec.evaluation.emplace_back();
    task.name = spec.evaluation.size() == 1 ? "arc" : "wiki";
    task.path = task.name + ".jsonl";
    task.every_rounds = std::stoll(std::string(every));
  }
  spec.model.initial_job = command.Text("from");
  if (command.Has("nf4")) {
    spec.model.initial_weights_path = "base";
    spec.adapter = {.kind = AdapterKind::kLora, .targets = {"q_proj"}, .base = AdapterBase::kNf4};
  }
  spec.inner.batch_sequences = command.Int("batch", 1);
  spec.inner.ema = command.Real("ema", 0);
  spec.outer.optimizer = "nesterov";  // has state that moves with shards
  spec.outer.learning_rate = 0.7;
  spec.outer.momentum = 0.8;
  spec.outer.min_islands = command.Int("min", 1);
  spec.outer.max_islands = command.Int("max", 8);
  spec.outer.min_servers = command.Int("servers", 1);
  spec.outer.shard_copies = static_cast<int>(command.Int("copies", 1));
  spec.outer.steps_per_round = command.Int("steps", 4);
  spec.outer.fragments = command.Int("fragments", 1);
  spec.outer.expert_fragments = command.Int("expert-fragments", 1);
  spec.outer.average_moments_steps = command.Int("moments", 0);
  spec.outer.site.rounds = command.Int("site-rounds", 0);
  spec.outer.grace_seconds = command.Real("grace", 10);
  spec.outer.steps_min = command.Int("steps-min", 1);
  spec.outer.adaptive_grace = command.Has("adaptive-grace");
  spec.outer.clip_norm = command.Real("clip", 0);
  spec.outer.merge = command.Text("merge", "mean");
  spec.outer.reject_outliers = !command.Has("keep-outliers");
  spec.outer.max_share = command.Real("max-share", 1);
  spec.outer.balance_steps = !command.Has("no-balance");
  if (command.Has("quantised-pulls")) spec.outer.pull_encoding = Encoding::kInt4;
  if (command.Has("no-overlap")) spec.outer.overlap = Overlap::kNone;
  spec.outer.wait_for_all = command.Has("wait-for-all");
  const std::string island = command.Text("island");
  spec.layout.island = island == "site"   ? IslandScope::kSite
                       : island == "all"  ? IslandScope::kAll
                       : island == "auto" ? IslandScope::kAuto
                                          : IslandScope::kWorker;
  spec.layout.workers_per_island = command.Int("per-island", 0);
  spec.layout.stages = command.Int("stages", 0);
  spec.layout.exclude = absl::StrSplit(command.Text("exclude"), ',', absl::SkipEmpty());
  spec.layout.sites = absl::StrSplit(command.Text("pinned"), ',', absl::SkipEmpty());
  spec.schedule.train_tokens = command.Int("tokens", 1000);
  spec.schedule.validate_every_rounds = command.Int("validate", 0);
  spec.schedule.priority = command.Int("priority", 0);
  spec.schedule.weight = command.Int("weight", 1);
  return spec;
}

}  // namespace atl::testing
