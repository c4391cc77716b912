#include "coordinator/trace_request_table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"

namespace atl {
namespace {

absl::Status NotRunning(const JobSummary& job) {
  std::string remedy;
  if (job.state == JobState::kPaused) {
    remedy = absl::StrCat("; atoll resume ", job.job);
  } else if (job.state < JobState::kRunning) {
    remedy = "; retry when it runs";
  }
  return absl::FailedPreconditionError(absl::StrCat(job.job, " is ", Name(job.state),
                                                    job.reason.empty() ? "" : ": ", job.reason,
                                                    ": no step is coming", remedy));
}

absl::Status NoSuchIsland(const JobView& job, IslandId island) {
  std::string have;
  for (const IslandView& view : job.islands) {
    absl::StrAppend(&have, have.empty() ? "" : ", ", view.island);
  }
  return absl::NotFoundError(absl::StrCat(job.summary.job, " has no island ", island, "; it has ",
                                          have.empty() ? "none yet" : have));
}

const IslandView* Find(const JobView& job, std::optional<IslandId> island) {
  const auto found =
      std::find_if(job.islands.begin(), job.islands.end(), [&](const IslandView& view) {
        return island ? view.island == *island : view.incarnation != 0;
      });
  return found == job.islands.end() ? nullptr : &*found;
}

// Returns whether its leader has its order to lead.
bool Leads(const IslandView& island) {
  return island.attached && island.incarnation != 0 && island.progress &&
         island.progress->generation == island.generation;
}

std::string DescribeActivity(const IslandView& island) {
  // With a plan in force the island trains, whatever becomes of another one.
  if (!island.plan && !island.planning.empty()) return island.planning;
  return island.activity.empty() ? island.reason : island.activity;
}

}  // namespace

void TraceRequestTable::Query(Instant now, const JobId& job, std::optional<IslandId> island,
                              Duration limit, OnDone on_done) {
  if (requests_.size() >= kTraceRequestsMax) {
    return on_done(absl::ResourceExhaustedError("too many requests for traces"));
  }
  Request request;
  request.job = job;
  request.wanted = island;
  request.ends = now + limit;
  request.limit = limit;
  request.on_done = std::move(on_done);
  requests_.push_back(std::move(request));
  changed_ = true;
}

void TraceRequestTable::OnMessage(const FromWorker& from) {
  const auto* traced = std::get_if<StepTraced>(&from.message);
  if (traced == nullptr) return;
  for (Request& request : requests_) {
    if (request.number != 0 && request.number == traced->request && request.job == traced->job &&
        request.leader == from.worker && request.incarnation == from.incarnation) {
      request.answer = *traced;
      changed_ = true;
    }
  }
}

void TraceRequestTable::Send(Request& request, const IslandView& island, Work& work) {
  for (const Request& other : requests_) {
    if (other.number == 0 || other.answer || other.job != request.job ||
        other.island != island.island || other.incarnation != island.incarnation ||
        other.leader != island.worker || other.generation != island.generation) {
      continue;
    }
    request.number = other.number;
  }
  request.island = island.island;
  request.leader = island.worker;
  request.incarnation = island.incarnation;
  request.generation = island.generation;
  if (request.number != 0) return;
  request.number = ++last_request_;
  work.send.push_back({island.worker,
                       island.incarnation,
                       {request.job, island.island, island.generation, request.number}});
}

std::optional<absl::StatusOr<TracedStep>> TraceRequestTable::Look(Instant now,
                                                                  const std::optional<JobView>& job,
                                                                  Request& request, Work& work) {
  if (!job)
    return absl::NotFoundError(absl::StrCat("there is no job ", request.job, ": see atoll ls"));
  if (request.answer) {
    if (!request.answer->trouble.empty()) return absl::AbortedError(request.answer->trouble);
    return TracedStep{request.island, request.leader, request.generation,
                      std::move(request.answer->trace), *job};
  }
  if (job->summary.state != JobState::kRunning) return NotRunning(job->summary);
  const std::optional<IslandId> wanted =
      request.number != 0 ? std::optional(request.island) : request.wanted;
  const IslandView* island = Find(*job, wanted);
  if (island == nullptr && wanted) return NoSuchIsland(*job, *wanted);
  if (request.number != 0) {
    if (island->worker != request.leader || island->incarnation != request.incarnation ||
        island->generation != request.generation || !island->attached) {
      return absl::AbortedError(absl::StrCat("worker ", request.leader, ", which led island ",
                                             request.island, ", is unavailable: ", island->reason,
                                             "; retry when the island trains (atoll status)"));
    }
  } else if (island != nullptr && Leads(*island)) {
    Send(request, *island, work);
  }
  if (now < request.ends) return std::nullopt;
  const std::string which =
      island == nullptr ? "no island" : absl::StrCat("island ", island->island);
  return absl::FailedPreconditionError(absl::StrCat(
      which, " of ", request.job, island == nullptr ? " has a worker" : " has not made a step",
      " within ", Seconds(request.limit), " s",
      island == nullptr ? "" : absl::StrCat(": it is ", DescribeActivity(*island))));
}

TraceRequestTable::Work TraceRequestTable::Advance(Instant now, const Jobs& jobs) {
  Work work;
  if (!changed_ && now < look_at_) {
    work.deadline = look_at_;
    return work;
  }
  changed_ = false;
  std::map<JobId, std::optional<JobView>> views;
  std::vector<std::pair<OnDone, absl::StatusOr<TracedStep>>> done;
  for (size_t i = 0; i < requests_.size();) {
    const auto [view, is_new] = views.try_emplace(requests_[i].job);
    if (is_new) view->second = jobs(requests_[i].job);
    auto result = Look(now, view->second, requests_[i], work);
    if (result) {
      done.emplace_back(std::move(requests_[i].on_done), *std::move(result));
      requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  look_at_ = requests_.empty() ? kNever : now + kTraceLook;
  work.deadline = look_at_;
  for (auto& [on_done, result] : done) on_done(std::move(result));
  return work;
}

void TraceRequestTable::Close(const std::string& reason) {
  for (Request& request : std::exchange(requests_, {})) {
    request.on_done(absl::UnavailableError(reason));
  }
}

}  // namespace atl
