// The end of a step: commit votes, and the optimizer.

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/event_loop.h"
#include "worker/pipeline/executor.h"

namespace atl::worker {

CommitTable::CommitTable(const IslandPlan& plan, int32_t layers,
                         const std::vector<int>& norm_counts, int pairs, int routers)
    : layers_(layers),
      ranks_(TensorParallel(plan)),
      shards_(OwnershipFromPlan(plan).shards),
      first_device_(norms() + kReplicaNumbers * static_cast<int>(plan.replicas.size())),
      pairs_(pairs),
      routers_(routers),
      devices_(ListDevices(plan)),
      positions_(PlanCommitExchange(ListDeviceSites(plan, devices_))) {
  first_chunks_ = first_device_ + static_cast<int>(devices_.size());
  first_stage_ = {0};
  for (const PlanReplica& replica : plan.replicas) {
    first_stage_.push_back(first_stage_.back() + static_cast<int>(replica.stages.size()));
  }
  first_norms_ = first_chunks_ + (ranks_ > 1 ? StageChunks::kNumbers * first_stage_.back() : 0);
  if (norm_counts.empty()) return;
  norms_before_ = {0};
  for (const int count : norm_counts) norms_before_.push_back(norms_before_.back() + count);
}

const CommitPosition& CommitTable::position(const std::string& device) const {
  const auto found = std::find(devices_.begin(), devices_.end(), device);
  ATOLL_CHECK(found != devices_.end(), device, " has no place in the plan");
  return positions_[static_cast<size_t>(found - devices_.begin())];
}

void Executor::FillTable(const std::vector<double>& sums, std::vector<double>* values) const {
  const DeviceRole& role = device_.role();
  const std::vector<HeldState*>& planned = device_.planned();
  for (size_t i = 0; i < sums.size(); ++i) {
    if (!role.ownership.Leads(role.replica) || planned[i]->table_only) continue;
    const int shard = role.ownership.GetShardIndex(role.replica);
    (*values)[table_.norm(planned[i]->shard.layer, role.rank, shard)] = sums[i];
  }
  const bool has_head = role.HoldsLayer(static_cast<int32_t>(model().layers().size()) - 1);
  if (has_head && role.rank == 0) {
    for (int32_t m = 0; m < role.micro_batches; ++m) {
      (*values)[table_.loss(role.replica)] += totals_[kLossTotals * m];
      (*values)[table_.hits(role.replica)] += totals_[kLossTotals * m + 2];
    }
    (*values)[table_.loss(role.replica)] += pairs_.nats;
    (*values)[table_.hits(role.replica)] += pairs_.hits;
    std::ranges::copy(leads_, values->begin() + table_.first_reference());
  }
  for (size_t d = 0; d < table_.devices().size(); ++d) {
    if (table_.devices()[d] != device_.name()) continue;
    (*values)[table_.steps(d)] = static_cast<double>(planned[0]->optimizer_step);
  }
  for (int i = table_.first_router(); role.rank == 0 && input_->train && i < table_.slots(); ++i) {
    (*values)[i] += router_totals_[i - table_.first_router()];
  }
  ProposeChunks(values);
}

// An optimizer that needs norms of each parameter needs the gradient's norm before: devices
// exchange their parts of it, which commits to nothing, and add their parts of the parameters'
// norms to the table that does.
absl::Status Executor::AddNorms(std::vector<double>* values) {
  std::vector<double> all = *values;
  ATOLL_RETURN_IF_ERROR(ExchangeTable(&all, /*commits=*/false));
  const DeviceRole& role = device_.role();
  if (!computes() || !role.ownership.Leads(role.replica)) return absl::OkStatus();
  const int64_t step = device_.planned()[0]->optimizer_step + 1;
  ATOLL_ASSIGN_OR_RETURN(const std::vector<double> norms,
                         device_.optimizer().Norms(step, SumOfSquares(all), role.rank));
  const int part = table_.part(role.rank, role.ownership.GetShardIndex(role.replica));
  size_t at = 0;
  for (const HeldState* held : device_.planned()) {
    const int count = static_cast<int>(2 * held->state.layout().params.size());
    for (int i = 0; i < count; ++i, ++at) {
      if (held->table_only) continue;  // the embedding's to count
      (*values)[table_.first_param_norm(held->shard.layer, i) + part] = norms[at];
    }
  }
  return absl::OkStatus();
}

double Executor::SumOfSquares(const std::vector<double>& values) const {
  double sum = 0;
  for (int i = 0; i < table_.norms(); ++i) sum += values[i];
  return sum;
}

// Selects the norms of the layers here, as Optimizer::Apply takes them.
std::vector<double> Executor::SelectPlannedNorms() const {
  std::vector<double> norms;
  if (!device_.optimizer().has_norms()) return norms;
  for (const HeldState* held : device_.planned()) {
    const int count = static_cast<int>(2 * held->state.layout().params.size());
    for (int i = 0; i < count; ++i) {
      double& sum = norms.emplace_back(0);
      const int first = table_.first_param_norm(held->shard.layer, i);
      for (int part = 0; part < table_.parts(); ++part) sum += sums_[first + part];
    }
  }
  return norms;
}

// Along common/protocol/commit_exchange.h.
absl::Status Executor::ExchangeTable(std::vector<double>* values, bool commits) {
  const CommitPosition& position = table_.position(device_.name());
  TableExchange exchange;
  exchange.commits = commits;
  exchange.deadline = SteadyNow() + options_.message_timeout;
  std::vector<double> other(values->size());
  for (const int from : position.below) {
    ATOLL_RETURN_IF_ERROR(ReceiveTable(exchange, from, &other));
    for (size_t i = 0; i < other.size(); ++i) (*values)[i] += other[i];
  }
  if (position.above >= 0) {
    ATOLL_RETURN_IF_ERROR(SendTable(exchange, {position.above}, *values));
    ATOLL_RETURN_IF_ERROR(ReceiveTable(exchange, position.above, values));
  } else if (!position.heads.empty()) {
    ATOLL_RETURN_IF_ERROR(ExchangeWithHeads(exchange, position.heads, values));
  }
  return SendTable(exchange, {position.below.rbegin(), position.below.rend()}, *values);
}

// Each head adds up all heads' sums in the same order, its own in its place.
absl::Status Executor::ExchangeWithHeads(const TableExchange& exchange,
                                         const std::vector<int>& heads,
                                         std::vector<double>* values) {
  std::vector<int> others;
  for (const int head : heads) {
    if (table_.devices()[head] != device_.name()) others.push_back(head);
  }
  ATOLL_RETURN_IF_ERROR(SendTable(exchange, others, *values));
  std::vector<double> sum(values->size()), other(values->size());
  for (const int head : heads) {
    const bool own = table_.devices()[head] == device_.name();
    if (!own) ATOLL_RETURN_IF_ERROR(ReceiveTable(exchange, head, &other));
    const std::vector<double>& part = own ? *values : other;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  *values = std::move(sum);
  return absl::OkStatus();
}

absl::Status Executor::SendTable(const TableExchange& exchange, const std::vector<int>& to,
                                 const std::vector<double>& values) {
  const std::vector<std::string>& devices = table_.devices();
  const auto own = std::find(devices.begin(), devices.end(), device_.name()) - devices.begin();
  const VoteTag tag{input_->step.number, static_cast<int32_t>(own), exchange.commits};
  for (const int each : to) {
    ATOLL_RETURN_IF_ERROR(transport_.SendVotes(device_.name(), devices[each], tag, values));
  }
  return absl::OkStatus();
}

absl::Status Executor::ReceiveTable(const TableExchange& exchange, int from,
                                    std::vector<double>* values) {
  const std::string& sender = table_.devices()[from];
  if (options_.before_vote) ATOLL_RETURN_IF_ERROR(options_.before_vote(device_.name(), sender));
  auto votes = transport_.ReceiveVotes(
      device_.name(), {input_->step.number, from, exchange.commits}, exchange.deadline);
  ATOLL_RETURN_IF_ERROR(Annotate(votes.status(), absl::StrCat("from ", sender)));
  if (votes->size() != values->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(votes->size(), " commit votes from ", sender, ", not ", values->size()));
  }
  *values = *std::move(votes);
  return absl::OkStatus();
}

absl::Status Executor::CheckSteps(const std::vector<double>& values) const {
  for (size_t d = 1; d < table_.devices().size(); ++d) {
    if (values[table_.steps(d)] == values[table_.steps(0)]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(table_.devices()[d], " has taken ", values[table_.steps(d)],
                     " optimizer steps, but ", table_.devices()[0], " ", values[table_.steps(0)]));
  }
  return absl::OkStatus();
}

// Behind all reductions: loss, and norms of gradients, to the host.
absl::Status Executor::EnqueueCommit() {
  Backend& backend = device_.compute();
  const Tensor& totals = device_.run().totals;
  if (totals_.data() == nullptr) {
    ATOLL_ASSIGN_OR_RETURN(totals_, HostReals::Create(backend, totals.dtype, totals.size()));
  }
  sync_.AwaitSpread();
  if (input_->train) {
    ATOLL_RETURN_IF_ERROR(sync_.Wait());
    sync_.Join();
    if (computes()) device_.optimizer().EnqueueSumsOfSquares(device_.role().rank);
  }
  backend.CopyToHost(device_.stream(), totals_.data(), totals);
  const Tensor& routers = device_.run().router_totals;
  if (routers.present()) backend.CopyToHost(device_.stream(), router_totals_.data(), routers);
  return points_ ? clock_.Mark().status() : absl::OkStatus();
}

absl::Status Executor::Commit() {
  const bool train = input_->train;
  DeviceStep& step = result_->device;
  step.worked = step.summed = step.committed = SteadyNow();
  ATOLL_RETURN_IF_ERROR(EnqueueCommit());
  ATOLL_RETURN_IF_ERROR(device_.compute().Synchronize(device_.stream()));
  ATOLL_RETURN_IF_ERROR(sync_.EndSpread(/*waits=*/false));  // F has read what came, or did not
  ATOLL_RETURN_IF_ERROR(device_.communication().TakeFailure());
  step.summed = step.committed = SteadyNow();
  if (points_) clock_.NewestPassed();
  NoteSpread();
  Account();
  std::vector<double> sums;
  if (train && computes()) sums = device_.optimizer().sums_of_squares();
  std::vector<double> values(static_cast<size_t>(table_.slots()));
  FillTable(sums, &values);
  ATOLL_RETURN_IF_ERROR(interrupt_.status());
  if (train && device_.optimizer().has_norms()) {
    ATOLL_RETURN_IF_ERROR(AddNorms(&values));
    ATOLL_RETURN_IF_ERROR(interrupt_.status());
  }
  if (train) waiting_number_ = input_->step.number;
  ATOLL_RETURN_IF_ERROR(ExchangeTable(&values, /*commits=*/true));
  AgreeOnChunks(values);
  waiting_number_ = 0;
  step.committed = SteadyNow();
  for (int r = 0; r < table_.replicas(); ++r) {
    result_->loss.nats += values[table_.loss(r)];
    result_->loss.hits += values[table_.hits(r)];
  }
  if (train && job_.model.experts.count > 0) {
    result_->loss.AddRouters(std::span(values).subspan(table_.first_router()),
                             job_.model.mixtures(), job_.model.experts.count);
  }
  result_->loss.tokens = input_->counted_tokens;
  if (input_->references) {
    const auto first = values.begin() + table_.first_reference();
    result_->references.assign(first, first + input_->step.sequences);
  }
  if (!train) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(TakeStep(values));
  return Spread();
}

absl::Status Executor::TakeStep(const std::vector<double>& sums) {
  waiting_number_ = 0;
  ATOLL_RETURN_IF_ERROR(CheckSteps(sums));
  sums_ = sums;
  taken_number_ = input_->step.number;
  return Optimize();
}

// Every device decides by the same sums.
bool Executor::IsSkipped(double sum_of_squares) const {
  double nats = 0;
  for (int r = 0; r < table_.replicas(); ++r) nats += sums_[table_.loss(r)];
  const double norm = std::sqrt(sum_of_squares);
  return !std::isfinite(norm) || !std::isfinite(nats) ||
         (input_->step.norm_limit > 0 && norm > input_->step.norm_limit);
}

// From here on every device takes the step: those whose part of the exchange was interrupted do so
// when they get the sums.
absl::Status Executor::Optimize() {
  const Moment start = Now();
  const int64_t step = device_.planned()[0]->optimizer_step + 1;
  const double sum_of_squares = SumOfSquares(sums_);
  result_->gradient_norm = std::sqrt(sum_of_squares);
  result_->skipped = IsSkipped(sum_of_squares);
  const bool sharded = device_.role().ownership.sharded();
  if (computes() && !result_->skipped) {
    device_.optimizer().Apply(step, static_cast<float>(input_->step.learning_rate), sum_of_squares,
                              SelectPlannedNorms(), options_.keep_gradients,
                              input_->counted_tokens);
    // An update that could not be launched is no step.
    ATOLL_RETURN_IF_ERROR(device_.compute().TakeFailure());
    gradients_dirty_ = options_.keep_gradients || sharded;
  }
  for (HeldState* held : device_.planned()) {
    held->optimizer_step = step;
    held->whole = !sharded;
    held->before.clear();
  }
  const StageRole& first = device_.role().stages.front();
  Done(start, {.kind = PlanOpKind::kOptimizer, .stage = first.stage}, first.plan.first_layer, 0, 0);
  return absl::OkStatus();
}

// The step is taken. A device that loses its connection to an owner fetches what is missing when
// the island is set up again.
absl::Status Executor::Spread() {
  if (!device_.role().ownership.sharded()) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(sync_.Spread(waits_));
  spreads_ = true;
  return device_.runs_behind_host() ? absl::OkStatus() : FinishSpread();
}

absl::Status Executor::FinishSpread() {
  if (!spreads_) return absl::OkStatus();
  sync_.AwaitSpread();
  ATOLL_RETURN_IF_ERROR(sync_.EndSpread(/*waits=*/true));
  NoteSpread();
  return absl::OkStatus();
}

void Executor::NoteSpread() {
  if (!std::exchange(spreads_, false)) return;
  for (HeldState* held : device_.planned()) held->whole = true;
}

}  // namespace atl::worker
