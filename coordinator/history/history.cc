#include "coordinator/history/history.h"

#include <algorithm>
#include <cmath>

#include "proto/coordinator.pb.h"

namespace atl {
namespace {

// Half of a job's bytes at most are its islands' points in memory; encoded they are as large.
constexpr int64_t kIslandBytes = kHistoryBytesMax / 2;
constexpr size_t kMaxGranted = 65536;
constexpr size_t kMaxIslands = 4096;
constexpr double kMeanRounds = 64;  // newest ones

double Seconds(int64_t unix_ms) { return static_cast<double>(unix_ms) / 1e3; }

bool Ended(JobState state) {
  return state == JobState::kDone || state == JobState::kFailed || state == JobState::kCancelled;
}

void EncodeCurve(const std::vector<CurvePoint>& points, v1::Curve* curve) {
  for (const CurvePoint& p : points) {
    curve->add_unix_s(p.unix_s);
    curve->add_version(p.version);
    curve->add_tokens(p.tokens);
    curve->add_loss(p.loss);
    curve->add_loss_min(p.loss_min);
    curve->add_loss_max(p.loss_max);
    curve->add_seconds(p.seconds);
    curve->add_rounds(p.rounds);
    curve->add_contributions(p.contributions);
    curve->add_rejected(p.rejected);
    curve->add_staleness(p.staleness);
    curve->add_steps(p.steps);
  }
}

std::vector<CurvePoint> DecodeCurve(const v1::Curve& curve) {
  const int size = curve.unix_s_size();
  for (const auto* column :
       {&curve.version(), &curve.tokens(), &curve.loss(), &curve.loss_min(), &curve.loss_max(),
        &curve.seconds(), &curve.rounds(), &curve.contributions(), &curve.rejected(),
        &curve.staleness(), &curve.steps()}) {
    if (column->size() != size) return {};
  }
  std::vector<CurvePoint> points(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) {
    points[static_cast<size_t>(i)] = {curve.unix_s(i),        curve.version(i),
                                      curve.tokens(i),        curve.loss(i),
                                      curve.loss_min(i),      curve.loss_max(i),
                                      curve.seconds(i),       std::max(1.0, curve.rounds(i)),
                                      curve.contributions(i), curve.rejected(i),
                                      curve.staleness(i),     curve.steps(i)};
  }
  return points;
}

// One island's part of a decision.
CurvePoint MakeCurvePoint(int64_t unix_ms, double seconds, const DecisionRecord& decision,
                          const DecisionParticipant& p) {
  CurvePoint point;
  point.unix_s = Seconds(unix_ms);
  point.version = static_cast<double>(std::max(decision.version, decision.previous));
  point.tokens = static_cast<double>(p.tokens);
  point.loss = point.loss_min = point.loss_max = std::isfinite(p.train_loss) ? p.train_loss : 0;
  point.seconds = seconds;
  point.contributions = 1;
  point.rejected = p.accepted ? 0 : 1;
  point.staleness =
      static_cast<double>(std::max<int64_t>(0, decision.previous - p.contribution.base_version));
  point.steps = static_cast<double>(p.inner_steps);
  return point;
}

}  // namespace

size_t IslandCurvePoints(int64_t islands) {
  const int64_t fit =
      kIslandBytes / static_cast<int64_t>(sizeof(CurvePoint)) / std::max<int64_t>(1, islands);
  return static_cast<size_t>(std::clamp<int64_t>(fit, 16, kRoundCurvePoints));
}

void JobHistory::OnIslands(int64_t islands) { island_points_ = IslandCurvePoints(islands); }

Curve& JobHistory::IslandCurve(IslandId island) {
  return islands_.try_emplace(island, island_points_).first->second;
}

void JobHistory::OnContribution(int64_t unix_ms, const ContributionRecord& record) {
  if (record.dropped || granted_ms_.size() >= kMaxGranted) return;
  granted_ms_.try_emplace(record.contribution, unix_ms);
}

void JobHistory::OnDecision(int64_t unix_ms, const DecisionRecord& record) {
  if (record.round <= last_round_) return;  // stored again
  last_round_ = record.round;
  if (record.version == 0) return;  // the initial weights: nothing was trained yet
  // A round that was under way when the job was paused still ends.
  const int64_t end_ms = paused_unix_ms_ != 0 ? paused_unix_ms_ : unix_ms;
  const double seconds =
      round_begin_ms_ != 0 ? Seconds(std::max<int64_t>(0, end_ms - round_begin_ms_)) : 0;
  round_begin_ms_ = unix_ms;
  Round round{record.round, record.version, unix_ms, 0, record.closed_because, {}};
  CurvePoint all;
  bool first = true;
  for (const DecisionParticipant& p : record.participants) {
    const CurvePoint point = MakeCurvePoint(unix_ms, seconds, record, p);
    if (islands_.size() < kMaxIslands) IslandCurve(p.contribution.island).Add(point);
    CurvePoint counted = point;
    if (!p.accepted) counted.tokens = counted.loss = 0;
    all = first ? counted : Merge(all, counted);
    first = false;
    Push push{p.contribution.island, 0, p.accepted, static_cast<int64_t>(point.staleness)};
    if (auto it = granted_ms_.find(p.contribution); it != granted_ms_.end()) {
      push.granted_ms = it->second;
      granted_ms_.erase(it);
    }
    round.pushes.push_back(push);
  }
  for (const ContributionId& dropped : record.dropped) granted_ms_.erase(dropped);
  if (!first) {
    all.rounds = 1;
    all.seconds = seconds;
    rounds_.Add(all);
    if (all.loss != 0) newest_loss_ = all.loss;
  }
  newest_.push_back(std::move(round));
  if (newest_.size() > kNewestRounds) newest_.pop_front();
}

namespace {

std::vector<ValidationLoss> ListCurrentValidationSets(const ProgressRecord& record) {
  std::vector<ValidationLoss> sets;
  for (const ValidationLoss& set : record.validation_sets) {
    if (set.version == record.validated_version) sets.push_back(set);
  }
  return sets;
}

}  // namespace

void JobHistory::NoteState(int64_t unix_ms, JobState state) {
  if (started_ms_ == 0) return;
  if (state == JobState::kPaused || Ended(state)) {
    if (paused_unix_ms_ == 0) paused_unix_ms_ = unix_ms;
  } else if (paused_unix_ms_ != 0) {
    paused_ms_ += std::max<int64_t>(0, unix_ms - paused_unix_ms_);
    round_begin_ms_ += std::max<int64_t>(0, unix_ms - std::max(paused_unix_ms_, round_begin_ms_));
    paused_unix_ms_ = 0;
  }
}

int64_t JobHistory::PausedMs(int64_t unix_ms) const {
  const int64_t end_ms = ended_ms_ != 0 ? ended_ms_ : unix_ms;
  return paused_ms_ + (paused_unix_ms_ != 0 ? std::max<int64_t>(0, end_ms - paused_unix_ms_) : 0);
}

JobHistory::Pushed JobHistory::PushedBy(IslandId island) const {
  Pushed pushed;
  const auto found = islands_.find(island);
  if (found == islands_.end()) return pushed;
  double steps = 0;
  for (const CurvePoint& point : found->second.points()) {
    steps += point.steps;
    if (point.loss != 0) pushed.loss = point.loss;
  }
  pushed.steps = std::llround(steps);
  return pushed;
}

double JobHistory::MeanRoundSeconds() const {
  double seconds = 0, rounds = 0;
  const std::vector<CurvePoint>& points = rounds_.points();
  for (auto point = points.rbegin(); point != points.rend() && rounds < kMeanRounds; ++point) {
    seconds += point->seconds;
    rounds += point->rounds;
  }
  return rounds > 0 ? seconds / rounds : 0;
}

double JobHistory::RoundAgeSeconds(int64_t unix_ms) const {
  if (round_begin_ms_ == 0 || paused_unix_ms_ != 0) return 0;
  return Seconds(std::max<int64_t>(0, unix_ms - round_begin_ms_));
}

void JobHistory::OnProgress(int64_t unix_ms, const ProgressRecord& record) {
  if (record.version >= 0 && started_ms_ == 0) started_ms_ = round_begin_ms_ = unix_ms;
  NoteState(unix_ms, record.state);
  for (Round& round : newest_) {
    if (round.committed_ms == 0 && round.version >= 0 && round.version <= record.version) {
      round.committed_ms = unix_ms;
    }
  }
  if (record.validated_version >= 0 && !validation_.empty() &&
      validation_.back().version == record.validated_version) {
    validation_.back().loss = record.validation_loss;  // sites answer one after the other
    validation_.back().sets = ListCurrentValidationSets(record);
  } else if (record.validated_version >= 0 &&
             (validation_.empty() || validation_.back().version < record.validated_version)) {
    if (validation_.size() >= kValidationPoints) {  // every second one is enough
      std::vector<Validation> kept;
      for (size_t i = 0; i < validation_.size(); i += 2) kept.push_back(validation_[i]);
      validation_ = std::move(kept);
    }
    validation_.push_back({Seconds(unix_ms), record.validated_version, record.validation_loss,
                           ListCurrentValidationSets(record)});
  }
  // A job that failed may be resumed.
  if (!Ended(record.state)) {
    ended_ms_ = 0;
  } else if (ended_ms_ == 0) {
    ended_ms_ = unix_ms;
  }
}

void JobHistory::Encode(size_t points, size_t islands, v1::JobHistory* message) const {
  message->set_submitted_unix_ms(submitted_ms_);
  message->set_started_unix_ms(started_ms_);
  message->set_ended_unix_ms(ended_ms_);
  message->set_paused_ms(paused_ms_);
  message->set_paused_unix_ms(paused_unix_ms_);
  EncodeCurve(Downsample(rounds_.points(), points), message->mutable_rounds());
  for (const auto& [island, curve] : islands_) {
    if (islands-- == 0) break;
    v1::IslandCurve* m = message->add_islands();
    m->set_island(island);
    EncodeCurve(Downsample(curve.points(), points), m->mutable_curve());
  }
  for (const Validation& v : validation_) {
    v1::ValidationPoint* m = message->add_validation();
    m->set_unix_s(v.unix_s);
    m->set_version(v.version);
    m->set_loss(v.loss);
    for (const ValidationLoss& set : v.sets) {
      v1::ValidationLoss* s = m->add_sets();
      s->set_name(set.name);
      s->set_version(set.version);
      s->set_loss(set.loss);
      s->set_tokens(set.tokens);
      s->set_accuracy(set.accuracy);
    }
  }
  for (const Round& round : newest_) {
    v1::RoundTimes* m = message->add_newest();
    m->set_round(round.round);
    m->set_version(round.version);
    m->set_decided_ms(round.decided_ms);
    m->set_committed_ms(round.committed_ms);
    m->set_closed_because(round.closed_because);
    for (const Push& push : round.pushes) {
      v1::RoundTimes::Push* p = m->add_pushes();
      p->set_island(push.island);
      p->set_granted_ms(push.granted_ms);
      p->set_accepted(push.accepted);
      p->set_staleness(push.staleness);
    }
  }
}

JobHistory JobHistory::Decode(const v1::JobHistory& message) {
  JobHistory history;
  history.submitted_ms_ = message.submitted_unix_ms();
  history.started_ms_ = message.started_unix_ms();
  history.ended_ms_ = message.ended_unix_ms();
  history.paused_ms_ = message.paused_ms();
  history.paused_unix_ms_ = message.paused_unix_ms();
  history.round_begin_ms_ = history.started_ms_;
  history.rounds_.Restore(DecodeCurve(message.rounds()));
  history.OnIslands(message.islands_size());
  for (const v1::IslandCurve& island : message.islands()) {
    if (history.islands_.size() >= kMaxIslands) break;
    history.IslandCurve(island.island()).Restore(DecodeCurve(island.curve()));
  }
  for (const v1::ValidationPoint& v : message.validation()) {
    if (history.validation_.size() >= kValidationPoints) break;
    history.validation_.push_back({v.unix_s(), v.version(), v.loss(), {}});
    for (const v1::ValidationLoss& set : v.sets()) {
      std::vector<ValidationLoss>& sets = history.validation_.back().sets;
      if (sets.size() >= kValidationLossesMax) break;
      sets.push_back({set.name(), set.version(), set.loss(), set.tokens(), set.accuracy()});
    }
  }
  for (const v1::RoundTimes& m : message.newest()) {
    if (history.newest_.size() >= kNewestRounds) break;
    Round round{m.round(), m.version(), m.decided_ms(), m.committed_ms(), m.closed_because(), {}};
    for (const v1::RoundTimes::Push& p : m.pushes()) {
      round.pushes.push_back({p.island(), p.granted_ms(), p.accepted(), p.staleness()});
    }
    history.last_round_ = std::max(history.last_round_, round.round);
    history.round_begin_ms_ = round.decided_ms;
    history.newest_.push_back(std::move(round));
  }
  for (const CurvePoint& point : history.rounds_.points()) {
    if (point.loss != 0) history.newest_loss_ = point.loss;
  }
  return history;
}

const JobHistory* History::Find(const JobId& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

void History::OnWrites(int64_t unix_ms, const std::vector<StoreWrite>& writes) {
  for (const StoreWrite& write : writes) {
    if (const auto* job = std::get_if<JobRecord>(&write.record)) {
      if (write.erase || job->removed) {
        if (jobs_.erase(job->job) > 0) changes_.erased.insert(job->job);
        continue;
      }
      const auto [it, is_new] = jobs_.try_emplace(job->job);
      it->second.OnIslands(job->spec.outer.max_islands);
      if (is_new) {
        // A job that this history has not seen from its beginning has facts already.
        if (!job->facts) it->second.NoteSubmitted(unix_ms);
        changes_.now.insert(job->job);
      }
    }
  }
  for (const StoreWrite& write : writes) {
    if (write.erase) continue;
    const auto find = [&](const JobId& job) {
      const auto found = jobs_.find(job);
      if (found != jobs_.end()) changes_.later.insert(job);
      return found == jobs_.end() ? nullptr : &found->second;
    };
    if (const auto* granted = std::get_if<ContributionRecord>(&write.record)) {
      if (JobHistory* job = find(granted->job)) job->OnContribution(unix_ms, *granted);
    } else if (const auto* decision = std::get_if<DecisionRecord>(&write.record)) {
      if (JobHistory* job = find(decision->job)) job->OnDecision(unix_ms, *decision);
    } else if (const auto* progress = std::get_if<ProgressRecord>(&write.record)) {
      JobHistory* job = find(progress->job);
      if (job == nullptr) continue;
      const int64_t ended = job->ended_ms(), started = job->started_ms();
      job->OnProgress(unix_ms, *progress);
      if (job->ended_ms() != ended || job->started_ms() != started) {
        changes_.now.insert(progress->job);
      }
    }
  }
}

}  // namespace atl
