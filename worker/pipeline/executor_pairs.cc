// The loss of pairs of answers. A sequence is a pair, in which the rejected answer with its prompt
// is the second document: where the head is, each of the two has a log-probability. What both are
// decides the gradient of either, so that the head runs twice, and the host waits between.

#include <algorithm>

#include "worker/pipeline/executor.h"

namespace atl::worker {

absl::Status Executor::RunPairs(StageRun& run, int32_t m, int chunk) {
  Backend& backend = device_.compute();
  const int slot = run.slot[m];
  const Range tokens = run.stage->TokensOfChunk(slot, chunk);
  const int64_t length = job_.sequence_length;
  const Tensor& totals = device_.run().pair_totals;  // of each answer
  const auto run_answers = [&](bool train, const auto& get_scale) -> absl::Status {
    for (int64_t row = tokens.begin / length; row < tokens.end / length; ++row) {
      const int64_t first = m * device_.role().micro_batch_sequences;
      const auto borders = device_.host_borders(first + row, 1);
      const int64_t begin = row * length, end = begin + length;
      const int64_t middle =
          begin +
          (std::ranges::find_if(borders, [](int32_t at) { return at > 0; }) - borders.begin());
      for (const auto& [answer, range] :
           {std::pair(2 * row, Range{begin, middle}), std::pair(2 * row + 1, Range{middle, end})}) {
        if (range.size() == 0) continue;
        ATOLL_RETURN_IF_ERROR(run.stage->Loss(Call(run, m), slot, range, device_.run().targets,
                                              totals.Rows(answer, 1), get_scale(answer), train));
      }
    }
    return absl::OkStatus();
  };
  if (pair_totals_.data() == nullptr) {
    ATOLL_ASSIGN_OR_RETURN(pair_totals_, HostReals::Create(backend, totals.dtype, totals.size()));
  }
  backend.Zero(device_.stream(), totals);
  ATOLL_RETURN_IF_ERROR(run_answers(/*train=*/false, [](int64_t) { return 0.0f; }));
  backend.CopyToHost(device_.stream(), pair_totals_.data(), totals);
  ATOLL_RETURN_IF_ERROR(backend.Synchronize(device_.stream()));
  std::vector<float> scales(static_cast<size_t>(totals.rows));  // of each answer's nats
  for (int64_t row = tokens.begin / length; row < tokens.end / length; ++row) {
    const double lead =
        pair_totals_[kLossTotals * (2 * row + 1)] - pair_totals_[kLossTotals * 2 * row];
    const auto pair = static_cast<size_t>(input_->micro_batches[m].first_row + row);
    if (input_->references) {
      leads_[pair] = lead;
      continue;
    }
    const PreferenceLoss loss = ComputePreference(job_.dpo, lead - input_->step.references[pair]);
    pairs_.nats += loss.nats;
    pairs_.hits += loss.prefers_chosen ? 1 : 0;
    const double slope = loss.slope / static_cast<double>(input_->counted_tokens);
    scales[static_cast<size_t>(2 * row)] = static_cast<float>(-slope);
    scales[static_cast<size_t>(2 * row + 1)] = static_cast<float>(slope);
  }
  if (!input_->train) return absl::OkStatus();
  return run_answers(/*train=*/true,
                     [&](int64_t answer) { return scales[static_cast<size_t>(answer)]; });
}

}  // namespace atl::worker
