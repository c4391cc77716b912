#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/protocol/wire.h"
#include "paramserver/core/testing/server_fixture.h"
#include "paramserver/storage/codec.h"
#include "proto/control.pb.h"
#include "tests/fuzz/cores/cores.h"
#include "tests/fuzz/cores/extremes.h"

namespace atl::fuzz {
namespace {

using ps::ServerFixture;

constexpr int64_t kMessagesOfServer = 200;

AssignShards MakeAssignment(const JobId& job) {
  AssignShards assign{job, {{0, 0, 4, 0}, {1, 0, 2, 4}, {2, 1, 3, 0}}, 0.5, 0.9, 2};
  assign.definition.facts.layers = {{"a", 6}, {"b", 3}};
  assign.definition.spec.outer.optimizer = "nesterov";
  return assign;
}

std::vector<v1::ToServer> MakeMessages() {
  const ContributionId first{0, 1, 1, kNoVersion}, next{0, 4, 1, 0};
  JobImage image;
  image.round = 2;
  image.tokens = image.tokens_committed = 40;
  image.committed = {{0, 4}};
  image.islands = {{0, "w1", 1, 0, 40, {{{1, 0.5, 0.1, 0}}, {1, 2}}}};
  ReceiveShards receive{ps::kJob, 1, 0, {{{3, 1, 3, 3}, "tcp://127.0.0.1:2", "", false}}};
  receive.newest = {ps::kJob, 0, {{first, 1.0}}, {}, image};
  receive.decided = {first};
  std::vector<ToServerMessage> kinds = {
      Welcome{},
      Refused{"no", false},
      MakeAssignment(ps::kJob),
      MakeAssignment("job-2"),
      FenceIslands{ps::kJob, {{0, 4, 1}}},
      CollectStatistics{ps::kJob, 1, {next}},
      CommitRound{ps::kJob, 0, {{first, 1.0}}, {}},
      CommitRound{ps::kJob, 1, {{next, 1.0}}, {}, image},
      DropContributions{ps::kJob, {next}, "it is late"},
      EndJob{ps::kJob},
      RemoveJob{"job-2"},
      DescribeJob{ps::kJob},
      receive,
      FetchBase{ps::kJob, "job-9", 0, {{{0, 0, 4, 0}, "tcp://127.0.0.1:2", "", false}}},
      PushContribution{ps::kJob,
                       1,
                       "job-9",
                       next,
                       {{{0, 0, 4, 0}, "tcp://127.0.0.1:2", "", false}},
                       {{0, 0, 0, ""}}}};
  std::vector<v1::ToServer> messages;
  for (ToServerMessage& kind : kinds) {
    const ToServer message{"ps-1", 1, 1, std::move(kind), "", 0};
    ATOLL_CHECK(Encode(message, &messages.emplace_back()).ok());
  }
  return messages;
}

// Checks that every record of the log can be read again, as it was.
void CheckRecords(const ServerFixture& fixture) {
  fixture.ForEachRecord([](const ps::LogRecord& record) {
    const auto bytes = ps::EncodeRecord(record);
    ATOLL_CHECK(bytes.ok(), bytes.status().message());
    ps::SharedBytes payload;
    if (const auto* push = std::get_if<ps::PushedRecord>(&record)) payload = push->payload;
    if (const auto* part = std::get_if<ps::ReceivedRecord>(&record)) payload = part->payload;
    const auto read = ps::DecodeRecord(*bytes, payload);
    ATOLL_CHECK(read.ok(), read.status().message());
  });
}

int64_t LinkNumber(Rng& rng) {
  static const int64_t kNumbers[] = {0,
                                     0,
                                     0,
                                     1,
                                     1,
                                     2,
                                     4,
                                     -1,
                                     std::numeric_limits<int64_t>::max(),
                                     std::numeric_limits<int64_t>::min()};
  return kNumbers[rng.Below(std::size(kNumbers))];
}

// Messages of workers over the tensor link, which takes what the gate admits.
void DoLink(ServerFixture& fixture, Rng& rng) {
  const auto shard = static_cast<ShardId>(rng.Below(5)) - 1;
  if (rng.Chance(0.4)) {
    fixture.Do(ps::PullArrived{ps::kJob, LinkNumber(rng), shard, rng.Next(), LinkNumber(rng),
                               LinkNumber(rng), static_cast<int32_t>(rng.Below(8)) - 3});
    return;
  }
  PushId id{ps::kJob,        static_cast<IslandId>(rng.Below(3)) - 1,
            LinkNumber(rng), LinkNumber(rng),
            LinkNumber(rng), shard,
            LinkNumber(rng), LinkNumber(rng)};
  if (rng.Chance(0.5)) id = ServerFixture::Id(0, rng.Chance(0.5) ? kNoVersion : 0, shard);
  const auto elements = static_cast<int64_t>(rng.Below(6));
  if (rng.Chance(0.9) && !fixture.gate().Admit(id, Encoding::kFloat32, elements).ok()) return;
  std::vector<float> values(static_cast<size_t>(elements), 1);
  if (!values.empty() && rng.Chance(0.2)) values[0] = std::numeric_limits<float>::quiet_NaN();
  fixture.Push(id, values);
}

void Begin(ServerFixture& fixture, Rng& rng) {
  fixture.DeliverMessage(MakeAssignment(ps::kJob));
  const ContributionId first = ServerFixture::By(0, kNoVersion);
  if (rng.Chance(0.2)) return;
  fixture.PushAll(first, 1);
  fixture.Sync();
  fixture.Commit(0, {{first, 1.0}});
  fixture.Sync();
  fixture.DeliverMessage(FenceIslands{ps::kJob, {{0, 4, 1}}});
  if (rng.Chance(0.3)) return;
  fixture.PushAll({0, 4, 1, 0}, 2);
  fixture.Sync();
}

}  // namespace

Tried TryParameterServer(uint64_t seed, int64_t messages) {
  Tried tried;
  Extremes extremes(seed);
  Rng& rng = extremes.rng();
  const std::vector<v1::ToServer> kinds = MakeMessages();
  for (const v1::ToServer& kind : kinds) extremes.Learn(kind);
  while (tried.messages < messages) {
    ServerFixture fixture;
    Begin(fixture, rng);
    const int64_t most = std::min(messages, tried.messages + kMessagesOfServer);
    while (tried.messages < most && !fixture.stopped) {
      ++tried.messages;
      v1::ToServer wire = kinds[rng.Below(kinds.size())];
      extremes.Change(&wire);
      const auto message = Decode(&wire);
      if (message.ok()) {
        ++tried.taken;
        fixture.DeliverMessage(message->message);
      }
      DoLink(fixture, rng);
      fixture.sent.clear();
      fixture.forwards.clear();
      if (rng.Chance(0.5)) fixture.Sync();
      if (rng.Chance(0.1)) fixture.Wait(std::chrono::seconds(11));
      CheckRecords(fixture);
      fixture.CheckRestart();
      if (rng.Chance(0.02)) fixture.Crash();
    }
  }
  return tried;
}

}  // namespace atl::fuzz
