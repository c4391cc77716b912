#include "coordinator/planner/candidates.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "common/status.h"
#include "coordinator/planner/cluster/objective.h"
#include "coordinator/planner/cluster/traffic.h"
#include "coordinator/planner/groups/estimate.h"
#include "coordinator/planner/groups/refine.h"
#include "coordinator/planner/groups/scopes.h"

namespace atl::plan {
namespace {

constexpr int kManyEntities = 256;
// A candidate is not cut and estimated if by the power of its groups alone it takes so many times
// as long as the worst of the best ones known.
constexpr size_t kComparedWith = 16;
constexpr double kHopeless = 1.25;
constexpr double kHopelessOfMany = 1.1;  // of more than kManyEntities
// A step may take so many times as long as its estimate.
constexpr double kEstimateErrs = 1.15;

// Numbers of replicas worth trying: all small ones, then ever coarser steps; or the job's.
std::vector<int> ReplicaCounts(int entities, int total, int fixed) {
  std::vector<int> counts;
  const int most = std::min(entities, total);
  if (fixed > 0) return fixed <= most ? std::vector{fixed} : counts;
  for (int d = 1; d <= most; d = d < 8 ? d + 1 : d + std::max(1, d / 4)) counts.push_back(d);
  for (const int d : {16, 32, 64, 128, 256, most}) {
    if (d <= most) counts.push_back(d);
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

// Equal shares of every pool; what does not divide stays idle.
std::optional<GroupChoice> EqualShares(const Scope& scope, int groups) {
  Composition share;
  for (const int count : scope.counts) share.push_back(count / groups);
  if (std::accumulate(share.begin(), share.end(), 0) == 0) return std::nullopt;
  return GroupChoice{std::vector<Composition>(groups, share), 0};
}

// The sites in a chain along fast links: of the chains from each site to the nearest one left, and
// their reverses, the fastest. Of a chain and its reverse, which are as fast, the one that begins
// at the leader's site: the leader begins every step, and pipelines that begin elsewhere get its
// message a latency later.
std::vector<std::string> OrderSites(const Cluster& cluster, const std::vector<EntityPool>& pools) {
  std::map<std::string, int> first;  // device
  for (const EntityPool& pool : pools) first.try_emplace(pool.site, pool.entities[0][0]);
  const auto seconds = [&](const std::string& from, const std::string& to) {
    return cluster.LinkBetween(first.at(from), first.at(to)).Seconds(8e6);
  };
  const std::string leaders_site = GetLeaderSite(cluster);
  std::vector<std::string> best;
  std::pair<float, bool> least(INFINITY, true);  // sums in another order differ in their last bits
  for (const auto& [start, device] : first) {
    std::vector<std::string> chain = {start}, left;
    for (const auto& [site, other] : first) {
      if (site != start) left.push_back(site);
    }
    double sum = 0;
    while (!left.empty()) {
      const std::string here = chain.back();
      const auto nearest = std::ranges::min_element(
          left, {}, [&](const std::string& site) { return seconds(here, site); });
      sum += seconds(here, *nearest) + seconds(*nearest, here);
      chain.push_back(*nearest);
      left.erase(nearest);
    }
    for (int turned = 0; turned < 2; ++turned) {
      const std::pair merit(static_cast<float>(sum), chain.front() != leaders_site);
      if (merit < least) std::tie(best, least) = std::pair(chain, merit);
      std::ranges::reverse(chain);
    }
  }
  return best;
}

// Hands entities out, which are in the order of their nodes, one to each group in turn, so that
// peers of one stage share a node where they can; within a group sites in the given order, weak
// devices first.
std::vector<Replica> MapToNodes(const std::vector<EntityPool>& pools,
                                const std::vector<Composition>& groups,
                                const std::vector<std::string>& sites, bool equal_first_and_last) {
  std::vector<size_t> order(pools.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::pair<int64_t, double>> ranks;
  for (const EntityPool& pool : pools) {
    const auto site = std::find(sites.begin(), sites.end(), pool.site);
    ranks.push_back({site - sites.begin(), pool.power});
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ranks[a] < ranks[b]; });
  std::vector<Replica> replicas(groups.size());
  for (const size_t t : order) {
    size_t next = 0;
    for (int round = 0; next < pools[t].entities.size(); ++round) {
      bool any = false;
      for (size_t g = 0; g < groups.size() && next < pools[t].entities.size(); ++g) {
        if (groups[g][t] <= round) continue;
        any = true;
        replicas[g].stages.push_back({pools[t].entities[next++], 0, 0});
      }
      if (!any) break;
    }
  }
  for (Replica& replica : replicas) {
    if (equal_first_and_last && replica.stages.size() > 1)
      EqualizeFirstAndLastStage(replica.stages);
  }
  return replicas;
}

double BottleneckSeconds(const Cluster& cluster, const Costs& costs, const Layout& layout,
                         const Replica& replica) {
  double slowest = 0;
  for (const Stage& stage : replica.stages) {
    slowest =
        std::max(slowest, GroupCosts(cluster, costs, layout.micro_batch, stage.devices, {})
                              .TotalSeconds(stage.first_layer, stage.last_layer, stage.saving));
  }
  return slowest;
}

// Micro-batches in proportion to 1 / seconds, each at least one, by largest remainder.
std::vector<int> Shares(int total, const std::vector<double>& seconds) {
  double sum = 0;
  for (const double s : seconds) sum += 1 / s;
  std::vector<int> shares;
  std::vector<std::pair<double, size_t>> remainders;
  int left = total;
  for (size_t r = 0; r < seconds.size(); ++r) {
    const double exact = total / seconds[r] / sum;
    shares.push_back(std::max(1, static_cast<int>(exact)));
    left -= shares.back();
    remainders.push_back({shares.back() - exact, r});
  }
  std::sort(remainders.begin(), remainders.end());
  for (size_t i = 0; left > 0; --left, ++i) ++shares[remainders[i % remainders.size()].second];
  // Shares that were rounded up to one may have taken too many: the largest give them back.
  for (; left < 0; ++left) --*std::max_element(shares.begin(), shares.end());
  return shares;
}

// CutReplica, called once for replicas that are alike: other orders of sites, scopes and numbers of
// replicas have the same ones.
class Cutter {
 public:
  struct Cut {
    absl::Status fits;
    std::vector<Stage> stages;    // without devices
    std::vector<size_t> indices;  // which ones they are of those that were to be cut
  };

  explicit Cutter(const Cluster& cluster) : cluster_(cluster) {}

  // `types`: of its stages, with their sizes.
  const Cut& GetCut(const Costs& costs, const std::vector<int>& types, int micro_batch,
                    int micro_batches, bool every_stage, const Replica& replica) {
    std::vector<int> key = types;
    const int in_flight = std::min(micro_batches, static_cast<int>(replica.stages.size()));
    key.insert(key.end(), {in_flight, every_stage ? 1 : 0});
    const auto [known, added] = known_.try_emplace(std::move(key));
    Cut& cut = known->second;
    if (!added) return cut;
    Replica first = replica;
    first.micro_batches = micro_batches;
    cut.fits = CutReplica(cluster_, costs, micro_batch, first, {.every_stage = every_stage});
    for (size_t s = 0, kept = 0; cut.fits.ok() && kept < first.stages.size(); ++s) {
      if (replica.stages[s].devices != first.stages[kept].devices) continue;  // it idles
      Stage& stage = cut.stages.emplace_back(std::move(first.stages[kept++]));
      stage.devices.clear();
      cut.indices.push_back(s);
    }
    return cut;
  }
  void Forget() { known_.clear(); }

 private:
  const Cluster& cluster_;
  std::map<std::vector<int>, Cut> known_;
};

void Apply(const Cutter::Cut& cut, Replica& replica) {
  std::vector<Stage> stages = cut.stages;
  for (size_t s = 0; s < stages.size(); ++s) {
    stages[s].devices = std::move(replica.stages[cut.indices[s]].devices);
  }
  replica.stages = std::move(stages);
}

// Cuts all replicas, first with equal then with proportional micro-batches.
absl::Status CutAll(const Cluster& cluster, const Costs& costs, int total, bool every_stage,
                    Cutter& cutter, Layout& layout) {
  const int count = static_cast<int>(layout.replicas.size());
  std::vector<int> shares(count, total / count);
  for (int r = 0; r < total % count; ++r) ++shares[r];
  std::vector<std::vector<int>> types(count);
  for (int r = 0; r < count; ++r) {
    for (const Stage& stage : layout.replicas[r].stages) {
      types[r].push_back(cluster.devices[stage.devices[0]].type);
      types[r].push_back(static_cast<int>(stage.devices.size()));
    }
  }
  std::vector<const Cutter::Cut*> cuts(count);
  for (int round = 0; round < 2; ++round) {
    std::vector<double> seconds;
    std::map<std::vector<int>, double> known_seconds;
    for (int r = 0; r < count; ++r) {
      const Replica& replica = layout.replicas[r];
      cuts[r] =
          &cutter.GetCut(costs, types[r], layout.micro_batch, shares[r], every_stage, replica);
      ATOLL_RETURN_IF_ERROR(cuts[r]->fits);
      auto [time, added] = known_seconds.try_emplace(types[r], 0);
      if (added) {
        Replica cut = replica;
        Apply(*cuts[r], cut);
        time->second = BottleneckSeconds(cluster, costs, layout, cut);
      }
      seconds.push_back(time->second);
    }
    std::vector<int> better = Shares(total, seconds);
    if (better == shares) break;
    shares = std::move(better);
  }
  for (int r = 0; r < count; ++r) {
    Apply(*cuts[r], layout.replicas[r]);
    layout.replicas[r].micro_batches = shares[r];
  }
  return absl::OkStatus();
}

}  // namespace

bool KeepsStages(const Candidate& candidate, const Layout& layout) {
  const auto stages = static_cast<size_t>(candidate.stages);
  return stages == 0 || std::all_of(layout.replicas.begin(), layout.replicas.end(),
                                    [&](const Replica& r) { return r.stages.size() == stages; });
}

void ShareMicroBatches(const Cluster& cluster, const Costs& costs, int total, Layout& layout) {
  std::vector<double> seconds;
  for (const Replica& replica : layout.replicas) {
    seconds.push_back(BottleneckSeconds(cluster, costs, layout, replica));
  }
  const std::vector<int> shares = Shares(total, seconds);
  for (size_t r = 0; r < shares.size(); ++r) layout.replicas[r].micro_batches = shares[r];
}

namespace {

// Enumerates for one tensor-parallel size and micro-batch after the other.
class Enumerator {
 public:
  Enumerator(const Cluster& cluster, const Costs& costs, const Job& job,
             const std::function<bool()>& stop)
      : cluster_(cluster),
        costs_(costs),
        job_(job),
        stop_(stop),
        ranking_(cluster, costs, job),
        cutter_(cluster),
        estimator_(cluster, costs) {
    if (job.fixed.stages > 0) {
      stage_counts_ = {job.fixed.stages};
    } else if (std::ssize(cluster.devices) <= kFewDevices) {
      stage_counts_ = {1, 2, 3, 4, 6, 8};
    }
  }

  void Run() {
    std::vector<EntitySizes> all;
    for (const int tp : TensorParallelSizes(job_)) all.push_back(EvenSizes(cluster_, tp));
    // Sets of unlike size come last: they are known to be hopeless by then, if they are.
    even_ = all.size();
    for (EntitySizes& sizes : UnlikeSizes(cluster_, job_)) all.push_back(std::move(sizes));
    for (size_t i = 0; i < all.size(); ++i) {
      for (const int micro_batch : MicroBatchSizes(job_)) {
        if (micro_batch <= job_.global_batch) OfSize(all[i], i < even_, micro_batch);
      }
    }
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
  }

  std::vector<Candidate> candidates_;
  absl::Status why_not_ = absl::OkStatus();
  absl::Status over_limit_ = absl::OkStatus();

 private:
  bool Stopped() const { return !candidates_.empty() && stop_ && stop_(); }

  void OfSize(const EntitySizes& sizes, bool even, int micro_batch) {
    sizes_ = sizes;
    micro_batch_ = micro_batch;
    cutter_.Forget();
    pools_ = BuildEntityPools(cluster_, costs_, sizes, micro_batch);
    if (pools_.empty()) return;
    tp_ = 1;
    for (const EntityPool& pool : pools_) tp_ = std::max(tp_, pool.size);
    total_ = (job_.global_batch + micro_batch - 1) / micro_batch;
    order_ = OrderSites(cluster_, pools_);
    const Composition all = CountEntities(pools_);
    entities_ = std::accumulate(all.begin(), all.end(), 0);
    std::vector<Scope> scopes = ListCandidateScopes(cluster_, pools_);
    if (ranking_.by_price()) AddCheapScopes(pools_, scopes);
    for (const int d : ReplicaCounts(entities_, total_, job_.fixed.replicas)) {
      seen_.clear();
      of_replicas_ = &costs_.ForReplicas(static_cast<size_t>(d));
      if (of_replicas_ != &costs_) cutter_.Forget();
      for (const Scope& scope : scopes) {
        if (Stopped()) return;
        even ? OfScope(scope, d) : OfUnlikeSizes(scope, d);
      }
    }
  }

  // Replicas hold each layer by entities of one size, so they are alike.
  void OfUnlikeSizes(const Scope& scope, int d) {
    if (Hopeless(ranking_.Rank(ComputePricePerHour(scope.counts), EvenSeconds(scope, d)))) return;
    scope_ = scope.name;
    Offer("equal shares", scope, EqualShares(scope, d));
  }

  void OfScope(const Scope& scope, int d) {
    if (Hopeless(ranking_.Rank(ComputePricePerHour(scope.counts), EvenSeconds(scope, d)))) return;
    scope_ = scope.name;
    const double k = static_cast<double>(total_) / d;
    double bytes = 0;
    for (const Layer& layer : costs_.model().layers) {
      bytes += LayerStateBytes(layer, of_replicas_->options());
    }
    const auto state_bytes = static_cast<int64_t>(bytes);
    Offer("by type counts", scope,
          GroupByCounts(MakeEntityClasses(pools_, scope), d, k, state_bytes));
    if (scope.name.empty()) Offer("equal shares", scope, EqualShares(scope, d));
  }

  // The groups as they are, and with each number of stages that is tried.
  void Offer(const std::string& how, const Scope& scope, std::optional<GroupChoice> choice) {
    if (!choice.has_value()) return;
    Add(absl::StrCat(how, scope.name), choice->groups, 0);
    for (const int stages : stage_counts_) {
      std::vector<Composition> groups = choice->groups;
      if (!FitToStages(pools_, stages, groups)) continue;
      Add(absl::StrCat(how, scope.name, ", ", stages, " of each"), groups, stages);
    }
  }

  // About what the groups take if nothing is sent: cheaper by far than cutting them.
  double EstimateStepSeconds(const std::vector<Composition>& groups) const {
    const std::vector<EntityClass> classes =
        MakeEntityClasses(pools_, Scope{"", CountEntities(pools_)});
    const double k = static_cast<double>(total_) / static_cast<double>(groups.size());
    double power = 0;
    for (const Composition& group : groups) power += EffectivePower(classes, group, k);
    return power > 0 ? job_.global_batch / power : INFINITY;
  }

  // The same of d even groups of all entities of a scope.
  double EvenSeconds(const Scope& scope, int d) const {
    double power = 0;
    for (size_t t = 0; t < pools_.size(); ++t) power += pools_[t].power * scope.counts[t];
    const double members =
        std::accumulate(scope.counts.begin(), scope.counts.end(), 0) / static_cast<double>(d);
    const double k = static_cast<double>(total_) / d;
    return job_.global_batch * (1 + std::max(0.0, members - 1) / k) / power;
  }

  double ComputePricePerHour(const Composition& counts) const {
    double price = 0;
    for (size_t t = 0; t < pools_.size(); ++t) price += pools_[t].price_per_hour * counts[t];
    return price;
  }
  double ComputeRank(const std::vector<Composition>& groups) const {
    double price = 0;
    for (const Composition& group : groups) price += ComputePricePerHour(group);
    return ranking_.Rank(price, EstimateStepSeconds(groups));
  }

  // Returns whether so much better candidates are known already that this one will not be
  // simulated.
  bool Hopeless(double rank) const {
    return best_.size() == kComparedWith &&
           rank > (entities_ > kManyEntities ? kHopelessOfMany : kHopeless) * *best_.rbegin();
  }

  // Nothing where it does not fit, which it notes.
  std::optional<Candidate> Build(const std::string& how, const std::vector<Composition>& groups,
                                 int stages) {
    Candidate candidate{.layout = {tp_, micro_batch_, "best",
                                   MapToNodes(pools_, groups, order_, costs_.model().tied_head)},
                        .how = how,
                        .scope = scope_,
                        .stages = stages,
                        .sizes = sizes_};
    absl::Status fits =
        CutAll(cluster_, *of_replicas_, total_, stages > 0, cutter_, candidate.layout);
    if (fits.ok() && !UsesLeader(cluster_, candidate.layout)) {
      fits = BringInLeader(cluster_, *of_replicas_, pools_, candidate);
      candidate.how += ", with the leader";
    } else if (fits.ok()) {
      candidate.estimate_s = estimator_.Seconds(candidate.layout);
    }
    if (fits.ok()) return candidate;
    why_not_ = fits;
    return std::nullopt;
  }

  void Add(const std::string& how, const std::vector<Composition>& groups, int stages) {
    if (!seen_.insert({groups, stages > 0}).second || Hopeless(ComputeRank(groups))) return;
    std::optional<Candidate> candidate = Build(how, groups, stages);
    if (!candidate || !DegreesAgree(costs_.model(), candidate->layout)) return;
    const absl::Status kept =
        CheckTraffic(cluster_, costs_, candidate->layout, kEstimateErrs * candidate->estimate_s);
    if (!kept.ok()) {
      over_limit_ = kept;
      return;
    }
    candidate->rank = ranking_.Rank(candidate->layout, candidate->estimate_s);
    if ((stages > 0) == (job_.fixed.stages > 0)) {
      best_.insert(candidate->rank);
      if (best_.size() > kComparedWith) best_.erase(std::prev(best_.end()));
    }
    candidates_.push_back(*std::move(candidate));
  }

  const Cluster& cluster_;
  const Costs& costs_;
  const Job& job_;
  const std::function<bool()>& stop_;
  std::vector<int> stage_counts_;  // that all replicas of a candidate are given
  EntitySizes sizes_;
  size_t even_ = 0;
  int tp_ = 1, micro_batch_ = 1, total_ = 1, entities_ = 0;
  const Costs* of_replicas_ = nullptr;  // of the number of replicas in question
  const Ranking ranking_;
  std::multiset<double> best_;  // the best ranks so far
  std::string scope_;
  Cutter
      cutter_;  // of one micro-batch size, and of one number of replicas where costs depend on it
  Estimator estimator_;
  std::vector<EntityPool> pools_;
  std::vector<std::string> order_;                            // of sites
  std::set<std::pair<std::vector<Composition>, bool>> seen_;  // of one number of replicas
};

}  // namespace

std::vector<Candidate> Enumerate(const Cluster& cluster, const Costs& costs, const Job& job,
                                 const std::function<bool()>& stop, absl::Status* why_not,
                                 absl::Status* over_limit) {
  Enumerator enumerator(cluster, costs, job, stop);
  enumerator.Run();
  if (!enumerator.why_not_.ok()) *why_not = enumerator.why_not_;
  *over_limit = enumerator.over_limit_;
  return std::move(enumerator.candidates_);
}

}  // namespace atl::plan
