#include "coordinator/simulator/rounds.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "coordinator/simulator/transport.h"

namespace atl::sim {
namespace {

constexpr int64_t kMost = 4096;
constexpr int64_t kMostBlocks = int64_t{1} << 24;

absl::Status Bad(absl::string_view what, double value) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", value));
}

absl::Status ValidateIsland(const RoundsProblem& problem, const RoundIsland& island) {
  if (island.step_ns <= 0 || island.step_ns > kForever / 1024) {
    return Bad("time of a step, ns", static_cast<double>(island.step_ns));
  }
  if (!(island.tokens_per_step >= 0)) return Bad("tokens per step", island.tokens_per_step);
  for (const std::vector<int>* links : {&island.push_links, &island.pull_links}) {
    if (links->size() != problem.servers.size()) {
      return Bad("links are one per server, not", static_cast<double>(links->size()));
    }
    for (const int link : *links) {
      if (link < 0 || link >= static_cast<int>(problem.network.links.size())) {
        return Bad("no such link", link);
      }
    }
  }
  Nanos before = -1;
  for (const Outage& outage : island.down) {
    if (outage.from_ns <= before || outage.until_ns <= outage.from_ns) {
      return Bad("absences overlap or have no length; from, ns",
                 static_cast<double>(outage.from_ns));
    }
    before = outage.until_ns;
  }
  return absl::OkStatus();
}

// The subject of a timer or a message. The epoch distinguishes an island's incarnations.
enum class About : uint64_t {
  kBlock,     // an island has trained its steps
  kShard,     // a shard has reached its server
  kLogged,    // ... and is in its log
  kComplete,  // the coordinator knows that a contribution is complete
  kGrace,     // a window's grace time is over
  kCommit,    // the servers know of a decision
  kApplied,   // the coordinator knows that all have applied it
  kPull,      // an island knows that it may pull
  kPulled,    // a shard has reached its island
  kFail,
  kBack,
  kNoticed,  // the coordinator knows of an island's failure
};

struct Note {
  About about;
  int island = 0;
  int server = 0;
  int epoch = 0;
};

uint64_t Pack(const Note& n) {
  return static_cast<uint64_t>(n.about) << 56 | static_cast<uint64_t>(n.epoch & 0xffff) << 40 |
         static_cast<uint64_t>(n.island) << 20 | static_cast<uint64_t>(n.server);
}

Note Unpack(uint64_t token) {
  return {static_cast<About>(token >> 56), static_cast<int>(token >> 20 & 0xfffff),
          static_cast<int>(token & 0xfffff), static_cast<int>(token >> 40 & 0xffff)};
}

Nanos After(double bytes, double bytes_per_s) {
  return static_cast<Nanos>(std::ceil(bytes / bytes_per_s * 1e9 - 1e-6));
}

struct Contribution {
  int island = 0;
  int epoch = 0;
  int64_t base = 0;
};

struct IslandNow {
  IslandState state = IslandState::kTrain;
  Nanos since_ns = 0;
  int epoch = 0;
  bool living = true;  // as far as the coordinator knows
  Nanos block_start_ns = 0;
  bool training = false;
  bool block_done = false;   // its steps are done and cannot be pushed yet
  bool outstanding = false;  // pushed and not pulled yet
  bool complete = false;     // the outstanding contribution is in every log
  int shards_left = 0;
  int64_t base = 0;
  int64_t next_base = 0;    // once pulled
  int64_t pushed_base = 0;  // of the outstanding contribution
  bool in = false;          // it is in the open window
};

class Rounds {
 public:
  Rounds(const RoundsProblem& problem, bool record)
      : problem_(problem),
        record_(record),
        transport_(problem.network, events_, nullptr),
        servers_(static_cast<int>(problem.servers.size())),
        islands_(problem.islands.size()),
        server_free_ns_(problem.servers.size(), 0) {
    result_.islands.resize(problem.islands.size());
    if (record) result_.island_timelines.resize(problem.islands.size());
  }

  RoundsResult Run() {
    for (int i = 0; i < static_cast<int>(islands_.size()); ++i) {
      for (const Outage& outage : problem_.islands[i].down) {
        At(outage.from_ns, {About::kFail, i});
        if (outage.until_ns < kForever) At(outage.until_ns, {About::kBack, i});
      }
      Train(0, i);
    }
    while (!events_.empty() && events_.NextTime() <= problem_.until_ns) {
      const Nanos now = events_.NextTime();
      do {
        const Event event = events_.Pop();
        if (event.kind == EventKind::kTimer || event.kind == EventKind::kArrive) {
          Handle(now, Unpack(event.token));
        } else {
          transport_.Handle(now, event);
        }
      } while (!events_.empty() && events_.NextTime() == now);
      transport_.EndOfInstant(now);
    }
    Finish();
    return std::move(result_);
  }

 private:
  void At(Nanos time_ns, const Note& note) { events_.Push(time_ns, EventKind::kTimer, Pack(note)); }

  // Everything but the rounds' own notes belongs to one incarnation of an island.
  void Handle(Nanos now, const Note& note) {
    const int i = note.island;
    const bool of_now = islands_[i].epoch % 0x10000 == note.epoch;
    switch (note.about) {
      case About::kGrace:
      case About::kCommit:
      case About::kApplied:
        return Decide(now, note);
      case About::kComplete:  // counts even if its island has failed
        return Complete(now, note);
      case About::kFail:
        return Fail(now, i);
      case About::kBack:
        return Back(now, i);
      case About::kNoticed:
        if (of_now) islands_[i].living = false;
        return TryClose(now);
      default:
        if (of_now) HandleIsland(now, note);
    }
  }

  void HandleIsland(Nanos now, const Note& note) {
    const int i = note.island;
    IslandNow& island = islands_[i];
    switch (note.about) {
      case About::kBlock:
        island.training = false;
        if (!island.outstanding) return Push(now, i);
        island.block_done = true;
        return Enter(now, i, IslandState::kWait);
      case About::kShard: {
        const RoundServer& server = problem_.servers[note.server];
        Nanos& free_ns = server_free_ns_[note.server];
        free_ns = std::max(now, free_ns) +
                  After(static_cast<double>(server.push_bytes), server.log_bytes_per_s);
        return At(free_ns, {About::kLogged, i, note.server, note.epoch});
      }
      case About::kLogged:
        if (--island.shards_left > 0) return;
        island.complete = true;
        if (!island.training) Enter(now, i, IslandState::kWait);
        return At(now + problem_.control_ns, {About::kComplete, i, 0, note.epoch});
      case About::kPull:
        return Pull(now, i);
      default:  // kPulled
        if (--island.shards_left == 0) Pulled(now, i);
    }
  }

  // ---- an island ----
  void Enter(Nanos now, int i, IslandState state) {
    IslandNow& island = islands_[i];
    if (island.state == state) return;
    Account(now, i);
    island.state = state;
  }

  void Account(Nanos now, int i) {
    IslandNow& island = islands_[i];
    result_.islands[i].in_state_ns[static_cast<int>(island.state)] += now - island.since_ns;
    if (record_ && now > island.since_ns) {
      result_.island_timelines[i].push_back({island.state, island.since_ns, now});
    }
    island.since_ns = now;
  }

  void Train(Nanos now, int i) {
    IslandNow& island = islands_[i];
    Enter(now, i, IslandState::kTrain);
    island.training = true;
    island.block_start_ns = now;
    At(now + problem_.GetStepsPerRound(i) * problem_.islands[i].step_ns,
       {About::kBlock, i, 0, island.epoch});
  }

  void Push(Nanos now, int i) {
    IslandNow& island = islands_[i];
    island.block_done = false;
    island.outstanding = true;
    island.complete = false;
    island.shards_left = servers_;
    island.pushed_base = island.base;
    SendShards(now, i, About::kShard);
    if (problem_.overlap == Overlap::kCarry) return Train(now, i);
    Enter(now, i, IslandState::kPush);
  }

  void Pull(Nanos now, int i) {
    IslandNow& island = islands_[i];
    island.next_base = version_;
    island.shards_left = servers_;
    SendShards(now, i, About::kPulled);
    if (!island.training) Enter(now, i, IslandState::kPull);
  }

  void Pulled(Nanos now, int i) {
    IslandNow& island = islands_[i];
    island.base = island.next_base;
    island.outstanding = false;
    if (island.block_done) return Push(now, i);
    if (!island.training) Train(now, i);
  }

  void SendShards(Nanos now, int i, About about) {
    const bool push = about == About::kShard;
    const RoundIsland& island = problem_.islands[i];
    for (int s = 0; s < servers_; ++s) {
      const int server = (i + s) % servers_;
      const RoundServer& to = problem_.servers[server];
      transport_.Send(now, (push ? island.push_links : island.pull_links)[server],
                      push ? to.push_bytes : to.pull_bytes,
                      Pack({about, i, server, islands_[i].epoch}), static_cast<uint64_t>(s), {});
    }
  }

  void Fail(Nanos now, int i) {
    IslandNow& island = islands_[i];
    int64_t& lost = result_.islands[i].steps_lost;
    if (island.training) lost += (now - island.block_start_ns) / problem_.islands[i].step_ns;
    if (island.block_done) lost += problem_.GetStepsPerRound(i);
    if (island.outstanding && !island.complete) lost += problem_.GetStepsPerRound(i);
    Enter(now, i, IslandState::kDown);
    island.training = island.block_done = island.outstanding = island.complete = island.in = false;
    ++island.epoch;
    At(now + problem_.detect_ns, {About::kNoticed, i, 0, island.epoch});
  }

  void Back(Nanos now, int i) {
    IslandNow& island = islands_[i];
    ++island.epoch;
    island.living = true;
    island.outstanding = true;  // until it has pulled
    Enter(now, i, IslandState::kPull);
    At(now + 2 * problem_.control_ns, {About::kPull, i, 0, island.epoch});
  }

  // ---- the coordinator ----
  void Complete(Nanos now, const Note& note) {
    IslandNow& island = islands_[note.island];
    complete_.push_back({note.island, note.epoch, island.pushed_base});
    island.in = island.epoch % 0x10000 == note.epoch;
    if (!window_open_) {
      window_open_ = true;
      round_ = {note.island, 0, now, 0, 0};
      At(now + problem_.grace_ns, {About::kGrace});
    }
    TryClose(now);
  }

  bool AllIn() const {
    return std::all_of(islands_.begin(), islands_.end(),
                       [](const IslandNow& island) { return island.in || !island.living; });
  }

  void TryClose(Nanos now) {
    if (deciding_ || !window_open_) return;
    const bool over = !problem_.wait_for_all && now >= round_.opened_ns + problem_.grace_ns;
    if (!over && !AllIn()) return;
    deciding_ = true;
    window_open_ = false;
    decided_ = std::exchange(complete_, {});
    for (const Contribution& c : decided_) islands_[c.island].in = false;
    deciding_round_ = round_;
    deciding_round_.participants = static_cast<int>(decided_.size());
    deciding_round_.decided_ns = now + 2 * problem_.control_ns;
    At(now + 3 * problem_.control_ns, {About::kCommit});
  }

  void Decide(Nanos now, const Note& note) {
    if (note.about == About::kGrace) return TryClose(now);
    if (note.about == About::kApplied) return Committed(now);
    Nanos last_ns = now;
    for (int j = 0; j < servers_; ++j) {
      const RoundServer& server = problem_.servers[j];
      const double bytes =
          static_cast<double>(server.push_bytes) * static_cast<double>(decided_.size());
      server_free_ns_[j] =
          std::max(now, server_free_ns_[j]) + After(bytes, server.apply_bytes_per_s);
      last_ns = std::max(last_ns, server_free_ns_[j]);
    }
    At(last_ns + problem_.control_ns, {About::kApplied});
  }

  void Committed(Nanos now) {
    deciding_ = false;
    deciding_round_.committed_ns = now;
    result_.timeline.push_back(deciding_round_);
    for (const Contribution& c : decided_) {
      IslandUse& use = result_.islands[c.island];
      const double tokens = static_cast<double>(problem_.GetStepsPerRound(c.island)) *
                            problem_.islands[c.island].tokens_per_step;
      use.tokens += tokens;
      result_.tokens += tokens;
      use.staleness += static_cast<double>(version_ - c.base);
      ++use.contributions;
    }
    ++version_;
    for (const Contribution& c : std::exchange(decided_, {})) {
      At(now + problem_.control_ns, {About::kPull, c.island, 0, c.epoch});
    }
    TryClose(now);
  }

  void Finish() {
    result_.rounds = version_;
    const double seconds = static_cast<double>(problem_.until_ns) * 1e-9;
    double ideal = 0;
    Nanos training = 0;
    Nanos living = 0;
    for (size_t i = 0; i < islands_.size(); ++i) {
      Account(problem_.until_ns, static_cast<int>(i));
      IslandUse& use = result_.islands[i];
      if (use.contributions > 0) use.staleness /= static_cast<double>(use.contributions);
      const RoundIsland& island = problem_.islands[i];
      ideal += island.tokens_per_step / (static_cast<double>(island.step_ns) * 1e-9);
      training += use.TimeIn(IslandState::kTrain);
      living += problem_.until_ns - use.TimeIn(IslandState::kDown);
    }
    result_.rounds_per_s = static_cast<double>(result_.rounds) / seconds;
    result_.tokens_per_s = result_.tokens / seconds;
    result_.efficiency = ideal > 0 ? result_.tokens_per_s / ideal : 0;
    result_.waiting =
        living > 0 ? 1 - static_cast<double>(training) / static_cast<double>(living) : 0;
  }

  const RoundsProblem& problem_;
  const bool record_;
  RoundsResult result_;
  EventQueue events_;
  Transport transport_;
  const int servers_;
  std::vector<IslandNow> islands_;
  std::vector<Nanos> server_free_ns_;
  int64_t version_ = 0;
  std::vector<Contribution> complete_;  // and undecided
  bool window_open_ = false;
  RoundSpan round_;  // of the open window
  bool deciding_ = false;
  RoundSpan deciding_round_;
  std::vector<Contribution> decided_;
};

}  // namespace

absl::Status Validate(const RoundsProblem& problem) {
  ATOLL_RETURN_IF_ERROR(Validate(problem.network));
  if (problem.islands.empty() || problem.islands.size() > kMost) {
    return Bad("islands", static_cast<double>(problem.islands.size()));
  }
  if (problem.servers.empty() || problem.servers.size() > kMost) {
    return Bad("servers", static_cast<double>(problem.servers.size()));
  }
  if (problem.steps_per_round < 1 || problem.steps_per_round > 1'000'000) {
    return Bad("steps per round", static_cast<double>(problem.steps_per_round));
  }
  for (const Nanos t : {problem.grace_ns, problem.control_ns, problem.detect_ns}) {
    if (t < 0 || t > kForever / 1024) return Bad("impossible time, ns", static_cast<double>(t));
  }
  if (problem.until_ns <= 0 || problem.until_ns > kForever / 1024) {
    return Bad("time to play, ns", static_cast<double>(problem.until_ns));
  }
  for (const RoundServer& server : problem.servers) {
    if (server.push_bytes < 0 || server.pull_bytes < 0) {
      return Bad("bytes of a shard", static_cast<double>(server.push_bytes));
    }
    for (const double rate : {server.log_bytes_per_s, server.apply_bytes_per_s}) {
      if (!std::isfinite(rate) || rate <= 0) return Bad("a server's rate", rate);
    }
  }
  double blocks = 0;
  for (size_t i = 0; i < problem.islands.size(); ++i) {
    if (problem.islands[i].steps_per_round < 0 || problem.islands[i].steps_per_round > 1'000'000) {
      return Bad("steps per round", static_cast<double>(problem.islands[i].steps_per_round));
    }
    ATOLL_RETURN_IF_ERROR(
        Annotate(ValidateIsland(problem, problem.islands[i]), absl::StrCat("island ", i)));
    blocks += static_cast<double>(problem.until_ns) /
              static_cast<double>(problem.islands[i].step_ns) /
              static_cast<double>(problem.GetStepsPerRound(i));
  }
  if (blocks > kMostBlocks) return Bad("more than 16 million pushes to play", blocks);
  return absl::OkStatus();
}

absl::StatusOr<RoundsResult> SimulateRounds(const RoundsProblem& problem, bool record) {
  ATOLL_RETURN_IF_ERROR(Validate(problem));
  return Rounds(problem, record).Run();
}

}  // namespace atl::sim
