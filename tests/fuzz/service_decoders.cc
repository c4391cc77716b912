// Decoders of what other services, browsers and programs of this machine send: etcd, HTTP clients,
// the notice command; and the files and addresses by which daemons find them.

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sqlite3.h>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/http/http_server.h"
#include "common/net/control/leader.h"
#include "common/net/tcp_endpoint.h"
#include "common/state_folder.h"
#include "coordinator/etcd/client.h"
#include "coordinator/etcd/stored.h"
#include "coordinator/http/gateway.h"
#include "coordinator/sqlite.h"
#include "coordinator/store_backup.h"
#include "coordinator/store_seal.h"
#include "coordinator/wire.h"
#include "tests/fuzz/decoder.h"
#include "tests/fuzz/scratch.h"
#include "worker/collectives/peer_blocks.h"
#include "worker/notice.h"

namespace atl::fuzz {
namespace {

// -------------------------------------------------------------------------------------- etcd

etcd::Leader SomeLeader() {
  etcd::Leader leader;
  leader.set_address("10.0.0.1:7000");
  leader.set_page_url("https://10.0.0.1:7080");
  return leader;
}

// Accepts what etcd answers; the first byte says what was requested.
bool AcceptsEtcdAnswer(std::string_view bytes) {
  constexpr int64_t kLease = 7;
  Input input(bytes);
  const int which = input.Take<uint8_t>() % 2;
  const std::string message(input.Rest());
  if (which == 1) {
    etcdserverpb::TxnResponse taken;
    if (!taken.ParseFromString(message)) return false;
    return TakenIn(taken, "atoll/leader", SomeLeader(), kLease).ok();
  }
  etcdserverpb::RangeResponse answer;
  if (!answer.ParseFromString(message)) return false;
  const auto leader = LeaderIn(answer, "atoll/leader");
  if (!leader.ok() || !leader->has_value()) return false;
  ATOLL_CHECK(!(*leader)->address().empty());
  return true;
}

std::vector<std::string> EtcdAnswerSeeds() {
  etcdserverpb::RangeResponse answer;
  answer.mutable_header()->set_revision(9);
  answer.add_kvs()->set_key("atoll/leader");
  answer.mutable_kvs(0)->set_value(SomeLeader().SerializeAsString());
  etcdserverpb::TxnResponse taken;
  etcdserverpb::KeyValue* other = taken.add_responses()->mutable_response_range()->add_kvs();
  other->set_lease(8);
  other->set_value(SomeLeader().SerializeAsString());
  return {'\0' + answer.SerializeAsString(), '\1' + taken.SerializeAsString()};
}

const Registration kEtcdAnswer({"etcd_answer", EtcdAnswerSeeds, AcceptsEtcdAnswer});

LogEntry SomeLine(int64_t sequence, const std::string& text) {
  LogEntry line;
  line.event.sequence = sequence;
  line.event.job = "j-1";
  line.event.severity = Severity::kWarning;
  line.event.text = text;
  line.unix_time_ms = 1'700'000'000'000 + sequence;
  return line;
}

// ------------------------------------------------------------------------------ the web page

// Accepts requests of pages at a coordinator that is ending: every request is decoded, no call is
// made.
bool AcceptsPageRequest(std::string_view bytes) {
  static Gateway& gateway = *[] {
    auto* made = new Gateway(grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials()),
                             [](const HttpRequest&, const std::string&, bool) {
                               return Gateway::User{absl::OkStatus(), "operator/me"};
                             });
    made->Close();
    return made;
  }();
  HttpOptions options{"--http-listen", "127.0.0.1:0", {}, 4, 2};
  const std::string answer = HttpServer::AnswerBytes(
      options, [](const HttpRequest& request) { return gateway.Answer(request); },
      {bytes.data(), bytes.size()});
  ATOLL_CHECK(answer.empty() || absl::StartsWith(answer, "HTTP/1.1 "), answer.substr(0, 20));
  return absl::StartsWith(answer, "HTTP/1.1 200") || absl::StartsWith(answer, "HTTP/1.1 503");
}

std::vector<std::string> PageRequestSeeds() {
  const auto get = [](const std::string& target) {
    return "GET " + target + " HTTP/1.1\r\nHost: localhost:7080\r\nAccept-Encoding: gzip\r\n\r\n";
  };
  const auto post = [](const std::string& target) {
    return "POST " + target +
           " HTTP/1.1\r\nHost: 127.0.0.1:7080\r\nX-Atoll-Action: 1\r\nContent-Length: 2\r\n\r\nok";
  };
  return {get("/"),
          get("/api/v1/status"),
          get("/api/v1/session"),
          get("/api/v1/events?job=j-1"),
          get("/api/v1/history?job=j-1&points=100&islands=3"),
          get("/api/v1/logs?job=j%2d1&tail=9&after=4&severity=error&contains=a+b"),
          post("/api/v1/pause?job=j-1"),
          post("/api/v1/drain?server=s1&undo=1"),
          post("/api/v1/trace?job=j-1&island=2")};
}

const Registration kPageRequest({"page_request", PageRequestSeeds, AcceptsPageRequest});

// ------------------------------------------------------------------ blocks of other workers

// A block's header, up to the end of its line, and its payload.
bool AcceptsPeerBlock(std::string_view bytes) {
  using worker::BlockKind;
  const std::unique_ptr<PeerLink> link;
  worker::PeerBlocks blocks("w2", &link);
  blocks.Open("g", 1);
  const size_t line = std::min(bytes.find('\n'), bytes.size());
  PeerDelivery delivery;
  delivery.from = "w1";
  delivery.channel = PeerChannel::kCollective;
  delivery.header = std::string(bytes.substr(0, line));
  const auto payload =
      std::make_shared<std::string>(bytes.substr(std::min(line + 1, bytes.size())));
  delivery.payload = Payload(payload, std::as_writable_bytes(std::span(*payload)));
  const bool admitted = blocks.Admit(delivery.header, static_cast<int64_t>(payload->size())).ok();
  if (!admitted) return false;
  blocks.OnMessage(std::move(delivery));
  const auto block = blocks.Take("w1", {"g", 0, 1, 3, BlockKind::kPart, 64}, 8, Instant());
  ATOLL_CHECK(!block.ok() || block->payload.size() == 8);
  return true;
}

std::vector<std::string> PeerBlockSeeds() {
  return {"sum 0 1 3 0 64 g\n8 bytes.", "sum 0 1 3 2 0 g\n", "sum 2 5 1 3 0 other group\nno room"};
}

const Registration kPeerBlock({"peer_block", PeerBlockSeeds, AcceptsPeerBlock});

// ------------------------------------------------------------------------- this machine's own

bool AcceptsNotice(std::string_view bytes) {
  const worker::Notice notice = worker::NoticeFrom(std::string(bytes));
  if (!notice.within) return false;
  ATOLL_CHECK(*notice.within >= Duration(0) && *notice.within <= FromSeconds(1e6));
  return true;
}

std::vector<std::string> NoticeSeeds() { return {"90 seconds left\n", " 1.5e2\n", "0"}; }

const Registration kNotice({"notice_output", NoticeSeeds, AcceptsNotice});

bool AcceptsIncarnation(std::string_view bytes) {
  static const auto& folder = *StateFolder::Open(Folder().folder() + "/state").value().release();
  std::ofstream(folder.path() + "/incarnation", std::ios::binary) << bytes;
  const auto next = const_cast<StateFolder&>(folder).NextIncarnation();
  ATOLL_CHECK(next.ok(), next.status().message());
  ATOLL_CHECK(*next > 0 && *next <= kClockIncarnationMax + 1, *next);
  // The number after one that was taken.
  return bytes.starts_with(absl::StrCat(*next - 1));
}

std::vector<std::string> IncarnationSeeds() {
  return {absl::StrCat(int64_t{1} << 50, " ", ~(int64_t{1} << 50), "\n"),
          absl::StrCat(int64_t{1} << 51, "\n")};
}

const Registration kIncarnation({"incarnation", IncarnationSeeds, AcceptsIncarnation});

bool AcceptsAddress(std::string_view bytes) {
  Input input(bytes);
  const int which = input.Take<uint8_t>() % 3;
  const std::string text(input.Rest());
  if (which == 0) {
    if (!CheckTcpEndpoint(text).ok()) return false;
    const std::string host = text.substr(6, text.rfind(':') - 6);
    ATOLL_CHECK(!host.empty() && host.find('/') == std::string::npos, host);
    IsLoopbackHost(host);
    return true;
  }
  if (which == 1) {
    if (!CheckAddresses(text).ok()) return false;
    ATOLL_CHECK(SplitAddresses(text).size() <= kMaxCoordinators);
    return true;
  }
  const auto etcd = ParseEtcdAddress(text);
  if (!etcd.ok()) return false;
  ATOLL_CHECK(!etcd->endpoints.empty() && !etcd->prefix.empty());
  return true;
}

std::vector<std::string> AddressSeeds() {
  return {std::string("\0tcp://[::1]:7100", 17), std::string("\0tcp://*:*", 10),
          "\1"
          "10.0.0.1:7000,[fe80::1]:7000,localhost:1",
          "\2"
          "etcd://a:2379,b:2379/team"};
}

const Registration kAddress({"address", AddressSeeds, AcceptsAddress});

// ---------------------------------------------------------------------------------- --restore

EpochRecord SomeEpoch() { return {3, "0123456789abcdef", 7, false}; }

std::string SomeBackup() {
  StoreContents contents;
  contents.records.push_back(SomeEpoch());
  MemberRecord member;
  member.name = "w";
  member.incarnation = 3;
  contents.records.push_back(member);
  contents.lines.push_back(SomeLine(1, "step 1"));
  const std::string path = Folder().folder() + "/made-backup";
  std::filesystem::remove(path);
  const absl::Status made = MakeBackup(contents, path);
  ATOLL_CHECK(made.ok(), made.message());
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Puts records, each behind the lengths of key and value, in place of those of the backup, with
// checksums that are right: a fuzzer does not guess them.
void PutRecords(const std::string& path, Input input) {
  sqlite3* db = nullptr;
  ATOLL_CHECK(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  sqlite3_exec(db, "PRAGMA synchronous=OFF; PRAGMA journal_mode=OFF; DELETE FROM records", nullptr,
               nullptr, nullptr);
  StoreTotals totals{5, 0, 0};
  std::map<std::string, std::string> records;
  while (!input.Rest().empty()) {
    const std::string key = input.TakeText(input.Take<uint8_t>());
    records[key] = input.TakeText(input.Take<uint16_t>());
  }
  for (const auto& [key, value] : records) {
    const uint64_t checksum = ComputeRecordChecksum(key, value);
    Statement put(db, "INSERT INTO records VALUES(?,?,?)");
    put.Bind(absl::string_view(key)).BindBlob(value).Bind(static_cast<int64_t>(checksum));
    put.Step();
    ++totals.records;
    totals.digest += checksum;
  }
  {
    Statement seal(db, "INSERT OR REPLACE INTO totals VALUES(1,?,?,?,?)");
    seal.Bind(totals.sequence).Bind(totals.records).Bind(static_cast<int64_t>(totals.digest));
    seal.Bind(static_cast<int64_t>(ComputeChecksum(totals)));
    seal.Step();
  }
  sqlite3_close(db);
}

bool AcceptsBackup(std::string_view bytes) {
  static const std::string valid = SomeBackup();
  Input input(bytes);
  const bool records = input.Take<uint8_t>() % 2 == 1;
  const std::string path = Folder().Write("backup", records ? valid : input.Rest());
  if (records) PutRecords(path, input);
  const auto contents = ReadBackup(path, Folder().folder() + "/restore.tmp");
  if (!contents.ok()) return false;
  // A restored coordinator has an epoch that none has had.
  for (const StoreRecord& record : contents->records) {
    const auto* epoch = std::get_if<EpochRecord>(&record);
    ATOLL_CHECK(epoch == nullptr || (epoch->epoch > SomeEpoch().epoch && epoch->restored));
  }
  return true;
}

std::vector<std::string> BackupSeeds() {
  std::string rows = "\1";
  const auto add = [&](const StoreRecord& record) {
    const std::string key = MakeRecordKey(record), value = *EncodeRecord(record);
    rows += static_cast<char>(key.size()) + key;
    rows += ToBytes(static_cast<uint16_t>(value.size())) + value;
  };
  add(SomeEpoch());
  ProgressRecord progress;
  progress.job = "j-1";
  add(progress);
  return {std::string(1, '\0') + SomeBackup(), rows};
}

const Registration kBackup({"restore", BackupSeeds, AcceptsBackup});

}  // namespace
}  // namespace atl::fuzz
