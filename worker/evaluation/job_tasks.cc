#include "worker/evaluation/job_tasks.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

absl::StatusOr<TaskRows> MakeRows(const JobSpec& spec, const EvaluationSpec& evaluation,
                                  const ModelConfig& config, int64_t tokens_max,
                                  const Cancelled& cancelled) {
  if (config.is_images() || !config.architecture().causal) {
    return absl::InvalidArgumentError(
        "the job's model does not continue texts; remove the evaluation");
  }
  ATOLL_ASSIGN_OR_RETURN(Task task, ReadTask(evaluation.path, evaluation.kind, cancelled));
  std::unique_ptr<const Tokenizer> tokenizer;
  std::optional<int32_t> begin;
  if (const std::string& path = spec.data.tokenizer_path; !path.empty()) {
    ATOLL_ASSIGN_OR_RETURN(tokenizer, OpenTokenizer(path));
    ATOLL_ASSIGN_OR_RETURN(begin, EndOfText(*tokenizer, path));
  }
  PairEncoder encoder(tokenizer.get(), begin, config.vocab);
  auto rows = TaskRows::Create(std::move(task), evaluation.limit, spec.data.sequence_length,
                               encoder, tokens_max);
  if (!rows.ok()) return Annotate(rows.status(), evaluation.path);
  return rows;
}

}  // namespace

absl::StatusOr<TaskRows> OpenTask(const JobSpec& spec, const EvaluationSpec& evaluation,
                                  const ModelConfig& config, int64_t tokens_max,
                                  const Cancelled& cancelled) {
  auto rows = MakeRows(spec, evaluation, config, tokens_max, cancelled);
  if (!rows.ok()) {
    return Annotate(rows.status(), absl::StrCat("evaluation ", evaluation.name));
  }
  return rows;
}

}  // namespace atl
