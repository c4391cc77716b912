// The etcd store's part beyond every store: one of several coordinators owns it, nothing is written
// by one that does not lead any more, and damage is named.

#include "coordinator/etcd/store_etcd.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/event_loop.h"
#include "common/trust/authority.h"
#include "coordinator/etcd/stored.h"
#include "coordinator/etcd/testing/etcd_server.h"
#include "coordinator/testing/store_cases.h"
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
    options.lines_folder = absl::StrCat(lines_.path, "-", address.substr(address.rfind(':') + 1));
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

  std::string StepKey(int64_t number) const {
    return prefix + absl::StrFormat("/step/%019d", number);
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
  StoreFolder lines_;
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
  store.reset();
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
  DecisionRecord large;
  large.job = "lm-1";
  large.gram.assign(1 << 17, 1.25);
  for (int64_t round = 1; status.ok() && round < 100; ++round) {
    large.round = round;
    status = store->Apply({{large}}, 0);
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
  auto store = keys.Open();
  for (int64_t epoch : {1, 2, 3}) REQUIRE(store->Apply({{EpochRecord{epoch}}}, 0).ok());
  store.reset();
  const std::string second = keys.StepKey(2);
  SECTION("one byte of an entry") {
    std::string value = keys.Value(second);
    const size_t at = GENERATE(2, 5, 11);
    value[at] = static_cast<char>(value[at] ^ 0x10);
    keys.Put(second, value);
    CHECK(absl::IsDataLoss(keys.TryOpen().status()));
    CHECK(keys.OpenFault().find("its entry 2 fails its checksum") != std::string::npos);
  }
  SECTION("an older entry in the place of a newer one") {
    keys.Put(second, keys.Value(keys.StepKey(1)));
    CHECK(absl::IsDataLoss(keys.TryOpen().status()));
  }
  SECTION("a missing entry") {
    keys.Erase(keys.StepKey(GENERATE(1, 2)));
    CHECK(absl::IsDataLoss(keys.TryOpen().status()));
  }
  SECTION("a foreign key among them") {
    keys.Put(keys.prefix + "/step/notes", "x");
    CHECK(absl::IsDataLoss(keys.TryOpen().status()));
  }
  SECTION("a newer Atoll's") {
    etcd::Entry newer;
    newer.set_schema_version(kEtcdSchemaVersion + 1);
    keys.Put(second, newer.SerializeAsString());
    CHECK(absl::IsFailedPrecondition(keys.TryOpen().status()));
  }
  SECTION("a foreign leader") {
    keys.Put(keys.prefix + "/leader", "\x01");
    CHECK(absl::IsDataLoss(keys.TryOpen().status()));
  }
}

// The entries that the store writes for this epoch after those before.
std::vector<std::string> EntriesAfter(std::initializer_list<int64_t> before, int64_t epoch) {
  LoggedState state;
  std::vector<std::string> entries;
  const auto append = [&](int64_t number) {
    etcd::Step step;
    step.add_writes()->set_key("epoch");
    step.mutable_writes(0)->set_value(*EncodeRecord(EpochRecord{number}));
    entries = state.Append(step);
  };
  for (const int64_t number : before) append(number);
  append(epoch);
  return entries;
}

// The store behaves as if etcd had carried out the first attempt of the step, whose answer was
// lost.
TEST_CASE("step_whose_first_attempt_was_carried_out_is_stored_once") {
  Keys keys;
  auto store = keys.Open();
  REQUIRE(store->Apply({{EpochRecord{1}}}, 0).ok());
  SECTION("the same step") {
    keys.Put(keys.StepKey(2), EntriesAfter({1}, 2).at(0));
    REQUIRE(store->Apply({{EpochRecord{2}}}, 0).ok());
    REQUIRE(store->Apply({{EpochRecord{3}}}, 0).ok());
    CHECK(store->sequence() == 3);
    store.reset();
    CHECK(keys.Open()->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{3}});
  }
  SECTION("another change, by another process") {
    keys.Put(keys.StepKey(2), EntriesAfter({1}, 7).at(0));
    CHECK(absl::IsDataLoss(store->Apply({{EpochRecord{2}}}, 0)));
    CHECK_FALSE(store->Apply({{EpochRecord{3}}}, 0).ok());
  }
}

// The leader ends between the entries of a long step.
TEST_CASE("long_step_whose_last_entry_was_not_stored_did_not_happen") {
  Keys keys;
  REQUIRE(keys.Open()->Apply({{EpochRecord{1}}}, 0).ok());
  LoggedState state;
  etcd::Step first, next;
  first.add_writes()->set_key("epoch");
  first.mutable_writes(0)->set_value(*EncodeRecord(EpochRecord{1}));
  state.Append(first);
  next.add_writes()->set_key("long");
  next.mutable_writes(0)->set_value(std::string(3 << 20, 'x'));
  const auto entries = state.Append(next);
  REQUIRE(entries.size() > 2);
  for (size_t i = 0; i + 1 < entries.size(); ++i) {
    keys.Put(keys.StepKey(2 + static_cast<int64_t>(i)), entries[i]);
  }
  auto store = keys.Open();
  CHECK(store->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{1}});
  CHECK(store->sequence() == 1);
  CHECK(keys.Value(keys.StepKey(2)).empty());
  REQUIRE(store->Apply({{EpochRecord{2}}}, 0).ok());
  store.reset();
  CHECK(keys.Open()->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{2}});
}

TEST_CASE("log_that_has_grown_long_begins_anew_with_a_snapshot") {
  Keys keys;
  auto store = keys.Open();
  DecisionRecord large;
  large.job = "lm-1";
  large.gram.assign(1 << 17, 1.25);  // 1 MiB
  for (int round = 0; round < 10; ++round) REQUIRE(store->Apply({{large}}, 0).ok());
  CHECK(keys.Value(keys.StepKey(1)).empty());
  REQUIRE(store->Apply({{EpochRecord{1}}}, 0).ok());
  store.reset();
  store = keys.Open();
  CHECK(store->sequence() == 11);
  CHECK(store->ReadAll().value().size() == 2);
}

TEST_CASE("registry_of_members_is_the_next_leaders_too") {
  Keys keys;
  StoreFolder folder;
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
  StoreFolder folder;
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
