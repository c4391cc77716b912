// A worker's pushes and pulls, over the links between sites.

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "rehearsal/players.h"

namespace atl::rehearsal {
namespace {

constexpr Duration kUnanswered = std::chrono::seconds(60);
constexpr Duration kRefusedByNone = std::chrono::seconds(6);  // no server answers

// Returns what every push holds.
ps::SharedBytes SomeValues(int64_t elements) {
  static const auto values = std::make_shared<const std::vector<float>>(1 << 16, 1e-3f);
  const auto all = std::as_bytes(std::span(*values));
  return {values, all.subspan(0, static_cast<size_t>(elements) * sizeof(float))};
}

}  // namespace

void Worker::CancelAll(std::vector<int64_t>& transfers) {
  for (const int64_t transfer : std::exchange(transfers, {})) world_.links.Cancel(transfer);
}

void Worker::Do(const worker::CancelTransfers&) {
  ++transfers_;
  CancelAll(on_links_);
}

// Every owner sends, or receives, its own elements: so much of them passes its site's links.
void Worker::SendShares(const Server& server, bool receives, double bytes, Timeline::Action done) {
  const auto open = std::make_shared<size_t>(owned_.size());
  for (const auto& [site, share] : owned_) {
    const Links::Ends ends =
        receives ? Links::Ends{site, server.site()} : Links::Ends{server.site(), site};
    on_links_.push_back(
        world_.links.Send({ends, server.name(), receives}, share * bytes, [open, done] {
          if (--*open == 0) done();
        }));
  }
}

void Worker::Do(const PushShards& action) {
  for (const ShardPart& part : action.shards) PushPart(action, part);
}

void Worker::PushPart(const PushShards& action, const ShardPart& part) {
  const PushId id = worker::MakePushId(action, part);
  Server* const server = world_.FindServer(part.server);
  const bool whole =
      action.contribution.base_version == kNoVersion || IsFill(action.contribution.base_version);
  const Encoding later = world_.scene.spec.outer.push_encoding;
  const Encoding encoding = whole                         ? Encoding::kFloat32
                            : HasMoments(action.encoding) ? WithMoments(later)
                                                          : later;
  const double share = static_cast<double>(part.part().size()) / static_cast<double>(part.elements);
  const int64_t bytes =
      EncodedBytes(encoding, static_cast<int64_t>(share * world_.layer_parameters));
  const auto open = std::make_shared<bool>(true);
  const auto finish = [this, id, bytes, open, at = run(), transfers = transfers_](
                          ShardPushStatus status, const std::string& why) {
    if (!Wants(at, transfers) || !std::exchange(*open, false)) return;
    Deliver(PushShardDone{id, status, why, bytes});
  };
  const auto arrive = [this, server, finish, id, elements = part.part().size(), at = run(),
                       transfers = transfers_] {
    if (!Wants(at, transfers)) return;
    if (!server->alive()) {
      return AfterInRun(kRefusedByNone, [finish] {
        finish(ShardPushStatus::kFailed, "the server does not answer");
      });
    }
    AfterInRun(kUnanswered, [finish] { finish(ShardPushStatus::kFailed, "timed out"); });
    const auto answer = [this, server, finish](PushStatus status, const std::string& why) {
      const auto mapped =
          status == PushStatus::kRefused ? ShardPushStatus::kRefused : ShardPushStatus::kStaged;
      world_.Say(server->site(), site_, [finish, mapped, why] { finish(mapped, why); });
    };
    server->process().Push({id, Encoding::kFloat32, elements, SomeValues(elements), 0}, answer);
  };
  SendShares(*server, /*receives=*/true, static_cast<double>(bytes), arrive);
}

void Worker::Do(const StartPull& action) {
  if (pull_missing_ == 0) on_links_.clear();
  pull_number_ = action.pull;
  pull_missing_ = std::ssize(action.shards);
  AfterInRun(kUnanswered, [this, pull = action.pull, transfers = transfers_, seen = pull_arrived_] {
    CheckPull(pull, transfers, seen);
  });
  for (const ShardPart& part : action.shards) PullPart(action, part);
}

// A connection without a frame for so long is dropped, and the pull fails: it waits as long as its
// link moves bytes, however slowly.
void Worker::CheckPull(int64_t pull, int64_t transfers, int64_t seen) {
  if (transfers_ != transfers || pull_number_ != pull) return;
  if (pull_arrived_ == seen && !AnyMoves(on_links_)) {
    pull_number_ = -1;
    return Deliver(PullFailed{pull, PullFailure::kError, kNoVersion, "timed out"});
  }
  AfterInRun(kUnanswered,
             [this, pull, transfers, seen = pull_arrived_] { CheckPull(pull, transfers, seen); });
}

void Worker::PullPart(const StartPull& action, const ShardPart& part) {
  Server* const server = world_.FindServer(part.server);
  const auto elements = static_cast<int64_t>(world_.layer_parameters);
  const int64_t bytes = EncodedBytes(world_.scene.spec.outer.pull_encoding, elements) +
                        (action.moments ? EncodedBytes(Encoding::kMomentsAlone, elements) : 0);
  const int64_t pull = action.pull;
  const auto fails = [this, pull, at = run(), transfers = transfers_](
                         PullFailure failure, Version newer, const std::string& why) {
    if (!Wants(at, transfers) || pull_number_ != pull) return;
    pull_number_ = -1;
    Deliver(PullFailed{pull, failure, newer, why});
  };
  const auto arrived = [this, pull, bytes, server, fails, at = run(), transfers = transfers_,
                        shards = std::ssize(action.shards)](Incarnation served_by) {
    if (!Wants(at, transfers) || pull_number_ != pull) return;
    if (!server->alive() || server->incarnation() != served_by) {
      return fails(PullFailure::kError, kNoVersion, "the server has ended");
    }
    ++pull_arrived_;
    if (--pull_missing_ > 0) return;
    pull_number_ = -1;
    Deliver(PullDone{pull, bytes * shards});
  };
  const auto answer = [this, server, bytes, fails, arrived, at = run(), transfers = transfers_](
                          const ps::ReplyPull* reply, const ps::RefusePull* refusal) {
    if (reply != nullptr) {
      if (!Wants(at, transfers)) return;
      return SendShares(*server, /*receives=*/false, static_cast<double>(bytes),
                        [arrived, by = server->incarnation()] { arrived(by); });
    }
    const PullFailure failure = refusal->refusal == PullRefusal::kNotYet ? PullFailure::kNotYet
                                : refusal->refusal == PullRefusal::kSuperseded
                                    ? PullFailure::kSuperseded
                                    : PullFailure::kError;
    world_.Say(server->site(), site_,
               [fails, failure, copy = *refusal] { fails(failure, copy.current, copy.reason); });
  };
  const ps::PullArrived request{action.job, action.version, part.shard, 0, 0, 0, kPullServed};
  const auto requested = [this, server, request, answer, fails] {
    if (server->alive()) return server->process().Pull(request, answer);
    AfterInRun(kRefusedByNone,
               [fails] { fails(PullFailure::kError, kNoVersion, "the server does not answer"); });
  };
  world_.timeline.After(world_.links.Latency({site_, server->site()}), requested);
}

}  // namespace atl::rehearsal
