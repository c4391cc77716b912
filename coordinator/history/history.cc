#include "coordinator/history/history.h"

#include <google/protobuf/reflection.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "proto/coordinator.fields.h"
#include "proto/coordinator.pb.h"

namespace atl {
namespace {

// Half of a job's bytes at most are its islands' points in memory; encoded they are as large.
constexpr int64_t kIslandBytes = kHistoryBytesMax / 2;
constexpr size_t kMaxIslands = 4096;
constexpr double kMeanRounds = 64;  // newest ones

double Seconds(int64_t unix_ms) { return static_cast<double>(unix_ms) / 1e3; }

// The numbers of a point, in the order of v1::Curve's columns.
constexpr double CurvePoint::*kColumns[] = {
    &CurvePoint::unix_s,        &CurvePoint::version,      &CurvePoint::tokens,
    &CurvePoint::loss,          &CurvePoint::loss_min,     &CurvePoint::loss_max,
    &CurvePoint::seconds,       &CurvePoint::rounds,       &CurvePoint::contributions,
    &CurvePoint::rejected,      &CurvePoint::staleness,    &CurvePoint::steps,
    &CurvePoint::learning_rate, &CurvePoint::gradient_norm};

void EncodeCurve(const std::vector<CurvePoint>& points, v1::Curve* curve) {
  for (size_t c = 0; c < std::size(kColumns); ++c) {
    auto column = curve->GetReflection()->GetMutableRepeatedFieldRef<double>(
        curve, curve->GetDescriptor()->field(static_cast<int>(c)));
    for (const CurvePoint& point : points) column.Add(point.*kColumns[c]);
  }
}

std::vector<CurvePoint> DecodeCurve(const v1::Curve& curve) {
  std::vector<CurvePoint> points(static_cast<size_t>(curve.unix_s_size()));
  for (size_t c = 0; c < std::size(kColumns); ++c) {
    const auto column = curve.GetReflection()->GetRepeatedFieldRef<double>(
        curve, curve.GetDescriptor()->field(static_cast<int>(c)));
    if (column.size() != curve.unix_s_size()) return {};
    for (size_t i = 0; i < points.size(); ++i) {
      points[i].*kColumns[c] = column.Get(static_cast<int>(i));
    }
  }
  for (CurvePoint& point : points) point.rounds = std::max(1.0, point.rounds);
  return points;
}

// Adds what can be decoded, at most so many in all.
template <class Plain, class Wire, class Kept>
void DecodeAll(const google::protobuf::RepeatedPtrField<Wire>& messages, size_t most, Kept* kept) {
  for (Wire message : messages) {
    MessageReader decoder;
    Plain plain;
    Fields(decoder, plain, message);
    if (!decoder.status().ok() || kept->size() >= most) return;
    kept->push_back(std::move(plain));
  }
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
  point.learning_rate = p.learning_rate;
  point.gradient_norm = p.gradient_norm;
  return point;
}

// Losses of sets, or scores of tasks, of the newest validated version.
template <typename Result>
std::vector<Result> ListCurrent(const std::vector<Result>& results, const ProgressRecord& record) {
  std::vector<Result> current;
  for (const Result& result : results) {
    if (result.version == record.validated_version) current.push_back(result);
  }
  return current;
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

void JobHistory::OnDecision(int64_t unix_ms, const RoundDecided& decided) {
  const DecisionRecord& record = *decided.record;
  if (record.version == 0) return;  // the initial weights: nothing was trained yet
  // A round that was under way when the job was paused still ends.
  const int64_t end_ms = paused_unix_ms_ != 0 ? paused_unix_ms_ : unix_ms;
  const double seconds =
      round_begin_ms_ != 0 ? Seconds(std::max<int64_t>(0, end_ms - round_begin_ms_)) : 0;
  round_begin_ms_ = unix_ms;
  RoundHistory round{record.round, record.version, unix_ms, 0, record.closed_because, {}};
  CurvePoint all;
  bool first = true;
  for (size_t i = 0; i < record.participants.size(); ++i) {
    const DecisionParticipant& p = record.participants[i];
    const CurvePoint point = MakeCurvePoint(unix_ms, seconds, record, p);
    if (islands_.size() < kMaxIslands) IslandCurve(p.contribution.island).Add(point);
    CurvePoint counted = point;
    if (!p.accepted) counted.tokens = counted.loss = 0;
    all = first ? counted : Merge(all, counted);
    first = false;
    round.pushes.push_back({p.contribution.island, decided.granted_ms[i], p.accepted,
                            static_cast<int64_t>(point.staleness)});
  }
  if (!first) {
    all.rounds = 1;
    all.seconds = seconds;
    rounds_.Add(all);
    if (all.loss != 0) newest_loss_ = all.loss;
  }
  newest_.push_back(std::move(round));
  if (newest_.size() > kNewestRounds) newest_.pop_front();
}

void JobHistory::NoteState(int64_t unix_ms, JobState state) {
  if (started_ms_ == 0) return;
  if (state == JobState::kPaused || HasEnded(state)) {
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

void JobHistory::NoteValidation(int64_t unix_ms, const ProgressRecord& record) {
  if (record.validated_version < 0) return;
  const Version newest = validation_.empty() ? kNoVersion : validation_.back().version;
  if (record.validated_version > newest) {
    if (validation_.size() >= kValidationPoints) {  // every second one is enough
      std::vector<ValidationPoint> kept;
      for (size_t i = 0; i < validation_.size(); i += 2) kept.push_back(validation_[i]);
      validation_ = std::move(kept);
    }
    validation_.push_back({Seconds(unix_ms), record.validated_version, 0, {}, {}});
  } else if (record.validated_version < newest) {
    return;
  }
  validation_.back().loss = record.validation_loss;  // sites answer one after the other
  validation_.back().sets = ListCurrent(record.validation_sets, record);
  validation_.back().scores = ListCurrent(record.scores, record);
}

void JobHistory::OnLost(int64_t unix_ms, const MembersLost& lost) {
  for (const LostMember& member : lost.members) {
    left_.push_back({lost.island, member.worker, unix_ms, member.reason});
  }
  while (left_.size() > kLeftMembers) left_.pop_front();
}

bool JobHistory::OnProgress(int64_t unix_ms, const ProgressRecord& record) {
  const bool starts = record.version >= 0 && started_ms_ == 0;
  if (starts) started_ms_ = round_begin_ms_ = unix_ms;
  NoteState(unix_ms, record.state);
  for (RoundHistory& round : newest_) {
    if (round.committed_ms == 0 && round.version >= 0 && round.version <= record.version) {
      round.committed_ms = unix_ms;
    }
  }
  NoteValidation(unix_ms, record);
  // A job that failed may be resumed.
  const bool ended = HasEnded(record.state);
  if (ended == (ended_ms_ != 0)) return starts;
  ended_ms_ = ended ? unix_ms : 0;
  return true;
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
  MessageWriter encoder;
  encoder.Messages("validation", validation_, message->mutable_validation(), kMaxListLength);
  encoder.Messages("newest", newest_, message->mutable_newest(), kMaxListLength);
  encoder.Messages("left", left_, message->mutable_left(), kMaxListLength);
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
  DecodeAll<ValidationPoint>(message.validation(), kValidationPoints, &history.validation_);
  DecodeAll<RoundHistory>(message.newest(), kNewestRounds, &history.newest_);
  DecodeAll<LeftMember>(message.left(), kLeftMembers, &history.left_);
  if (!history.newest_.empty()) history.round_begin_ms_ = history.newest_.back().decided_ms;
  for (const CurvePoint& point : history.rounds_.points()) {
    if (point.loss != 0) history.newest_loss_ = point.loss;
  }
  return history;
}

const JobHistory* History::Find(const JobId& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

void History::On(const JobEvent& event) {
  if (std::holds_alternative<RemovedJob>(event.what)) {
    if (jobs_.erase(event.job) > 0) changes_.erased.insert(event.job);
    return;
  }
  const auto [found, is_new] = jobs_.try_emplace(event.job);
  JobHistory& job = found->second;
  if (const auto* stored = std::get_if<JobStored>(&event.what)) {
    job.OnIslands(stored->record->spec.outer.max_islands);
    // A job that this history has not seen from its beginning has facts already.
    if (is_new && !stored->record->facts) job.NoteSubmitted(event.unix_ms);
    if (is_new) changes_.now.insert(event.job);
  } else if (const auto* decided = std::get_if<RoundDecided>(&event.what)) {
    job.OnDecision(event.unix_ms, *decided);
    changes_.later.insert(event.job);
  } else if (const auto* lost = std::get_if<MembersLost>(&event.what)) {
    job.OnLost(event.unix_ms, *lost);
    changes_.later.insert(event.job);
  } else if (const auto* progressed = std::get_if<JobProgressed>(&event.what)) {
    const bool now = job.OnProgress(event.unix_ms, *progressed->record);
    (now ? changes_.now : changes_.later).insert(event.job);
  }
}

}  // namespace atl
