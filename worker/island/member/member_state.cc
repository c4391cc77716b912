#include "worker/island/member/member_state.h"

#include <algorithm>

namespace atl::worker {
namespace {

constexpr absl::string_view kNoJob = "no job is open";

}  // namespace

std::shared_ptr<const GroupJob> MemberState::job() const {
  const std::lock_guard lock(mutex_);
  return job_;
}

std::shared_ptr<Engine> MemberState::engine() const {
  const std::lock_guard lock(mutex_);
  return engine_;
}

absl::StatusOr<std::shared_ptr<const GroupJob>> MemberState::OpenJob() const {
  std::shared_ptr<const GroupJob> job = this->job();
  if (job == nullptr) return absl::FailedPreconditionError(kNoJob);
  return job;
}

absl::StatusOr<std::shared_ptr<Engine>> MemberState::OpenEngine() const {
  std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError(kNoJob);
  return engine;
}

void MemberState::Open(std::shared_ptr<const GroupJob> job, std::shared_ptr<Engine> engine) {
  const std::lock_guard lock(mutex_);
  job_ = std::move(job);
  engine_ = std::move(engine);
}

std::shared_ptr<Engine> MemberState::Close() {
  std::shared_ptr<const GroupJob> job;  // destroyed without the lock
  std::shared_ptr<Engine> engine;
  const std::lock_guard lock(mutex_);
  job.swap(job_);
  engine.swap(engine_);
  kept_.reset();
  utilisation_ = {};
  return engine;
}

// ------------------------------------------------------------------------------------ plan ----

MemberState::PeerSession MemberState::peer_session() const {
  const std::lock_guard lock(mutex_);
  return {fence_, plan_};
}

PeerFence MemberState::fence() const {
  const std::lock_guard lock(mutex_);
  return fence_;
}

std::shared_ptr<const IslandPlan> MemberState::plan() const {
  const std::lock_guard lock(mutex_);
  return plan_;
}

bool MemberState::SpeaksUnder(const PeerFence& fence) const {
  const std::lock_guard lock(mutex_);
  return fence == fence_;
}

void MemberState::Join(const PeerFence& fence, const IslandPlan& plan) {
  auto joined = std::make_shared<const IslandPlan>(plan);
  const std::lock_guard lock(mutex_);
  if (fence != fence_) {
    epoch_ = 0;
    interrupted_epoch_ = -1;
    ForgetSeen();
  }
  fence_ = fence;
  plan_ = std::move(joined);
}

PeerFence MemberState::Leave() {
  auto none = std::make_shared<const IslandPlan>();
  const std::lock_guard lock(mutex_);
  plan_ = std::move(none);
  ForgetSeen();
  return fence_;
}

bool MemberState::TakeInterrupt(const PeerFence& fence, int64_t epoch) {
  const std::lock_guard lock(mutex_);
  // Another plan, joined since the message was looked at, counts its attempts from the beginning.
  if (fence != fence_ || epoch < epoch_) return false;
  interrupted_epoch_ = std::max<int64_t>(interrupted_epoch_, epoch);
  return true;
}

Cancelled MemberState::UntilInterrupted() const {
  return [this, before = interrupts_.load()] { return interrupts_ != before; };
}

// ----------------------------------------------------------------------------------- steps ----

void MemberState::BeginStep() {
  const std::lock_guard lock(mutex_);
  stepped_ = fence_;
}

bool MemberState::HasStepped() const {
  const std::lock_guard lock(mutex_);
  return stepped_.job == fence_.job && stepped_.generation == fence_.generation;
}

void MemberState::RecordOutcome(uint64_t model_digest, StepOutcome* outcome) {
  const std::lock_guard lock(mutex_);
  utilisation_.Add(outcome->devices);
  if (fence_.plan == 0) return;
  for (DeviceWork& device : outcome->work) device.model_digest = model_digest;
  work_ = outcome->work;
  sums_ = outcome->sums;
}

std::vector<DeviceWork> MemberState::work() const {
  const std::lock_guard lock(mutex_);
  return work_;
}

std::vector<AllReduceTimes> MemberState::sums() const {
  const std::lock_guard lock(mutex_);
  return sums_;
}

double MemberState::utilisation(Instant now) const {
  const std::lock_guard lock(mutex_);
  return utilisation_.Get(now);
}

void MemberState::ForgetSeen() {
  work_.clear();
  sums_.clear();
}

void MemberState::Keep(std::optional<IslandHandover> kept) {
  const std::lock_guard lock(mutex_);
  kept_ = std::move(kept);
}

std::optional<IslandHandover> MemberState::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace atl::worker
