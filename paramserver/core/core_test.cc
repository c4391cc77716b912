#include "paramserver/core/core.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "common/trust/signed_push.h"
#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a push is acknowledged, to worker and coordinator, when it is durable and not before") {
  ServerFixture fixture;
  fixture.Assign();
  REQUIRE(fixture.TakeSent<ShardsAssigned>().size() == 1);
  const Token token = fixture.Push(fixture.Id(0, -1, 0), {1, 2, 3, 4});
  REQUIRE_FALSE(fixture.pushes.contains(token));
  REQUIRE(fixture.TakeSent<PushStaged>().empty());
  fixture.Sync();
  REQUIRE(fixture.Answered(token, PushStatus::kStaged));
  const auto staged = fixture.TakeSent<PushStaged>();
  REQUIRE(staged.size() == 1);
  REQUIRE(staged[0].push == fixture.Id(0, -1, 0));
}

TEST_CASE("version 0 is the initial weights, as pushed") {
  ServerFixture fixture;
  fixture.Assign({{0, 0, 4}});
  fixture.Push(fixture.Id(0, -1, 0), {1.5f, -2, 0, 1e-30f});
  fixture.Sync();
  fixture.Commit(0, {{kInitial, 1.0}});
  REQUIRE(fixture.version() == kNoVersion);  // not before its record is durable
  fixture.Sync();
  REQUIRE(fixture.version() == 0);
  REQUIRE(fixture.Theta(0) == std::vector<float>{1.5f, -2, 0, 1e-30f});
  REQUIRE(fixture.TakeSent<RoundApplied>().size() == 1);
}

TEST_CASE("rounds are Nesterov steps on the weighted sum of the pseudo-gradients") {
  ServerFixture fixture;
  fixture.Assign({{0, 0, 1}});
  fixture.Push(fixture.Id(0, -1, 0), {10});
  fixture.Apply(0, {{kInitial, 1.0}});
  double theta = 10, velocity = 0;
  for (Version version = 1; version <= 5; ++version) {
    const float a = 1.0f * static_cast<float>(version), b = -3;
    fixture.Push(fixture.Id(0, version - 1, 0), {a});
    fixture.Push(fixture.Id(1, version - 1, 0), {b});
    fixture.Apply(version,
                  {{fixture.By(0, version - 1), 0.75}, {fixture.By(1, version - 1), 0.25}});
    const double g = 0.75 * a + 0.25 * b;
    velocity = 0.9 * velocity + g;
    theta -= 0.5 * (g + 0.9 * velocity);
    REQUIRE(fixture.Theta(0)[0] == Approx(theta).margin(1e-5));
  }
}

TEST_CASE("running_statistics_step_to_the_mean_and_count_in_no_norm") {
  ServerFixture fixture;
  AssignShards assign{kJob, {{0, 0, 1, 0}, {1, 0, 1, 1}}, 0.5, 0.9, 0};
  assign.definition.facts.layers = {{"block.0", 2, 1}};
  assign.definition.spec.outer = fixture.outer;
  fixture.DeliverMessage(assign);
  for (const ShardId shard : {0, 1}) fixture.Push(fixture.Id(0, -1, shard), {10});
  fixture.Apply(0, {{kInitial, 1.0}});
  double statistic = 10;
  for (Version version = 1; version <= 3; ++version) {
    for (const ShardId shard : {0, 1}) {
      fixture.Push(fixture.Id(0, version - 1, shard), {2});
      fixture.Push(fixture.Id(1, version - 1, shard), {-6});
    }
    fixture.Sync();
    fixture.DeliverMessage(
        CollectStatistics{kJob, version, {fixture.By(0, version - 1), fixture.By(1, version - 1)}});
    REQUIRE(fixture.TakeSent<Statistics>().back().layers[0].values ==
            std::vector<double>{4, -12, 0, -12, 36, 0, 0, 0, 0});
    // Clipped to a tenth: the mean is the same.
    fixture.Commit(version,
                   {{fixture.By(0, version - 1), 0.075}, {fixture.By(1, version - 1), 0.025}});
    fixture.Sync();
    statistic -= 0.75 * 2 + 0.25 * -6;
    REQUIRE(fixture.Theta(1)[0] == Approx(statistic).margin(1e-5));
  }
}

TEST_CASE("as_many_contributions_as_a_round_may_have_are_applied_with_one_matrix_of_statistics") {
  constexpr auto kMany = static_cast<IslandId>(kMaxContributions);
  ServerFixture fixture(int64_t{16} << 20);
  fixture.Begin();
  std::vector<ContributionId> contributions;
  std::vector<RoundTerm> terms;
  for (IslandId island = 0; island < kMany; ++island) {
    const auto x = static_cast<float>(island % 7);
    fixture.Push(fixture.Id(island, 0, 0), {x, 0, 0, 0});
    fixture.Push(fixture.Id(island, 0, 1), {0, x});
    fixture.Push(fixture.Id(island, 0, 2), {0, 1, 0});
    contributions.push_back(fixture.By(island, 0));
    terms.push_back({contributions.back(), 1.0 / static_cast<double>(kMany)});
  }
  fixture.Sync();
  fixture.DeliverMessage(CollectStatistics{kJob, 1, contributions});
  const Statistics statistics = fixture.TakeSent<Statistics>().back();
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
  fixture.Commit(1, terms);
  fixture.Sync();
  CHECK(fixture.version() == 1);
}

TEST_CASE("the same push again changes nothing: pending, staged, applied or dropped") {
  ServerFixture fixture;
  fixture.Begin();
  const PushId id = fixture.Id(1, 0, 2);
  const Token first = fixture.Push(id, {1, 2, 3});
  const Token pending = fixture.Push(id, {7, 7, 7});
  REQUIRE(fixture.pushes.count(pending) == 0);
  fixture.Sync();
  REQUIRE(fixture.Answered(first, PushStatus::kStaged));
  REQUIRE(fixture.Answered(pending, PushStatus::kStaged));
  const size_t records = fixture.log_records();
  REQUIRE(fixture.Answered(fixture.Push(id, {7, 7, 7}), PushStatus::kDuplicate));

  fixture.DeliverMessage(DropContributions{kJob, {fixture.By(1, 0)}, "island 1 died"});
  REQUIRE(fixture.Answered(fixture.Push(id, {7, 7, 7}), PushStatus::kDuplicate));
  fixture.DeliverMessage(DropContributions{kJob, {fixture.By(1, 0)}, "said again"});
  REQUIRE(fixture.log_records() == records + 1);

  fixture.PushAll(fixture.By(0, 0), 5);
  fixture.Apply(1, {{fixture.By(0, 0), 1.0}});
  const auto after = fixture.AllTheta();
  REQUIRE(
      fixture.Answered(fixture.Push(fixture.Id(0, 0, 0), {1, 2, 3, 4}), PushStatus::kDuplicate));
  fixture.Commit(1, {{fixture.By(0, 0), 1.0}});  // a repeated decision
  fixture.Sync();
  REQUIRE(fixture.AllTheta() == after);
  REQUIRE(fixture.version() == 1);
}

TEST_CASE("long decided contributions are still recognised when their exact ids are forgotten") {
  ServerFixture fixture;
  fixture.Begin();
  for (Version base = 0; base < 3 * kDecidedKept; ++base) {
    fixture.DeliverMessage(DropContributions{kJob, {fixture.By(1, base)}, "test"});
  }
  for (Version base = 0; base < 3 * kDecidedKept; ++base) {
    REQUIRE(
        fixture.Answered(fixture.Push(fixture.Id(1, base, 2), {1, 2, 3}), PushStatus::kDuplicate));
  }
  fixture.Push(fixture.Id(1, 3 * kDecidedKept, 2), {1, 2, 3});
  fixture.Sync();
  REQUIRE(fixture.TakeSent<PushStaged>().size() == 1);
}

TEST_CASE("what does not fit is refused with the reason") {
  ServerFixture fixture(72 + 36 +
                        8);  // parameters, one pseudo-gradient, and half a pseudo-gradient more
  const auto reason = [&](const PushId& id, std::vector<float> values) {
    const Token token = fixture.Push(id, values);
    REQUIRE(fixture.Answered(token, PushStatus::kRefused));
    return fixture.pushes[token].reason;
  };
  REQUIRE(reason(fixture.Id(0, -1, 0), {1}) == "job job-1 is not assigned to this server");
  fixture.Assign();
  REQUIRE(reason(fixture.Id(0, -1, 9), {1}) == "shard 9 of job job-1 is not on this server");
  REQUIRE(reason(fixture.Id(0, -1, 0), {1}) == "shard 0 of job job-1 has 4 elements, the push 1");
  fixture.DeliverMessage(FenceIslands{kJob, {{0, 2, 1}}});
  REQUIRE(reason(fixture.Id(0, -1, 0), {1, 2, 3, 4}) ==
          "island 0 of job job-1 is at generation 2, incarnation 1 now; the push is of generation "
          "1, incarnation 1");
  fixture.DeliverMessage(FenceIslands{kJob, {{0, 1, 9}}});  // fences never fall
  REQUIRE(reason(fixture.Id(0, -1, 0), {1, 2, 3, 4}).find("generation 2") != std::string::npos);

  const auto admit = [&](IslandId island, ShardId shard, int64_t elements) {
    return fixture.gate().Admit(fixture.Id(island, -1, shard), Encoding::kFloat32, elements);
  };
  REQUIRE(admit(1, 0, 4).ok());
  REQUIRE(admit(1, 0, 5).code() == absl::StatusCode::kFailedPrecondition);
  fixture.PushAll(fixture.By(1, -1), 1);
  REQUIRE(reason(fixture.Id(2, -1, 2), {1, 2, 3}) ==
          "no room for 12 more staged bytes: 36 of 44 are in use; raise --memory-bytes");
  REQUIRE(admit(2, 2, 3).code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(admit(1, 0, 4).ok());  // not durable yet: it may wait
  fixture.Sync();
  REQUIRE(admit(1, 0, 4).code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("a_push_with_numbers_that_no_log_can_hold_is_refused") {
  ServerFixture fixture;
  fixture.Assign();
  const auto admit = [&](const auto& change) {
    PushId id = fixture.Id(0, -1, 0);
    change(id);
    return fixture.gate().Admit(id, Encoding::kFloat32, 4).code();
  };
  const auto refused = absl::StatusCode::kFailedPrecondition;
  CHECK(admit([](PushId&) {}) == absl::StatusCode::kOk);
  CHECK(admit([](PushId& id) { id.island = -1; }) == refused);
  CHECK(admit([](PushId& id) { id.generation = -1; }) == refused);
  CHECK(admit([](PushId& id) { id.generation = std::numeric_limits<int64_t>::max(); }) == refused);
  CHECK(admit([](PushId& id) { id.incarnation = -1; }) == refused);
  CHECK(admit([](PushId& id) { id.begin = -1; }) == refused);  // of a whole shard
  CHECK(admit([](PushId& id) { id.begin = 4; }) == refused);
  CHECK(admit([](PushId& id) { id.base_version = std::numeric_limits<int64_t>::max(); }) ==
        refused);
}

TEST_CASE("quantised pushes take the room of their bytes and count as what they decode to") {
  const Encoding encoding = GENERATE(Encoding::kInt8, Encoding::kInt4, Encoding::kE3m0);
  const int64_t n = 1000, bytes = EncodedBytes(encoding, n);
  ServerFixture fixture(8 * n + 4 * n + 2 * bytes);
  fixture.Assign({{0, 0, n}});
  std::vector<float> weights(n), values(n), decoded(n);
  Rng rng(1);
  for (float& x : weights) x = static_cast<float>(rng.Normal());
  for (float& x : values) x = static_cast<float>(rng.Normal());
  fixture.Push(fixture.Id(0, -1, 0), weights);
  fixture.Apply(0, {{fixture.By(0, -1), 1.0}});

  const SharedBytes good = Quantized(encoding, values);
  std::vector<std::byte> bad(good.bytes.begin(), good.bytes.end());
  const float scale = -1;
  std::memcpy(bad.data() + EncodedBytes(encoding, 512), &scale, sizeof(scale));
  const auto reason = [&](int64_t elements, SharedBytes payload) {
    const Token token = fixture.Push(fixture.Id(0, 0, 0), encoding, elements, std::move(payload));
    REQUIRE(fixture.Answered(token, PushStatus::kRefused));
    return fixture.pushes[token].reason;
  };
  REQUIRE(reason(n, {nullptr, bad}).find("block 2 has the scale -1") == 0);
  REQUIRE(reason(n, {nullptr, std::span(bad).first(bytes - 1)}) ==
          absl::StrCat("1000 elements are not ", bytes - 1, " bytes so encoded"));
  REQUIRE(reason(999, good) == "shard 0 of job job-1 has 1000 elements, the push 999");

  fixture.Push(fixture.Id(0, 0, 0), encoding, n, good);
  fixture.Push(fixture.Id(1, 0, 0), encoding, n, good);
  fixture.Sync();
  fixture.Crash();  // they come back from the log as they were
  fixture.DeliverMessage(Welcome{});
  fixture.sent.clear();
  fixture.DeliverMessage(CollectStatistics{kJob, 1, {fixture.By(0, 0)}});
  ThreadPool pool(1);
  DecodeDelta({good.bytes.data(), encoding, n}, decoded, pool);
  double square = 0;
  for (const float x : decoded) square += double{x} * x;
  REQUIRE(fixture.TakeSent<Statistics>().at(0).layers.at(0).values.at(0) ==
          Approx(square).epsilon(1e-12));
  fixture.Commit(1, {{fixture.By(0, 0), 1.0}});
  fixture.Sync();
  const std::vector<float> theta = fixture.core().Parameters(kJob, 0);
  for (int64_t i = 0; i < n; ++i) {
    REQUIRE(theta[i] == Approx(weights[i] - 0.5f * 1.9f * decoded[i]).margin(1e-5));
  }
}

TEST_CASE("an assignment that cannot be held is a fault, not a crash") {
  ServerFixture fixture(1000);
  const auto fault = [&](AssignShards assignment) {
    assignment.definition.spec.outer = fixture.outer;
    fixture.DeliverMessage(assignment);
    const auto faults = fixture.TakeSent<ServerFault>();
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
  fixture.Assign();
  fixture.Assign();  // said again
  REQUIRE(fixture.TakeSent<ShardsAssigned>().size() == 2);
  REQUIRE(fixture.log_records() == 1);
  fixture.PushAll(kInitial, 1);
  REQUIRE(fault({kJob, {{0, 0, 4}, {7, 2, 4}}, 0.5, 0.9, 0}).find("was not received") !=
          std::string::npos);
}

TEST_CASE("old coordinators, other incarnations and other servers are not followed") {
  ServerFixture fixture;
  fixture.epoch = 5;
  fixture.Assign();
  fixture.epoch = 4;
  fixture.DeliverMessage(EndJob{kJob});
  fixture.epoch = 5;
  fixture.Do(FromCoordinator{{"ps-2", 1, 5, EndJob{kJob}}});
  fixture.Do(FromCoordinator{{"ps-1", 2, 5, EndJob{kJob}}});
  const Token token = fixture.Push(fixture.Id(0, -1, 0), {1, 2, 3, 4});
  fixture.Sync();
  REQUIRE(fixture.Answered(token, PushStatus::kStaged));
  fixture.Crash();  // the epoch is remembered
  fixture.epoch = 4;
  fixture.DeliverMessage(EndJob{kJob});
  fixture.sent.clear();
  fixture.epoch = 5;
  fixture.DeliverMessage(Welcome{});
  REQUIRE(fixture.Push(fixture.Id(0, -1, 1), {1, 2}) > 0);
  fixture.Sync();
  REQUIRE(fixture.TakeSent<PushStaged>().size() == 1);
}

TEST_CASE("statistics_name_contributions_of_which_something_else_is_staged_than_was_digested") {
  ServerFixture fixture;
  fixture.Begin();
  for (const IslandId island : {0, 1, 2}) {
    fixture.Push(fixture.Id(island, 0, 0), {1, 2, 3, 4});
    fixture.Push(fixture.Id(island, 0, 1), {5, 6});
    fixture.Push(fixture.Id(island, 0, 2), {1, 1, 1});
  }
  fixture.Sync();
  fixture.sent.clear();
  const auto part = [](ShardId shard, int64_t begin, const std::vector<float>& values) {
    return PartDigest{shard, begin, std::ssize(values),
                      DigestPart(Encoding::kFloat32, std::as_bytes(std::span(values)))};
  };
  CollectStatistics request{kJob, 1, {fixture.By(0, 0), fixture.By(1, 0), fixture.By(2, 0)}};
  // Parts are cut as their senders cut them. Of the third nothing is said.
  request.parts = {{fixture.By(0, 0), {part(0, 0, {1}), part(0, 1, {2, 3, 4}), part(1, 0, {5, 6})}},
                   {fixture.By(1, 0), {part(0, 0, {1, 2, 3, 4}), part(2, 0, {1, 1, 2})}}};
  std::vector<ContributionId> unfit = {fixture.By(1, 0)};
  SECTION("bytes") {}
  SECTION("more_than_the_shard_has") {
    request.parts[1].parts = {{2, 2, int64_t{1} << 42, std::string(32, 'x')}};
  }
  SECTION("of_another_contribution") {  // a coordinator that is wrong ends no server
    request.parts[1] = {fixture.By(7, 0), {part(0, 0, {1, 2, 3, 4})}};
    unfit = {fixture.By(7, 0)};
  }
  fixture.DeliverMessage(request);
  const auto statistics = fixture.TakeSent<Statistics>();
  REQUIRE(statistics.size() == 1);
  CHECK(statistics[0].unfit == unfit);
  CHECK(statistics[0].layers.size() == 2);
}

TEST_CASE("statistics are the inner products per layer, and name what is not finite") {
  ServerFixture fixture;
  fixture.Begin();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  fixture.Push(fixture.Id(0, 0, 0), {1, 2, 3, 4});
  fixture.Push(fixture.Id(0, 0, 1), {5, 6});
  fixture.Push(fixture.Id(0, 0, 2), {1, 1, 1});
  fixture.Push(fixture.Id(1, 0, 0), {1, 0, 0, -1});
  fixture.Push(fixture.Id(1, 0, 1), {0, 2});
  fixture.Push(fixture.Id(1, 0, 2), {nan, 0, 0});
  fixture.Sync();
  fixture.sent.clear();
  for (int again = 0; again < 2; ++again) {
    fixture.DeliverMessage(CollectStatistics{kJob, 1, {fixture.By(0, 0), fixture.By(1, 0)}});
    const auto statistics = fixture.TakeSent<Statistics>();
    REQUIRE(statistics.size() == 1);
    REQUIRE(statistics[0].layers.size() == 2);
    REQUIRE(statistics[0].layers[0].values == std::vector<double>{91, 9, 0, 9, 6, 0, 0, 0, 0});
    const auto& second = statistics[0].layers[1].values;
    REQUIRE(second[0] == 3);
    REQUIRE_FALSE(std::isfinite(second[1]));
    REQUIRE_FALSE(std::isfinite(second[3]));
  }
  fixture.DeliverMessage(
      CollectStatistics{kJob, 2, {fixture.By(0, 0)}});  // a round that is not next
  REQUIRE(fixture.TakeSent<Statistics>().empty());
  fixture.DeliverMessage(CollectStatistics{kJob, 1, {fixture.By(3, 0)}});
  REQUIRE(fixture.TakeSent<ServerFault>()[0].reason.find("island 3") != std::string::npos);
  fixture.DeliverMessage(DropContributions{kJob, {fixture.By(1, 0)}, "outlier"});
  fixture.DeliverMessage(
      CollectStatistics{kJob, 1, {fixture.By(0, 0), fixture.By(1, 0)}});  // late: no fault
  REQUIRE(fixture.sent.empty());
}

TEST_CASE("a round whose push is missing is a fault and changes nothing; a gap is ignored") {
  ServerFixture fixture;
  fixture.Begin();
  const auto before = fixture.AllTheta();
  fixture.Commit(1, {{fixture.By(0, 0), 1.0}});
  REQUIRE(fixture.TakeSent<ServerFault>()[0].reason ==
          "round 1 of job job-1: the push of shard 0 by island 0 (generation 1, incarnation 1, "
          "base version 0) is missing");
  fixture.Commit(7, {});
  fixture.Sync();
  REQUIRE(fixture.sent.empty());
  REQUIRE(fixture.AllTheta() == before);
}

TEST_CASE("a pull names its version and gets it, or which one there is") {
  ServerFixture fixture;
  fixture.Assign();
  REQUIRE(fixture.refusals[fixture.Pull(0, 0)].refusal == PullRefusal::kNotYet);
  fixture.Begin();
  REQUIRE(fixture.replies[fixture.Pull(0, 0)].version == 0);
  REQUIRE(fixture.replies[fixture.Pull(kNoVersion, 0)].version == 0);
  REQUIRE(fixture.refusals[fixture.Pull(1, 0)].refusal == PullRefusal::kNotYet);
  REQUIRE(fixture.refusals[fixture.Pull(0, 8)].refusal == PullRefusal::kUnknown);
  fixture.replies.clear();
  fixture.Round(1);
  const Token old = fixture.Pull(0, 0);
  REQUIRE(fixture.refusals[old].refusal == PullRefusal::kSuperseded);
  REQUIRE(fixture.refusals[old].current == 1);
}

TEST_CASE("a reply in flight is not touched by later rounds, and old versions are bounded") {
  ServerFixture fixture;
  fixture.Begin();
  const auto version0 = fixture.Theta(0);
  const Token token = fixture.Pull(0, 0);
  fixture.Round(1);
  REQUIRE(std::vector<float>(fixture.replies[token].values.begin(),
                             fixture.replies[token].values.end()) == version0);
  REQUIRE(fixture.Theta(0) != version0);
  // Pullers that never finish: the server stops handing out what it would have to copy.
  Version version = 1;
  bool refused = false;
  for (; version < 30 && !refused; ++version) {
    for (const ShardId shard : {0, 1, 2})
      refused |= fixture.refusals.contains(fixture.Pull(version, shard));
    fixture.Round(version + 1);
  }
  REQUIRE(refused);
  REQUIRE(version < 5);
  fixture.replies.clear();
  REQUIRE(fixture.replies.contains(fixture.Pull(version, 0)));
}

TEST_CASE("an ended job takes no pushes, gives its parameters, and survives restarts") {
  ServerFixture fixture;
  fixture.Begin(8);
  fixture.Round(1);
  fixture.PushAll(fixture.By(0, 1), 3);
  fixture.Sync();
  fixture.Commit(2, {{fixture.By(0, 1), 1.0}});
  fixture.DeliverMessage(EndJob{kJob});  // arrives before the round is durable
  REQUIRE(fixture.version() == 1);
  fixture.Sync();
  REQUIRE(fixture.version() == 2);
  const auto final = fixture.AllTheta();
  for (int run = 0; run < 3; ++run) {
    const Token token = fixture.Push(fixture.Id(0, 2, 0), {1, 2, 3, 4});
    REQUIRE(fixture.pushes[token].reason == "job job-1 has ended");
    REQUIRE(fixture.replies.contains(fixture.Pull(2, 0)));
    REQUIRE(fixture.AllTheta() == final);
    fixture.Assign({{0, 0, 4}, {1, 0, 2}, {2, 1, 3}}, 8);
    fixture.sent.clear();
    fixture.Crash();
    REQUIRE(fixture.TakeSent<ServerHello>()[0].jobs[0].snapshot_version == 2);
  }
}

TEST_CASE("the server repeats hello until it is answered, then heartbeats and unanswered reports") {
  ServerFixture fixture;
  fixture.Begin();
  fixture.Push(fixture.Id(0, 0, 0), {1, 2, 3, 4});
  fixture.Sync();
  REQUIRE(fixture.TakeSent<PushStaged>().size() == 1);
  fixture.Wait(kRetryInterval);
  auto sent = std::exchange(fixture.sent, {});
  REQUIRE(sent.size() == 2);
  REQUIRE(std::get<ServerHeartbeat>(sent[0]).staged_bytes == 16);
  REQUIRE(std::get<PushStaged>(sent[1]).push == fixture.Id(0, 0, 0));
  fixture.DeliverMessage(CollectStatistics{kJob, 1, {}});
  fixture.DeliverMessage(DropContributions{kJob, {fixture.By(0, 0)}, "test"});
  fixture.sent.clear();
  fixture.Wait(100 * kRetryInterval);
  REQUIRE(fixture.TakeSent<PushStaged>().empty());

  fixture.Do(ConnectionDown{});
  fixture.Wait(100 * kRetryInterval);
  REQUIRE(fixture.sent.empty());
  fixture.Do(ConnectionUp{});
  fixture.Wait(kRetryInterval);
  REQUIRE(fixture.TakeSent<ServerHello>().size() == 2);
  fixture.DeliverMessage(Welcome{});
  fixture.Wait(kHeartbeatInterval);
  sent = std::exchange(fixture.sent, {});
  REQUIRE(sent.size() == 1);
  REQUIRE(std::holds_alternative<ServerHeartbeat>(sent[0]));
  fixture.DeliverMessage(Refused{"the name is taken", true});
  REQUIRE(fixture.stopped == "the name is taken");
}

}  // namespace
}  // namespace atl::ps
