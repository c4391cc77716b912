#include "coordinator/core/testing/describe.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace atl::testing {
namespace {

std::string List(const std::vector<ContributionId>& ids) {
  return absl::StrJoin(ids, ", ", [](std::string* out, const ContributionId& id) {
    absl::StrAppend(out, Describe(id));
  });
}

struct Describer {
  std::string operator()(const Welcome& m) const {
    std::string text = "Welcome";
    if (m.heartbeat_interval != kHeartbeatInterval) {
      absl::StrAppend(&text, ", a heartbeat every ", Seconds(m.heartbeat_interval), " s");
    }
    for (const RelayPlace& place : m.relays)
      absl::StrAppend(&text, place.own ? ", connects to " : ", relay ", place.address);
    return text;
  }
  std::string operator()(const Refused& m) const {
    return absl::StrCat("Refused", m.final ? " for good" : "", ": ", m.reason);
  }
  std::string operator()(const PrepareJob& m) const { return absl::StrCat("PrepareJob ", m.job); }
  std::string operator()(const IslandOrder& m) const {
    std::string text =
        absl::StrCat("IslandOrder ", m.job, " island ", m.island, " generation ", m.generation,
                     m.run == RunState::kRun     ? ": run"
                     : m.run == RunState::kPause ? ": pause"
                                                 : ": stop");
    if (!m.reason.empty()) absl::StrAppend(&text, " (", m.reason, ")");
    if (m.run == RunState::kStop) return text;
    absl::StrAppend(&text, ", version ", m.committed_version, ", ", m.steps_this_round, " steps, ",
                    m.tokens_committed, " tokens, ", m.active_islands, " islands");
    if (m.plan.number != 0) absl::StrAppend(&text, ", ", Describe(m.plan));
    if (m.at_step_end) text += ", after the step under way";
    if (!m.takes_over_from.empty()) absl::StrAppend(&text, ", takes over from ", m.takes_over_from);
    if (m.initialize) text += ", initialize";
    if (m.resume) absl::StrAppend(&text, ", resume the state of step ", m.resume->inner_step);
    if (m.validate_version != kNoVersion) {
      absl::StrAppend(&text, ", validate ", m.validate_version);
      for (const int32_t task : m.evaluations) absl::StrAppend(&text, ", task ", task);
    }
    if (m.outcome) {
      absl::StrAppend(&text, ", base ", m.outcome->contribution.base_version,
                      m.outcome->accepted ? " accepted" : " rejected", " in version ",
                      m.outcome->version, m.outcome->warm_up_again ? ", warm up again" : "");
    }
    return text;
  }
  std::string operator()(const MemberOrder& m) const {
    std::string text =
        absl::StrCat("MemberOrder ", m.job, " island ", m.island, " generation ", m.generation);
    if (m.run == RunState::kStop) return absl::StrCat(text, ": stop (", m.reason, ")");
    return absl::StrCat(text, ": ", Describe(m.plan),
                        m.at_step_end ? ", after the step under way" : "");
  }
  std::string operator()(const ForgetJob& m) const { return absl::StrCat("ForgetJob ", m.job); }
  std::string operator()(const FillShards& m) const {
    return absl::StrCat("FillShards ", m.job, " version ", m.version, ": ", m.shards.size());
  }
  std::string operator()(const ReceiveShards& m) const {
    return absl::StrCat(
        "ReceiveShards ", m.job, " version ", m.version, ": ", m.sources.size(),
        m.fill_age == 0 ? "" : absl::StrCat(", of version ", m.version - m.fill_age));
  }
  std::string operator()(const ShardsReceived& m) const {
    return absl::StrCat("ShardsReceived ", m.job, " version ", m.version, ": ", m.shards.size());
  }
  std::string operator()(const FetchBase& m) const {
    return absl::StrCat("FetchBase ", m.job, ": version ", m.version, " of ", m.from_job, ", ",
                        m.sources.size(), " shards");
  }
  std::string operator()(const PushContribution& m) const {
    return absl::StrCat("PushContribution ", m.job, " of version ", m.version, " as ",
                        Describe(m.contribution), " of ", m.to_job, ": ", m.order.size(),
                        " pushes");
  }
  std::string operator()(const DescribeJob& m) const { return absl::StrCat("DescribeJob ", m.job); }
  std::string operator()(const LeaseGrant& m) const {
    return absl::StrCat("LeaseGrant ", m.request, ": ", Describe(m.ranges),
                        m.exhausted ? ", exhausted" : "");
  }
  std::string operator()(const MeasureLinks& m) const {
    return absl::StrCat("MeasureLinks ", m.request, ": ", m.members.size(), " workers, ",
                        m.measurer, " measures");
  }
  std::string operator()(const TraceNextStep& m) const {
    return absl::StrCat("TraceNextStep ", m.request, ": island ", m.island);
  }
  std::string operator()(const PushGrant& m) const {
    return absl::StrCat("PushGrant ", Describe(m.contribution), ": shards ",
                        absl::StrJoin(m.order, " ", [](std::string* out, const GrantedPush& push) {
                          absl::StrAppend(out, push.shard);
                          if (push.elements > 0) {
                            absl::StrAppend(out, "[", push.begin, "-", push.begin + push.elements,
                                            "]");
                          }
                          if (!push.sender.empty()) absl::StrAppend(out, ":", push.sender);
                        }));
  }
  std::string operator()(const AssignShards& m) const {
    return absl::StrCat("AssignShards ",
                        absl::StrJoin(m.shards, " ", [](std::string* out, const OwnedShard& shard) {
                          absl::StrAppend(out, shard.shard, "[", shard.elements, "]");
                        }));
  }
  std::string operator()(const FenceIslands& m) const {
    return absl::StrCat(
        "FenceIslands ",
        absl::StrJoin(m.islands, ", ", [](std::string* out, const IslandFence& fence) {
          absl::StrAppend(out, fence.island, ": generation ", fence.generation, " incarnation ",
                          fence.incarnation);
        }));
  }
  std::string operator()(const CollectStatistics& m) const {
    return absl::StrCat("CollectStatistics of version ", m.version, ": ", List(m.contributions));
  }
  std::string operator()(const CommitRound& m) const {
    std::string text = absl::StrCat("CommitRound ", m.version, ": ");
    absl::StrAppend(&text, absl::StrJoin(m.terms, ", ", [](std::string* out, const RoundTerm& t) {
      absl::StrAppendFormat(out, "%.4f x %s", t.weight, Describe(t.contribution));
      if (t.expert_tokens.empty()) return;
      absl::StrAppend(out, ", experts ", absl::StrJoin(t.expert_tokens, " "), " of ", t.tokens);
    }));
    if (!m.dropped.empty()) absl::StrAppend(&text, "; drop ", List(m.dropped));
    if (m.step.adopts != kNoVersion) absl::StrAppend(&text, "adopts ", m.step.adopts);
    if (m.step.contributes) absl::StrAppend(&text, "; contributes");
    if (m.step.average_keep != 1) {
      absl::StrAppendFormat(&text, "; keeps %.4f of the average", m.step.average_keep);
    }
    return text;
  }
  std::string operator()(const DropContributions& m) const {
    return absl::StrCat("DropContributions ", List(m.contributions), ": ", m.reason);
  }
  std::string operator()(const RemoveJob& m) const { return absl::StrCat("RemoveJob ", m.job); }
  std::string operator()(const EndJob& m) const { return absl::StrCat("EndJob ", m.job); }
};

}  // namespace

std::string Describe(const ToWorkerMessage& message) { return std::visit(Describer(), message); }
std::string Describe(const ToServerMessage& message) { return std::visit(Describer(), message); }

std::string Describe(const ContributionId& id) {
  return absl::StrCat("island ", id.island, " (generation ", id.generation, ", incarnation ",
                      id.incarnation, ", base ", id.base_version, ")");
}

std::string Describe(const IslandPlan& plan) {
  return absl::StrCat("plan ", plan.number, " of ",
                      absl::StrJoin(plan.members, " ", [](std::string* out, const IslandMember& m) {
                        absl::StrAppend(out, m.worker);
                      }));
}

std::string Describe(const std::vector<PositionRange>& ranges) {
  if (ranges.empty()) return "nothing";
  return absl::StrJoin(ranges, ",", [](std::string* out, const PositionRange& range) {
    absl::StrAppend(out, range.begin, "-", range.end);
  });
}

}  // namespace atl::testing
