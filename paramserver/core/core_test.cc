#include "paramserver/core/core.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "paramserver/core/server_story.h"

namespace atl::ps {
namespace {

using namespace std::chrono_literals;

const ContributionId kInitial = ServerStory::By(0, kNoVersion);

// Brings the server to version 0.
void Begin(ServerStory& story, int64_t snapshot_every = 0) {
  story.Assign({{0, 0, 4}, {1, 0, 2}, {2, 1, 3}}, snapshot_every);
  story.PushAll(kInitial, 1);
  story.Sync();
  story.Commit(0, {{kInitial, 1.0}});
  story.Sync();
  story.told.clear();
  REQUIRE(story.version() == 0);
}

// Round `version` of islands 0 and 1, with weights 3/4 and 1/4.
void Round(ServerStory& story, Version version) {
  const Version base = version - 1;
  story.PushAll(ServerStory::By(0, base), 10 + static_cast<uint64_t>(version));
  story.PushAll(ServerStory::By(1, base), 90 + static_cast<uint64_t>(version));
  story.Sync();
  story.Commit(version, {{ServerStory::By(0, base), 0.75}, {ServerStory::By(1, base), 0.25}});
  story.Sync();
  REQUIRE(story.version() == version);
}

TEST_CASE("a push is acknowledged, to worker and coordinator, when it is durable and not before") {
  ServerStory story;
  story.Assign();
  REQUIRE(story.Told<ShardsAssigned>().size() == 1);
  const Token token = story.Push(story.Id(0, -1, 0), {1, 2, 3, 4});
  REQUIRE_FALSE(story.pushes.contains(token));
  REQUIRE(story.Told<PushStaged>().empty());
  story.Sync();
  REQUIRE(story.Answered(token, PushStatus::kStaged));
  const auto staged = story.Told<PushStaged>();
  REQUIRE(staged.size() == 1);
  REQUIRE(staged[0].push == story.Id(0, -1, 0));
}

TEST_CASE("version 0 is the initial weights, as pushed") {
  ServerStory story;
  story.Assign({{0, 0, 4}});
  story.Push(story.Id(0, -1, 0), {1.5f, -2, 0, 1e-30f});
  story.Sync();
  story.Commit(0, {{kInitial, 1.0}});
  REQUIRE(story.version() == kNoVersion);  // not before its record is durable
  story.Sync();
  REQUIRE(story.version() == 0);
  REQUIRE(story.Theta(0) == std::vector<float>{1.5f, -2, 0, 1e-30f});
  REQUIRE(story.Told<RoundApplied>().size() == 1);
}

TEST_CASE("rounds are Nesterov steps on the weighted sum of the pseudo-gradients") {
  ServerStory story;
  story.Assign({{0, 0, 1}});
  story.Push(story.Id(0, -1, 0), {10});
  story.Sync();
  story.Commit(0, {{kInitial, 1.0}});
  story.Sync();
  double theta = 10, velocity = 0;
  for (Version version = 1; version <= 5; ++version) {
    const float a = 1.0f * static_cast<float>(version), b = -3;
    story.Push(story.Id(0, version - 1, 0), {a});
    story.Push(story.Id(1, version - 1, 0), {b});
    story.Sync();
    story.Commit(version, {{story.By(0, version - 1), 0.75}, {story.By(1, version - 1), 0.25}});
    story.Sync();
    const double g = 0.75 * a + 0.25 * b;
    velocity = 0.9 * velocity + g;
    theta -= 0.5 * (g + 0.9 * velocity);
    REQUIRE(story.Theta(0)[0] == Approx(theta).margin(1e-5));
  }
}

TEST_CASE("running_statistics_step_to_the_mean_and_count_in_no_norm") {
  ServerStory story;
  AssignShards assign{kJob, {{0, 0, 1, 0}, {1, 0, 1, 1}}, 0.5, 0.9, 0};
  assign.charter.facts.layers = {{"block.0", 2, 1}};
  story.Says(assign);
  for (const ShardId shard : {0, 1}) story.Push(story.Id(0, -1, shard), {10});
  story.Sync();
  story.Commit(0, {{kInitial, 1.0}});
  story.Sync();
  double statistic = 10;
  for (Version version = 1; version <= 3; ++version) {
    for (const ShardId shard : {0, 1}) {
      story.Push(story.Id(0, version - 1, shard), {2});
      story.Push(story.Id(1, version - 1, shard), {-6});
    }
    story.Sync();
    story.Says(
        CollectStatistics{kJob, version, {story.By(0, version - 1), story.By(1, version - 1)}});
    REQUIRE(story.Told<Statistics>().back().layers[0].values ==
            std::vector<double>{4, -12, 0, -12, 36, 0, 0, 0, 0});
    // Clipped to a tenth: the mean is the same.
    story.Commit(version, {{story.By(0, version - 1), 0.075}, {story.By(1, version - 1), 0.025}});
    story.Sync();
    statistic -= 0.75 * 2 + 0.25 * -6;
    REQUIRE(story.Theta(1)[0] == Approx(statistic).margin(1e-5));
  }
}

TEST_CASE("as_many_contributions_as_a_round_may_have_are_applied_with_one_matrix_of_statistics") {
  constexpr auto kMany = static_cast<IslandId>(kMaxContributions);
  ServerStory story(int64_t{16} << 20);
  Begin(story);
  std::vector<ContributionId> contributions;
  std::vector<RoundTerm> terms;
  for (IslandId island = 0; island < kMany; ++island) {
    const auto x = static_cast<float>(island % 7);
    story.Push(story.Id(island, 0, 0), {x, 0, 0, 0});
    story.Push(story.Id(island, 0, 1), {0, x});
    story.Push(story.Id(island, 0, 2), {0, 1, 0});
    contributions.push_back(story.By(island, 0));
    terms.push_back({contributions.back(), 1.0 / static_cast<double>(kMany)});
  }
  story.Sync();
  story.Says(CollectStatistics{kJob, 1, contributions});
  const Statistics statistics = story.Told<Statistics>().back();
  REQUIRE(statistics.contributions == contributions);
  REQUIRE(statistics.layers.size() == 1);
  CHECK(statistics.layers[0].layer == 0);
  const size_t n = kMaxContributions + 1;  // the momentum is the last
  REQUIRE(statistics.layers[0].values.size() == n * n);
  for (size_t i = 0; i < kMaxContributions; i += 31) {
    for (size_t j = 0; j < kMaxContributions; j += 17) {
      REQUIRE(statistics.layers[0].values[i * n + j] ==
              2.0 * static_cast<double>(i % 7) * static_cast<double>(j % 7) + 1);
    }
  }
  story.Commit(1, terms);
  story.Sync();
  CHECK(story.version() == 1);
}

TEST_CASE("the same push again changes nothing: pending, staged, applied or dropped") {
  ServerStory story;
  Begin(story);
  const PushId id = story.Id(1, 0, 2);
  const Token first = story.Push(id, {1, 2, 3});
  const Token pending = story.Push(id, {7, 7, 7});
  REQUIRE(story.pushes.count(pending) == 0);
  story.Sync();
  REQUIRE(story.Answered(first, PushStatus::kStaged));
  REQUIRE(story.Answered(pending, PushStatus::kStaged));
  const size_t records = story.log_records();
  REQUIRE(story.Answered(story.Push(id, {7, 7, 7}), PushStatus::kDuplicate));

  story.Says(DropContributions{kJob, {story.By(1, 0)}, "island 1 died"});
  REQUIRE(story.Answered(story.Push(id, {7, 7, 7}), PushStatus::kDuplicate));
  story.Says(DropContributions{kJob, {story.By(1, 0)}, "said again"});
  REQUIRE(story.log_records() == records + 1);

  story.PushAll(story.By(0, 0), 5);
  story.Sync();
  story.Commit(1, {{story.By(0, 0), 1.0}});
  story.Sync();
  const auto after = story.AllTheta();
  REQUIRE(story.Answered(story.Push(story.Id(0, 0, 0), {1, 2, 3, 4}), PushStatus::kDuplicate));
  story.Commit(1, {{story.By(0, 0), 1.0}});  // a repeated decision
  story.Sync();
  REQUIRE(story.AllTheta() == after);
  REQUIRE(story.version() == 1);
}

TEST_CASE("long decided contributions are still recognised when their exact ids are forgotten") {
  ServerStory story;
  Begin(story);
  for (Version base = 0; base < 3 * kDecidedKept; ++base) {
    story.Says(DropContributions{kJob, {story.By(1, base)}, "test"});
  }
  for (Version base = 0; base < 3 * kDecidedKept; ++base) {
    REQUIRE(story.Answered(story.Push(story.Id(1, base, 2), {1, 2, 3}), PushStatus::kDuplicate));
  }
  story.Push(story.Id(1, 3 * kDecidedKept, 2), {1, 2, 3});
  story.Sync();
  REQUIRE(story.Told<PushStaged>().size() == 1);
}

TEST_CASE("what does not fit is refused with the reason") {
  ServerStory story(72 + 36 +
                    8);  // parameters, one pseudo-gradient, and half a pseudo-gradient more
  const auto reason = [&](const PushId& id, std::vector<float> values) {
    const Token token = story.Push(id, values);
    REQUIRE(story.Answered(token, PushStatus::kRefused));
    return story.pushes[token].reason;
  };
  REQUIRE(reason(story.Id(0, -1, 0), {1}) == "job job-1 is not assigned to this server");
  story.Assign();
  REQUIRE(reason(story.Id(0, -1, 9), {1}) == "shard 9 of job job-1 is not on this server");
  REQUIRE(reason(story.Id(0, -1, 0), {1}) == "shard 0 of job job-1 has 4 elements, the push 1");
  story.Says(FenceIslands{kJob, {{0, 2, 1}}});
  REQUIRE(reason(story.Id(0, -1, 0), {1, 2, 3, 4}) ==
          "island 0 of job job-1 is at generation 2, incarnation 1 now; the push is of generation "
          "1, incarnation 1");
  story.Says(FenceIslands{kJob, {{0, 1, 9}}});  // fences never fall
  REQUIRE(reason(story.Id(0, -1, 0), {1, 2, 3, 4}).find("generation 2") != std::string::npos);

  const auto admit = [&](IslandId island, ShardId shard, int64_t elements) {
    return story.core().gate()->Admit(story.Id(island, -1, shard), Encoding::kFloat32, elements);
  };
  REQUIRE(admit(1, 0, 4).ok());
  REQUIRE(admit(1, 0, 5).code() == absl::StatusCode::kFailedPrecondition);
  story.PushAll(story.By(1, -1), 1);
  REQUIRE(reason(story.Id(2, -1, 2), {1, 2, 3}) ==
          "no room for 12 more staged bytes: 36 of 44 are in use; raise --memory-bytes");
  REQUIRE(admit(2, 2, 3).code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(admit(1, 0, 4).ok());  // not durable yet: it may wait
  story.Sync();
  REQUIRE(admit(1, 0, 4).code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("quantised pushes take the room of their bytes and count as what they decode to") {
  const Encoding encoding = GENERATE(Encoding::kInt8, Encoding::kInt4, Encoding::kE3m0);
  const int64_t n = 1000, bytes = EncodedBytes(encoding, n);
  ServerStory story(8 * n + 4 * n + 2 * bytes);
  story.Assign({{0, 0, n}});
  std::vector<float> weights(n), values(n), decoded(n);
  Rng rng(1);
  for (float& x : weights) x = static_cast<float>(rng.Normal());
  for (float& x : values) x = static_cast<float>(rng.Normal());
  story.Push(story.Id(0, -1, 0), weights);
  story.Sync();
  story.Commit(0, {{story.By(0, -1), 1.0}});
  story.Sync();

  const SharedBytes good = Quantized(encoding, values);
  std::vector<std::byte> bad(good.bytes.begin(), good.bytes.end());
  const float scale = -1;
  std::memcpy(bad.data() + EncodedBytes(encoding, 512), &scale, sizeof(scale));
  const auto reason = [&](int64_t elements, SharedBytes payload) {
    const Token token = story.Push(story.Id(0, 0, 0), encoding, elements, std::move(payload));
    REQUIRE(story.Answered(token, PushStatus::kRefused));
    return story.pushes[token].reason;
  };
  REQUIRE(reason(n, {nullptr, bad}).find("block 2 has the scale -1") == 0);
  REQUIRE(reason(n, {nullptr, std::span(bad).first(bytes - 1)}) ==
          absl::StrCat("1000 elements are not ", bytes - 1, " bytes so encoded"));
  REQUIRE(reason(999, good) == "shard 0 of job job-1 has 1000 elements, the push 999");

  story.Push(story.Id(0, 0, 0), encoding, n, good);
  story.Push(story.Id(1, 0, 0), encoding, n, good);
  story.Sync();
  story.Crash();  // they come back from the log as they were
  story.Says(Welcome{});
  story.told.clear();
  story.Says(CollectStatistics{kJob, 1, {story.By(0, 0)}});
  ThreadPool pool(1);
  DecodeDelta({good.bytes.data(), encoding, n}, decoded, pool);
  double square = 0;
  for (const float x : decoded) square += double{x} * x;
  REQUIRE(story.Told<Statistics>().at(0).layers.at(0).values.at(0) ==
          Approx(square).epsilon(1e-12));
  story.Commit(1, {{story.By(0, 0), 1.0}});
  story.Sync();
  const std::vector<float> theta = story.core().Parameters(kJob, 0);
  for (int64_t i = 0; i < n; ++i) {
    REQUIRE(theta[i] == Approx(weights[i] - 0.5f * 1.9f * decoded[i]).margin(1e-5));
  }
}

TEST_CASE("an assignment that cannot be held is a fault, not a crash") {
  ServerStory story(1000);
  const auto fault = [&](AssignShards assignment) {
    story.Says(assignment);
    const auto faults = story.Told<ServerFault>();
    REQUIRE(faults.size() == 1);
    return faults[0].reason;
  };
  REQUIRE(fault({kJob, {{0, 0, 100}}, 0.5, 0.9, 0}).find("has no room for the job: 800 bytes") !=
          std::string::npos);
  REQUIRE(fault({kJob, {{0, 0, 1}, {0, 0, 1}}, 0.5, 0.9, 0}).find("comes twice") !=
          std::string::npos);
  REQUIRE(fault({kJob, {{0, 0, -5}}, 0.5, 0.9, 0}).find("-5 elements") != std::string::npos);
  const int64_t huge = std::numeric_limits<int64_t>::max();
  REQUIRE(fault({kJob, {{0, 0, huge}, {1, 0, huge}}, 0.5, 0.9, 0}).find("elements") !=
          std::string::npos);
  REQUIRE(fault({kJob, {{0, 0, 1}}, 0.5, 1.5, 0}).find("momentum") != std::string::npos);
  REQUIRE(fault({kJob, {{0, 0, 1}}, std::nan(""), 0.5, 0}).find("rate") != std::string::npos);
  story.Assign();
  story.Assign();  // said again
  REQUIRE(story.Told<ShardsAssigned>().size() == 2);
  REQUIRE(story.log_records() == 1);
  story.PushAll(kInitial, 1);
  REQUIRE(fault({kJob, {{0, 0, 4}, {7, 2, 4}}, 0.5, 0.9, 0}).find("was not received") !=
          std::string::npos);
}

TEST_CASE("old coordinators, other incarnations and other servers are not followed") {
  ServerStory story;
  story.epoch = 5;
  story.Assign();
  story.epoch = 4;
  story.Says(EndJob{kJob});
  story.epoch = 5;
  story.Do(FromCoordinator{{"ps-2", 1, 5, EndJob{kJob}}});
  story.Do(FromCoordinator{{"ps-1", 2, 5, EndJob{kJob}}});
  const Token token = story.Push(story.Id(0, -1, 0), {1, 2, 3, 4});
  story.Sync();
  REQUIRE(story.Answered(token, PushStatus::kStaged));
  story.Crash();  // the epoch is remembered
  story.epoch = 4;
  story.Says(EndJob{kJob});
  story.told.clear();
  story.epoch = 5;
  story.Says(Welcome{});
  REQUIRE(story.Push(story.Id(0, -1, 1), {1, 2}) > 0);
  story.Sync();
  REQUIRE(story.Told<PushStaged>().size() == 1);
}

TEST_CASE("statistics are the inner products per layer, and name what is not finite") {
  ServerStory story;
  Begin(story);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  story.Push(story.Id(0, 0, 0), {1, 2, 3, 4});
  story.Push(story.Id(0, 0, 1), {5, 6});
  story.Push(story.Id(0, 0, 2), {1, 1, 1});
  story.Push(story.Id(1, 0, 0), {1, 0, 0, -1});
  story.Push(story.Id(1, 0, 1), {0, 2});
  story.Push(story.Id(1, 0, 2), {nan, 0, 0});
  story.Sync();
  story.told.clear();
  for (int again = 0; again < 2; ++again) {
    story.Says(CollectStatistics{kJob, 1, {story.By(0, 0), story.By(1, 0)}});
    const auto statistics = story.Told<Statistics>();
    REQUIRE(statistics.size() == 1);
    REQUIRE(statistics[0].layers.size() == 2);
    REQUIRE(statistics[0].layers[0].values == std::vector<double>{91, 9, 0, 9, 6, 0, 0, 0, 0});
    const auto& second = statistics[0].layers[1].values;
    REQUIRE(second[0] == 3);
    REQUIRE_FALSE(std::isfinite(second[1]));
    REQUIRE_FALSE(std::isfinite(second[3]));
  }
  story.Says(CollectStatistics{kJob, 2, {story.By(0, 0)}});  // a round that is not next
  REQUIRE(story.Told<Statistics>().empty());
  story.Says(CollectStatistics{kJob, 1, {story.By(3, 0)}});
  REQUIRE(story.Told<ServerFault>()[0].reason.find("island 3") != std::string::npos);
  story.Says(DropContributions{kJob, {story.By(1, 0)}, "outlier"});
  story.Says(CollectStatistics{kJob, 1, {story.By(0, 0), story.By(1, 0)}});  // late: no fault
  REQUIRE(story.told.empty());
}

TEST_CASE("a round whose push is missing is a fault and changes nothing; a gap is ignored") {
  ServerStory story;
  Begin(story);
  const auto before = story.AllTheta();
  story.Commit(1, {{story.By(0, 0), 1.0}});
  REQUIRE(story.Told<ServerFault>()[0].reason ==
          "round 1 of job job-1: the push of shard 0 by island 0 (generation 1, incarnation 1, "
          "base version 0) is missing");
  story.Commit(7, {});
  story.Sync();
  REQUIRE(story.told.empty());
  REQUIRE(story.AllTheta() == before);
}

TEST_CASE("a pull names its version and gets it, or which one there is") {
  ServerStory story;
  story.Assign();
  REQUIRE(story.refusals[story.Pull(0, 0)].refusal == PullRefusal::kNotYet);
  Begin(story);
  REQUIRE(story.replies[story.Pull(0, 0)].version == 0);
  REQUIRE(story.replies[story.Pull(kNoVersion, 0)].version == 0);
  REQUIRE(story.refusals[story.Pull(1, 0)].refusal == PullRefusal::kNotYet);
  REQUIRE(story.refusals[story.Pull(0, 8)].refusal == PullRefusal::kUnknown);
  story.replies.clear();
  Round(story, 1);
  const Token old = story.Pull(0, 0);
  REQUIRE(story.refusals[old].refusal == PullRefusal::kSuperseded);
  REQUIRE(story.refusals[old].current == 1);
}

TEST_CASE("a reply in flight is not touched by later rounds, and old versions are bounded") {
  ServerStory story;
  Begin(story);
  const auto version0 = story.Theta(0);
  const Token token = story.Pull(0, 0);
  Round(story, 1);
  REQUIRE(std::vector<float>(story.replies[token].values.begin(),
                             story.replies[token].values.end()) == version0);
  REQUIRE(story.Theta(0) != version0);
  // Pullers that never finish: the server stops handing out what it would have to copy.
  Version version = 1;
  bool refused = false;
  for (; version < 30 && !refused; ++version) {
    for (const ShardId shard : {0, 1, 2})
      refused |= story.refusals.contains(story.Pull(version, shard));
    Round(story, version + 1);
  }
  REQUIRE(refused);
  REQUIRE(version < 5);
  story.replies.clear();
  REQUIRE(story.replies.contains(story.Pull(version, 0)));
}

TEST_CASE("after a crash the server is where it was, bit for bit, and says so") {
  ServerStory story, twin;
  Begin(story, 2);
  Begin(twin, 2);
  for (Version version = 1; version <= 7; ++version) {
    Round(story, version);
    Round(twin, version);
    story.Crash();
    REQUIRE(story.version() == version);
    REQUIRE(story.AllTheta() == twin.AllTheta());
  }
  story.PushAll(story.By(0, 7), 3);
  story.Sync();
  story.Push(story.Id(1, 7, 0), {1, 2, 3, 4});  // never synced
  story.told.clear();
  story.Crash();
  const auto hello = story.Told<ServerHello>();
  REQUIRE(hello[0].jobs.size() == 1);
  REQUIRE(hello[0].jobs[0].version == 7);
  REQUIRE(hello[0].jobs[0].staged.size() == 3);
  REQUIRE(story.Answered(story.Push(story.Id(0, 7, 0), {0, 0, 0, 0}), PushStatus::kDuplicate));
  REQUIRE(story.Answered(story.Push(story.Id(0, 3, 0), {0, 0, 0, 0}), PushStatus::kDuplicate));
}

TEST_CASE("the log is cut as far as the previous snapshot allows, so that one may be lost") {
  ServerStory story, twin;
  Begin(story, 2);
  Begin(twin);
  for (Version version = 1; version <= 9; ++version) {
    Round(story, version);
    Round(twin, version);
  }
  REQUIRE(story.log_records() < twin.log_records());
  story.LoseNewestSnapshot();
  story.Crash();
  REQUIRE(story.AllTheta() == twin.AllTheta());
}

TEST_CASE("a_log_of_half_the_state_makes_a_snapshot_however_many_rounds_there_may_be_between") {
  ServerStory story, twin;
  for (ServerStory* s : {&story, &twin}) Begin(*s, 1000);
  story.log_bytes_free = 0;
  story.Crash();
  for (Version version = 1; version <= 6; ++version) {
    Round(story, version);  // of 2 pushes a parameter; the state has 2 tensors
    Round(twin, version);
  }
  REQUIRE(story.log_records() < twin.log_records());
  story.Wait(kHeartbeatInterval);
  REQUIRE(story.Told<ServerHeartbeat>().back().jobs[0].snapshot_version == 6);
  story.LoseNewestSnapshot();
  story.Crash();
  REQUIRE(story.AllTheta() == twin.AllTheta());
}

TEST_CASE("a staged push outlives snapshots: the log is kept for it") {
  ServerStory story, twin;
  Begin(story, 1);
  Begin(twin);
  for (ServerStory* s : {&story, &twin}) s->PushAll(s->By(2, 0), 77);  // late, for a later round
  for (Version version = 1; version <= 4; ++version) {
    Round(story, version);
    Round(twin, version);
  }
  story.Crash();
  for (ServerStory* s : {&story, &twin}) {
    s->Commit(5, {{s->By(2, 0), 1.0}});
    s->Sync();
    REQUIRE(s->version() == 5);
  }
  REQUIRE(story.AllTheta() == twin.AllTheta());
}

TEST_CASE("a full disk is reported: nothing is acknowledged, pulls are served, and pushes resume") {
  ServerStory story;
  Begin(story);
  const Token waiting = story.Push(story.Id(0, 0, 0), {1, 2, 3, 4});
  story.told.clear();
  story.Do(LogFailed{kJob, "/state/job-1/log: no space left on device"});
  REQUIRE(story.Told<ServerFault>()[0].reason.find("no space left") != std::string::npos);
  REQUIRE_FALSE(story.pushes.contains(waiting));
  REQUIRE(story.Answered(story.Push(story.Id(0, 0, 1), {1, 2}), PushStatus::kRefused));
  REQUIRE(story.replies.contains(story.Pull(0, 0)));
  story.Wait(kRetryInterval);
  REQUIRE(story.Told<ServerFault>().size() == 1);
  story.Sync();
  REQUIRE(story.Answered(waiting, PushStatus::kStaged));
  story.Wait(10 * kRetryInterval);
  REQUIRE(story.Told<ServerFault>().empty());
  story.Push(story.Id(0, 0, 1), {1, 2});
  story.Sync();
  REQUIRE(story.Told<PushStaged>().size() == 1);
}

TEST_CASE("a failed snapshot is reported and retried") {
  ServerStory story;
  Begin(story, 1);
  story.PushAll(story.By(0, 0), 4);
  story.Sync();
  story.Commit(1, {{story.By(0, 0), 1.0}});
  story.told.clear();
  story.Do(LogSynced{kJob, story.log_records()});
  REQUIRE(story.version() == 1);
  story.Do(SnapshotDone{kJob, 1, absl::ResourceExhaustedError("no space left on device")});
  REQUIRE(story.Told<ServerFault>()[0].reason == "snapshot of version 1: no space left on device");
  story.told.clear();
  story.Wait(ServerCore::kSnapshotRetry);
  story.FinishSnapshots();
  story.Wait(kHeartbeatInterval);
  REQUIRE(story.Told<ServerHeartbeat>().back().jobs[0].snapshot_version == 1);
}

TEST_CASE("an ended job takes no pushes, gives its parameters, and survives restarts") {
  ServerStory story;
  Begin(story, 8);
  Round(story, 1);
  story.PushAll(story.By(0, 1), 3);
  story.Sync();
  story.Commit(2, {{story.By(0, 1), 1.0}});
  story.Says(EndJob{kJob});  // arrives before the round is durable
  REQUIRE(story.version() == 1);
  story.Sync();
  REQUIRE(story.version() == 2);
  const auto final = story.AllTheta();
  for (int life = 0; life < 3; ++life) {
    const Token token = story.Push(story.Id(0, 2, 0), {1, 2, 3, 4});
    REQUIRE(story.pushes[token].reason == "job job-1 has ended");
    REQUIRE(story.replies.contains(story.Pull(2, 0)));
    REQUIRE(story.AllTheta() == final);
    story.Assign({{0, 0, 4}, {1, 0, 2}, {2, 1, 3}}, 8);
    story.told.clear();
    story.Crash();
    REQUIRE(story.Told<ServerHello>()[0].jobs[0].snapshot_version == 2);
  }
}

TEST_CASE("the server repeats hello until it is answered, then heartbeats and unanswered reports") {
  ServerStory story;
  Begin(story);
  story.Push(story.Id(0, 0, 0), {1, 2, 3, 4});
  story.Sync();
  REQUIRE(story.Told<PushStaged>().size() == 1);
  story.Wait(kRetryInterval);
  auto told = std::exchange(story.told, {});
  REQUIRE(told.size() == 2);
  REQUIRE(std::get<ServerHeartbeat>(told[0]).staged_bytes == 16);
  REQUIRE(std::get<PushStaged>(told[1]).push == story.Id(0, 0, 0));
  story.Says(CollectStatistics{kJob, 1, {}});
  story.Says(DropContributions{kJob, {story.By(0, 0)}, "test"});
  story.told.clear();
  story.Wait(100 * kRetryInterval);
  REQUIRE(story.Told<PushStaged>().empty());

  story.Do(ConnectionDown{});
  story.Wait(100 * kRetryInterval);
  REQUIRE(story.told.empty());
  story.Do(ConnectionUp{});
  story.Wait(kRetryInterval);
  REQUIRE(story.Told<ServerHello>().size() == 2);
  story.Says(Welcome{});
  story.Wait(kHeartbeatInterval);
  told = std::exchange(story.told, {});
  REQUIRE(told.size() == 1);
  REQUIRE(std::holds_alternative<ServerHeartbeat>(told[0]));
  story.Says(Refused{"the name is taken", true});
  REQUIRE(story.stopped == "the name is taken");
}

}  // namespace
}  // namespace atl::ps
