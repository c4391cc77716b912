#include "cli/model/evaluate.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/model/model_folder.h"
#include "cli/text/output.h"
#include "cli/text/printable.h"
#include "cli/text/scores.h"
#include "common/end_signals.h"
#include "common/masked_tokens.h"
#include "common/plural.h"
#include "worker/evaluation/task_rows.h"

namespace atl::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxContext = 4096;
constexpr auto kProgressInterval = std::chrono::seconds(2);

// A model's folder, ready to score texts.
struct Loaded {
  std::unique_ptr<const Tokenizer> tokenizer;  // null: tokens are bytes
  std::optional<int32_t> begin;
  LoadedModel model;
};

absl::StatusOr<std::vector<Task>> ReadTasks(const EvaluateFlags& flags) {
  std::optional<TaskKind> kind;
  if (!flags.kind.empty()) kind = FindTaskKind(flags.kind);
  std::vector<Task> tasks;
  for (const std::string& path : flags.tasks) {
    ATOLL_ASSIGN_OR_RETURN(Task task, ReadTask(path, kind));
    tasks.push_back(std::move(task));
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
      loaded.model, LoadModel(flags.folder, flags.adapter, config,
                              std::min<int64_t>(config.LongestSequence(),
                                                flags.context > 0 ? flags.context : kMaxContext),
                              flags.threads));
  return loaded;
}

// A line on a terminal, written anew now and then.
class Progress {
 public:
  Progress(const std::string& path, int64_t rows) : path_(path), rows_(rows) {}
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
    std::cerr << path_ << ": " << done << " of " << CountText(rows_, "text") << std::flush;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  const std::string& path_;
  const int64_t rows_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::string ScoreLines(const std::string& path, const TaskScore& score) {
  std::string text =
      absl::StrCat(path, ": ", Name(score.kind), ", ", CountText(score.items, "item"), ", ",
                   CountText(score.tokens, "scored token"));
  for (const auto& [name, value] : ListScoreNumbers(score)) {
    if (!value) continue;
    if (absl::EndsWith(name, "_standard_error")) {
      absl::StrAppend(&text, absl::StrFormat(", standard error %.4f", *value));
    } else {
      absl::StrAppend(
          &text, absl::StrFormat("\n  %-21s%.4f", absl::StrReplaceAll(name, {{"_", " "}}), *value));
    }
  }
  return text + "\n";
}

Json ScoreJson(const std::string& path, const TaskScore& score) {
  Json json = {
      {"task", path}, {"kind", Name(score.kind)}, {"items", score.items}, {"tokens", score.tokens}};
  for (const auto& [name, value] : ListScoreNumbers(score))
    json[name] = value ? Json(*value) : Json();
  return json;
}

// Returns what TaskRows::Score needs of a row.
absl::StatusOr<LossSum> EvaluateRow(const LoadedModel& model, std::span<const int32_t> row) {
  ModelRunner::Batch batch;
  batch.rows = 1;
  batch.inputs.resize(row.size() - 1);
  batch.targets.resize(row.size() - 1);
  SplitRow(row, batch.inputs.data(), batch.targets.data());
  model.backend.cache->StartPass(0);
  return model.runner->Evaluate(batch);
}

absl::Status Run(const Global& global, const EvaluateFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(std::vector<Task> tasks, ReadTasks(flags));
  std::atomic<bool> interrupted = false;
  EndSignals signals;
  signals.Watch([&](const char*) { interrupted = true; });
  ATOLL_ASSIGN_OR_RETURN(const Loaded loaded, Load(flags));
  PairEncoder encoder(loaded.tokenizer.get(), loaded.begin,
                      loaded.model.runner->model().config().vocab);
  for (size_t i = 0; i < tasks.size(); ++i) {
    const std::string& path = flags.tasks[i];
    const auto rows =
        TaskRows::Create(std::move(tasks[i]), flags.limit, loaded.model.runner->seq_len(), encoder);
    if (!rows.ok()) return Annotate(rows.status(), path);
    Progress progress(path, rows->size());
    const auto score = rows->Score([&](int64_t row) -> absl::StatusOr<LossSum> {
      if (interrupted) return absl::AbortedError("interrupted");
      progress.Draw(row);
      return EvaluateRow(loaded.model, rows->row(row));
    });
    if (!score.ok()) return Annotate(score.status(), path);
    if (score->items == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": the model's loss is not finite; it has diverged"));
    }
    std::cout << (global.structured ? DocumentLine(ScoreJson(path, *score).dump())
                                    : ScoreLines(path, *score))
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
  if (flags.context < 0) return FailUsage("--context: must be at least 0");
  if (!flags.kind.empty() && !FindTaskKind(flags.kind).has_value()) {
    return FailUsage("--kind: must be choices, exact or perplexity");
  }
  return ExitCode(Run(global, flags));
}

}  // namespace atl::cli
