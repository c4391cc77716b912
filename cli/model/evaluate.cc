#include "cli/model/evaluate.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/model/model_folder.h"
#include "cli/read_text.h"
#include "cli/text/output.h"
#include "cli/text/printable.h"
#include "common/end_signals.h"
#include "common/plural.h"
#include "worker/data/tokenize.h"
#include "worker/evaluation/evaluate.h"

namespace atl::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxContext = 4096;
constexpr int64_t kMaxTaskBytes = int64_t{1} << 30;
constexpr auto kProgressInterval = std::chrono::seconds(2);

struct NamedTask {
  std::string path;
  Task task;
};

// A model's folder, ready to score texts.
struct Loaded {
  std::unique_ptr<const Tokenizer> tokenizer;  // null: tokens are bytes
  std::optional<int32_t> begin;
  LoadedModel model;
};

absl::StatusOr<std::vector<NamedTask>> ReadTasks(const EvaluateFlags& flags) {
  std::optional<TaskKind> kind;
  if (!flags.kind.empty()) kind = FindTaskKind(flags.kind);
  std::vector<NamedTask> tasks;
  for (const std::string& path : flags.tasks) {
    ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadText(path, kMaxTaskBytes));
    ATOLL_ASSIGN_OR_RETURN(Task task, ParseTask(text, path, kind));
    tasks.push_back({path, std::move(task)});
  }
  return tasks;
}

absl::StatusOr<Loaded> Load(const EvaluateFlags& flags) {
  Loaded loaded;
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ReadConfigAndWarn(flags.folder));
  if (config.is_images() || !config.architecture().causal) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.folder, "/config.json: is not of a model that continues texts; those are scored"));
  }
  ATOLL_ASSIGN_OR_RETURN(loaded.tokenizer,
                         LoadTokenizer(flags.folder, flags.tokenizer, config.vocab));
  if (loaded.tokenizer != nullptr) {
    ATOLL_ASSIGN_OR_RETURN(
        loaded.begin,
        EndOfText(*loaded.tokenizer, flags.tokenizer.empty() ? flags.folder : flags.tokenizer));
  }
  ATOLL_ASSIGN_OR_RETURN(
      loaded.model,
      LoadModel(flags.folder, flags.adapter, config,
                std::min<int64_t>(config.LongestSequence(), kMaxContext), flags.threads));
  return loaded;
}

// A line on a terminal, written anew now and then.
class Progress {
 public:
  Progress(const std::string& path, int64_t items) : path_(path), items_(items) {}
  ~Progress() {
    if (!drawn_) return;
    WriteControl(std::cerr, "\r\x1b[K");
    std::cerr << std::flush;
  }
  void Draw(int64_t done) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now - last_ < kProgressInterval) return;
    last_ = now;
    drawn_ = true;
    WriteControl(std::cerr, "\r\x1b[K");
    std::cerr << path_ << ": " << done << " of " << CountText(items_, "item") << std::flush;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  const std::string& path_;
  const int64_t items_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::string ScoreText(const std::string& path, const TaskScore& score) {
  std::string text =
      absl::StrCat(path, ": ", Name(score.kind), ", ", CountText(score.items, "item"), ", ",
                   CountText(score.tokens, "scored token"), "\n");
  const auto share = [&](const char* name, const std::optional<Share>& value) {
    if (!value.has_value()) return;
    absl::StrAppend(&text, absl::StrFormat("  %-21s%.4f, standard error %.4f\n", name, value->mean,
                                           value->standard_error));
  };
  const auto number = [&](const char* name, const std::optional<double>& value) {
    if (value.has_value()) absl::StrAppend(&text, absl::StrFormat("  %-21s%.4f\n", name, *value));
  };
  share("accuracy", score.accuracy);
  share("normalised accuracy", score.normalised);
  number("perplexity", score.perplexity);
  number("word perplexity", score.word_perplexity);
  number("byte perplexity", score.byte_perplexity);
  number("bits per byte", score.bits_per_byte);
  return text;
}

Json ScoreJson(const std::string& path, const TaskScore& score) {
  Json json = {
      {"task", path}, {"kind", Name(score.kind)}, {"items", score.items}, {"tokens", score.tokens}};
  const auto number = [&](const std::string& name, const std::optional<double>& value) {
    json[name] = value.has_value() ? Json(*value) : Json();
  };
  const auto share = [&](const std::string& name, const std::optional<Share>& value) {
    number(name, value ? std::optional(value->mean) : std::nullopt);
    number(name + "_standard_error", value ? std::optional(value->standard_error) : std::nullopt);
  };
  share("accuracy", score.accuracy);
  share("normalised_accuracy", score.normalised);
  number("perplexity", score.perplexity);
  number("word_perplexity", score.word_perplexity);
  number("byte_perplexity", score.byte_perplexity);
  number("bits_per_byte", score.bits_per_byte);
  return json;
}

absl::Status Run(const Global& global, const EvaluateFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<NamedTask> tasks, ReadTasks(flags));
  std::atomic<bool> interrupted = false;
  EndSignals signals;
  signals.Watch([&](const char*) { interrupted = true; });
  ATOLL_ASSIGN_OR_RETURN(const Loaded loaded, Load(flags));
  PairEncoder encoder(loaded.tokenizer.get(), loaded.begin,
                      loaded.model.runner->model().config().vocab);
  Scorer scorer(*loaded.model.runner, [&] { loaded.model.backend.cache->StartPass(0); });
  for (const NamedTask& named : tasks) {
    Progress progress(named.path, std::ssize(named.task.items));
    auto score = EvaluateTask(named.task, flags.limit, encoder, scorer, [&](int64_t done) {
      progress.Draw(done);
      return !interrupted;
    });
    if (!score.ok()) return Annotate(score.status(), named.path);
    std::cout << (global.structured ? DocumentLine(ScoreJson(named.path, *score).dump())
                                    : ScoreText(named.path, *score))
              << std::flush;
  }
  if (std::cout.good()) return absl::OkStatus();
  return absl::DataLossError("standard output: cannot be written; is the disk full?");
}

}  // namespace

int Evaluate(const Global& global, const EvaluateFlags& flags) {
  if (flags.threads < 1 || flags.threads > 1024) {
    return FailUsage("--threads: must be from 1 to 1024");
  }
  if (flags.limit < 0) return FailUsage("--limit: must be at least 0");
  if (!flags.kind.empty() && !FindTaskKind(flags.kind).has_value()) {
    return FailUsage("--kind: must be choices, exact or perplexity");
  }
  return ExitCode(Run(global, flags));
}

}  // namespace atl::cli
