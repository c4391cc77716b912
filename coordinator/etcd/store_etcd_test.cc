// The etcd store's part beyond every store: one of several coordinators owns it, nothing is written
// by one that does not lead any more, and damage is named.

#include "coordinator/etcd/store_etcd.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/event_loop.h"
#include "common/trust/authority.h"
#include "coordinator/etcd/stored.h"
#include "coordinator/etcd/testing/etcd_server.h"
#include "coordinator/store_testing.h"
#include "coordinator/trust/access_control.h"
#include "coordinator/wire.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

EtcdServer& Server() {
  static EtcdServer server;
  return server;
}

EtcdClient::GoOn Long() {
  return [until = SteadyNow() + testing::kHangLimit] { return SteadyNow() < until; };
}

// A cluster's keys, as several coordinators and a person with etcdctl see them.
class Keys {
 public:
  explicit Keys(EtcdServer& server = Server(), const TlsOptions& tls = {})
      : tls_(tls),
        url(server.FreshUrl()),
        prefix(ParseEtcdAddress(url)->prefix),
        client_(EtcdClient::Open({server.endpoint()}, tls).value()) {}

  absl::StatusOr<std::unique_ptr<Store>> TryOpen(
      const std::string& address = "127.0.0.1:7000",
      const std::function<bool()>& stop = [] { return false; }) {
    EtcdStoreOptions options;
    options.url = url;
    options.tls = tls_;
    options.self.set_address(address);
    options.lease_s = lease_s;
    return OpenEtcdStore(options, stop,
                         [&](const etcd::Leader& leader) { seen = leader.address(); });
  }
  std::unique_ptr<Store> Open() {
    auto store = TryOpen();
    INFO(store.status().ToString());
    REQUIRE(store.ok());
    return *std::move(store);
  }
  std::string OpenFault() { return std::string(TryOpen().status().message()); }

  // The key that is first below prefix + `folder`.
  std::string First(const std::string& folder) {
    etcdserverpb::RangeRequest request;
    request.set_key(prefix + folder);
    request.set_range_end(ComputePrefixEnd(prefix + folder));
    const auto reply = client_->Range(request, Long()).value();
    REQUIRE(reply.kvs_size() > 0);
    return reply.kvs(0).key();
  }
  std::string Value(const std::string& key) {
    etcdserverpb::RangeRequest request;
    request.set_key(key);
    const auto reply = client_->Range(request, Long()).value();
    return reply.kvs_size() == 0 ? "" : reply.kvs(0).value();
  }
  void Put(const std::string& key, const std::string& value) {
    etcdserverpb::TxnRequest request;
    request.add_success()->mutable_request_put()->set_key(key);
    request.mutable_success(0)->mutable_request_put()->set_value(value);
    REQUIRE(client_->Txn(request, Long()).ok());
  }
  void Erase(const std::string& key) {
    etcdserverpb::TxnRequest request;
    request.add_success()->mutable_request_delete_range()->set_key(key);
    REQUIRE(client_->Txn(request, Long()).ok());
  }

 private:
  const TlsOptions tls_;

 public:
  const std::string url, prefix;
  std::string seen;      // the leader while another one waited
  int64_t lease_s = 60;  // a slow machine renews one of two seconds too late

 private:
  std::unique_ptr<EtcdClient> client_;
};

TEST_CASE("standby_takes_over_what_the_leader_stored_when_that_ends") {
  Keys keys;
  auto first = keys.Open();
  REQUIRE(first->Apply({{EpochRecord{1}}}, 0).ok());
  auto second = std::async(std::launch::async, [&] { return keys.TryOpen("127.0.0.1:7001"); });
  REQUIRE(first->Apply({{EpochRecord{2}}}, 0).ok());
  first.reset();
  auto store = second.get();
  REQUIRE(store.ok());
  CHECK((*store)->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{2}});
  CHECK((*store)->Apply({{EpochRecord{3}}}, 0).ok());
}

TEST_CASE("standby_knows_the_leader_and_can_be_ended") {
  Keys keys;
  const auto first = keys.Open();
  int attempts = 0;
  const auto second = keys.TryOpen("127.0.0.1:7001", [&] { return ++attempts > 3; });
  CHECK(absl::IsCancelled(second.status()));
  CHECK(keys.seen == "127.0.0.1:7000");
}

TEST_CASE("coordinator_that_lost_leadership_writes_nothing_and_gets_an_error") {
  Keys keys;
  auto first = keys.Open();
  std::promise<absl::Status> lost;
  first->WatchOwnership([&](const absl::Status& status) { lost.set_value(status); });
  REQUIRE(first->Apply({{EpochRecord{1}}}, 0).ok());
  keys.Erase(keys.prefix + "/leader");  // as etcd does when the lease ends
  SECTION("before another one leads") {
    CHECK(absl::IsFailedPrecondition(first->Apply({{EpochRecord{2}}}, 0)));
  }
  SECTION("once another one leads") {
    auto second = keys.TryOpen("127.0.0.1:7001").value();
    CHECK(absl::IsFailedPrecondition(first->Apply({{EpochRecord{2}}}, 0)));
    REQUIRE(second->Apply({{EpochRecord{3}}}, 0).ok());
    CHECK(absl::IsFailedPrecondition(first->Apply({{EpochRecord{2}}}, 0)));
    CHECK(second->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{3}});
    CHECK(second->sequence() == 2);
  }
  CHECK(absl::IsFailedPrecondition(lost.get_future().get()));
}

TEST_CASE("leader_whose_etcd_does_not_answer_loses_the_lead_after_its_lease") {
  EtcdServer server;
  Keys keys(server);
  keys.lease_s = kLeaseTtlS;
  auto store = keys.Open();
  std::promise<absl::Status> lost;
  store->WatchOwnership([&](const absl::Status& status) { lost.set_value(status); });
  server.Freeze();
  CHECK(absl::IsFailedPrecondition(store->Apply({{EpochRecord{1}}}, 0)));
  CHECK(absl::IsFailedPrecondition(lost.get_future().get()));
  server.Thaw();
  CHECK(keys.Open()->ReadAll().ok());
}

TEST_CASE("step_survives_a_restart_of_etcd_and_is_stored_once") {
  EtcdServer server;
  Keys keys(server);
  auto store = keys.Open();
  REQUIRE(store->Apply({{EpochRecord{1}}}, 0).ok());
  server.Kill();
  server.Start();
  const auto status = store->Apply({{EpochRecord{2}}}, 0);
  INFO(status.ToString());
  REQUIRE(status.ok());
  CHECK(store->sequence() == 2);
  store.reset();
  store = keys.Open();
  CHECK(store->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{2}});
  CHECK(store->sequence() == 2);
}

TEST_CASE("full_etcd_is_named_with_the_remedy_to_the_leader_and_to_the_next_one") {
  EtcdServer server({}, {"--quota-backend-bytes=16777216"});
  Keys keys(server);
  auto store = keys.Open();
  absl::Status status;
  for (int64_t line = 1; status.ok() && line < 100; ++line) {
    status =
        store->Apply({{EventRecord{line, "a", Severity::kInfo, std::string(1 << 20, 'x')}}}, 0);
  }
  const auto names_remedy = [](const absl::Status& full) {
    INFO(full.ToString());
    CHECK(absl::IsResourceExhausted(full));
    for (const char* words : {"space exceeded", "compact and defragment", "alarm disarm"}) {
      CHECK(full.message().find(words) != absl::string_view::npos);
    }
  };
  names_remedy(status);
  store.reset();
  names_remedy(keys.TryOpen().status());  // no lease is granted
}

// Nothing in it is damaged; members notice, as of an older folder.
TEST_CASE("etcd_that_is_an_older_copy_opens_with_its_older_epoch") {
  EtcdServer server;
  Keys keys(server);
  REQUIRE(keys.Open()->Apply({{EpochRecord{1}}}, 0).ok());
  server.Kill();
  server.KeepCopy();
  server.Start();
  REQUIRE(keys.Open()->Apply({{EpochRecord{2}}}, 0).ok());
  server.Kill();
  server.RestoreCopy();
  server.Start();
  const auto store = keys.Open();
  CHECK(store->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{1}});
  CHECK(store->Apply({{EpochRecord{3}}}, 0).ok());
}

TEST_CASE("damaged_missing_foreign_and_newer_keys_are_refused_by_name") {
  Keys keys;
  REQUIRE(keys.Open()->Apply(Puts(OneOfEach()), 0).ok());
  const std::string epoch = keys.prefix + "/record/epoch", totals = keys.prefix + "/totals";
  SECTION("one byte of a record") {
    std::string value = keys.Value(epoch);
    const size_t at = GENERATE(2, 5, 11);
    value[at] = static_cast<char>(value[at] ^ 0x10);
    keys.Put(epoch, value);
    CHECK(keys.OpenFault().find("the record \"epoch\" fails its checksum") != std::string::npos);
  }
  SECTION("an older value of a record") {
    const std::string older = keys.Value(epoch);
    REQUIRE(keys.Open()->Apply({{EpochRecord{8}}}, 0).ok());
    keys.Put(epoch, older);
    CHECK(absl::IsDataLoss(keys.TryOpen().status()));
  }
  SECTION("a missing record") {
    keys.Erase(epoch);
    CHECK(absl::IsDataLoss(keys.TryOpen().status()));
  }
  SECTION("foreign totals") {
    keys.Put(totals, "\x01");
    CHECK(absl::IsDataLoss(keys.TryOpen().status()));
  }
  SECTION("a newer Atoll's") {
    etcd::Totals newer;
    newer.set_schema_version(kEtcdSchemaVersion + 1);
    keys.Put(totals, newer.SerializeAsString());
    CHECK(absl::IsFailedPrecondition(keys.TryOpen().status()));
  }
  SECTION("a foreign leader") {
    keys.Put(keys.prefix + "/leader", "\x01");
    CHECK(absl::IsDataLoss(keys.TryOpen().status()));
  }
}

TEST_CASE("damaged_line_of_the_log_is_marked_and_stops_nothing_in_etcd") {
  Keys keys;
  REQUIRE(keys.Open()->Apply({{EventRecord{1, "a", Severity::kInfo, "one"}}}, 7).ok());
  const std::string key = keys.First("/log/");
  keys.Put(key, "damaged");
  CHECK(keys.Open()->ReadLog({.job = "a"}, 10).value().empty());
}

// Returns the content of the totals' key after a step.
std::string TotalsBytes(const StoreTotals& totals, int staged_batches) {
  etcd::Totals wire;
  wire.set_schema_version(kEtcdSchemaVersion);
  wire.set_sequence(totals.sequence);
  wire.set_records(totals.records);
  wire.set_digest(totals.digest);
  wire.set_checksum(ComputeChecksum(totals));
  wire.set_staged_batches(staged_batches);
  return wire.SerializeAsString();
}

// The store behaves as if etcd had carried out the first attempt of the step, whose answer was
// lost.
TEST_CASE("step_whose_first_attempt_was_carried_out_is_stored_once") {
  Keys keys;
  auto store = keys.Open();
  REQUIRE(store->Apply({{EpochRecord{1}}}, 0).ok());
  const std::string bytes = *EncodeRecord(EpochRecord{2});
  EtcdOperations operations;
  PutValue(keys.prefix + "/record/", "epoch", bytes, 0, &operations);
  keys.Put(operations[0].request_put().key(), operations[0].request_put().value());
  SECTION("the same step") {
    keys.Put(keys.prefix + "/totals",
             TotalsBytes({2, 1, ComputeRecordChecksum("epoch", bytes)}, 0));
    REQUIRE(store->Apply({{EpochRecord{2}}}, 0).ok());
    REQUIRE(store->Apply({{EpochRecord{3}}}, 0).ok());
    CHECK(store->sequence() == 3);
    store.reset();
    CHECK(keys.Open()->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{3}});
  }
  SECTION("another change, by another process") {
    keys.Put(keys.prefix + "/totals", TotalsBytes({2, 1, 7}, 0));
    CHECK(absl::IsDataLoss(store->Apply({{EpochRecord{2}}}, 0)));
  }
}

// The leader ends between the transaction that makes a large step durable and its batches.
TEST_CASE("large_step_that_was_left_under_way_is_carried_out_by_the_next_leader") {
  Keys keys;
  REQUIRE(keys.Open()->Apply({{EpochRecord{1}}}, 0).ok());
  const StoreRecord next = EpochRecord{2};
  const std::string bytes = *EncodeRecord(next);
  const StoreTotals totals{2, 1, ComputeRecordChecksum("epoch", bytes)};
  EtcdOperations operations;
  PutValue(keys.prefix + "/record/", "epoch", bytes, 0, &operations);
  etcd::Batch batch;
  *batch.add_operations() = operations[0];
  keys.Put(keys.prefix + "/staged/0000000", batch.SerializeAsString());
  SECTION("durable") {
    keys.Put(keys.prefix + "/totals", TotalsBytes(totals, 1));
    const auto store = keys.Open();
    CHECK(store->ReadAll().value() == std::vector<StoreRecord>{next});
    CHECK(store->sequence() == 2);
    CHECK(keys.Value(keys.prefix + "/staged/0000000").empty());
  }
  SECTION("not yet durable") {
    const auto store = keys.Open();
    CHECK(store->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{1}});
    CHECK(store->sequence() == 1);
  }
}

TEST_CASE("registry_of_members_is_the_next_leaders_too") {
  Keys keys;
  Folder folder;
  const std::string one = folder.path + "-1", other = folder.path + "-2";
  REQUIRE(AuthorityFolder(one)
              .Make("0123456789abcdef", {"localhost"}, absl::ToUnixSeconds(absl::Now()))
              .ok());
  std::filesystem::copy(one, other, std::filesystem::copy_options::recursive);
  const Caller person{Identity{Role::kOperator, "me"}};
  v1::CreateTokenRequest request;
  request.set_key_digest(std::string(64, 'a'));
  request.add_roles("worker");
  request.set_uses(1);
  request.set_ttl_s(3600);
  auto first = AccessControl::Open(one, {}, 3600).value();
  auto store = keys.Open();
  REQUIRE(store->Apply({{EpochRecord{1}}}, 0).ok());
  REQUIRE(first->Share(store->registry()).ok());
  const auto made = first->CreateToken(person, request);
  INFO(made.status().ToString());
  REQUIRE(made.ok());
  SECTION("after the one before has ended") {
    store.reset();
    const auto next = keys.Open();
    auto second = AccessControl::Open(other, {}, 3600).value();
    CHECK(second->records().tokens_size() == 0);
    REQUIRE(second->Share(next->registry()).ok());
    REQUIRE(second->records().tokens_size() == 1);
    CHECK(second->records().tokens(0).id() == made->token().id());
    CHECK(next->ReadAll().value().size() == 1);
  }
  SECTION("who has lost the lead changes nothing") {
    keys.Erase(keys.prefix + "/leader");
    CHECK_FALSE(first->DeleteToken(person, made->token().id()).ok());
    CHECK(first->records().tokens_size() == 1);
    const auto next = keys.TryOpen("127.0.0.1:7001").value();
    auto second = AccessControl::Open(other, {}, 3600).value();
    REQUIRE(second->Share(next->registry()).ok());
    CHECK(second->records().tokens_size() == 1);
  }
}

TEST_CASE("over_tls_a_client_needs_a_certificate_of_the_authority") {
  Folder folder;
  const auto make = [&](const std::string& name) {
    const AuthorityFolder authority(folder.path + name);
    REQUIRE(
        authority.Make("0123456789abcdef", {"127.0.0.1"}, absl::ToUnixSeconds(absl::Now())).ok());
    return authority.coordinator().tls();
  };
  const TlsOptions own = make("-own"), other = make("-other");
  EtcdServer server(own);
  REQUIRE(Keys(server, own).Open()->Apply({{EpochRecord{1}}}, 0).ok());
  TlsOptions half = own;
  half.key_path.clear();
  CHECK(absl::IsInvalidArgument(EtcdClient::Open({server.endpoint()}, half).status()));
  TlsOptions missing = own;
  missing.ca_path += "-missing";
  CHECK(absl::IsInvalidArgument(EtcdClient::Open({server.endpoint()}, missing).status()));
  for (TlsOptions wrong : {other, TlsOptions()}) {
    const auto client = EtcdClient::Open({server.endpoint()}, wrong).value();
    CHECK(absl::IsUnavailable(client->GrantLease(2).status()));
  }
}

TEST_CASE("wrong_addresses_are_refused") {
  for (const char* url : {"etcd://", "http://127.0.0.1:2379", "etcd://127.0.0.1", "etcd://a:1,",
                          "etcd://a:1/", "etcd://a:1/b/c"}) {
    INFO(url);
    CHECK(absl::IsInvalidArgument(ParseEtcdAddress(url).status()));
  }
  const auto address = ParseEtcdAddress("etcd://a:1,[::1]:2/lab").value();
  CHECK(address.endpoints == std::vector<std::string>{"a:1", "[::1]:2"});
  CHECK(address.prefix == "lab");
  EtcdStoreOptions far;
  far.url = "etcd://etcd.example:2379";
  CHECK(absl::IsInvalidArgument(CheckEtcdOptions(far)));
}

}  // namespace
}  // namespace atl
