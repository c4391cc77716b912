// Decoders of what workers and the coordinator keep for themselves: saves, caches, the registry of
// members, the audit log, curves. Checksums are made right before a file is read: a fuzzer does not
// guess them.

#include <xxhash.h>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/testing/files_simulated.h"
#include "common/trust/pki.h"
#include "coordinator/etcd/stored.h"
#include "coordinator/history/history_files.h"
#include "coordinator/store_seal.h"
#include "coordinator/trust/access_control.h"
#include "coordinator/trust/audit_log.h"
#include "proto/coordinator.pb.h"
#include "tests/fuzz/decoder.h"
#include "tests/fuzz/scratch.h"
#include "worker/data/block_cache.h"
#include "worker/data/digest_cache.h"
#include "worker/profiler/profile_cache.h"
#include "worker/state/tier_store.h"

namespace atl::fuzz {
namespace {

uint64_t Xxh3(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

// ----------------------------------------------------------------------------------- saves

// Objects in memory.
class MemoryObjects : public ObjectStore {
 public:
  absl::StatusOr<ObjectInfo> Stat(const std::string& name, const CallOptions&) override {
    const auto found = objects.find(name);
    if (found == objects.end()) return absl::NotFoundError(name);
    return ObjectInfo{name, std::ssize(found->second), "", false};
  }
  absl::Status Read(const std::string& name, int64_t offset, std::span<std::byte> out,
                    const CallOptions&) override {
    const auto found = objects.find(name);
    if (found == objects.end()) return absl::NotFoundError(name);
    if (offset < 0 || offset > std::ssize(found->second) ||
        std::ssize(out) > std::ssize(found->second) - offset) {
      return absl::OutOfRangeError(name);
    }
    std::memcpy(out.data(), found->second.data() + offset, out.size());
    return absl::OkStatus();
  }
  absl::Status Write(const std::string& name, std::span<const ByteSpan> buffers) override {
    std::string& object = objects[name];
    object.clear();
    for (const ByteSpan buffer : buffers) object += AsText(buffer);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<ObjectInfo>> List(const std::string& prefix, int64_t most,
                                               const CallOptions&) override {
    std::vector<ObjectInfo> found;
    for (const auto& [name, bytes] : objects) {
      if (absl::StartsWith(name, prefix) && std::ssize(found) < most) {
        found.push_back({name, std::ssize(bytes), "", false});
      }
    }
    return found;
  }
  absl::Status Remove(const std::string& name) override {
    objects.erase(name);
    return absl::OkStatus();
  }
  std::string url() const override { return "memory"; }

  std::map<std::string, std::string> objects;
};

constexpr char kSave[] = "j-1/save-7/w1/";
constexpr int64_t kReadMost = 1 << 12;  // elements of a unit

worker::StoredUnit SomeUnit() {
  const auto parts = std::make_shared<worker::OwnedParts>(4, worker::kAllParts);
  return {{{2, 0, {1, 2}}, {0, 4}}, 9, parts};
}

// Writes a save, and replaces its manifest.
std::shared_ptr<MemoryObjects> WithSave() {
  const auto objects = std::make_shared<MemoryObjects>();
  worker::TierStore store(objects, "j-1", Tier::kRemote);
  const auto owed = std::make_shared<std::vector<float>>(3, 0.5f);
  ATOLL_CHECK(store.Write("w1", 7, 40, {SomeUnit()}, {{2, {0, 3}, owed}}, nullptr).ok());
  return objects;
}

bool AcceptsManifest(std::string_view bytes) {
  static const std::shared_ptr<MemoryObjects> written = WithSave();
  const std::string line = std::string(bytes.substr(0, bytes.find('\n'))) + "\n";
  written->objects[absl::StrCat(kSave, "manifest")] = absl::StrCat(line, Xxh3(line), "\n");
  worker::TierStore store(written, "j-1", Tier::kRemote);
  std::vector<std::string> problems;
  const auto saves = store.List(4, &problems, nullptr);
  ATOLL_CHECK(saves.ok(), saves.status().message());
  if (!problems.empty()) return false;
  for (const HeldSave& save : *saves) {
    for (const HeldUnit& held : save.units) {
      const LayerShard& shard = held.unit.shard;
      ATOLL_CHECK(shard.rank >= 0 && shard.rank < std::ssize(shard.tensor_split_ratios),
                  shard.rank);
      if (held.unit.elements.size() > kReadMost) continue;
      const worker::OwnedParts parts(held.unit.elements.size(), worker::kAllParts);
      (void)store.Read(save.save, shard, held.unit.elements, parts.parts(), nullptr);
    }
    std::vector<float> owed(16);
    ElementRanges found;
    (void)store.ReadResidual(save.save, 2, {0, 16}, owed, &found, nullptr);
  }
  return true;
}

std::vector<std::string> ManifestSeeds() {
  const std::string text = WithSave()->objects.at(absl::StrCat(kSave, "manifest"));
  return {text.substr(0, text.find('\n'))};
}

const Registration kManifest({"save_manifest", ManifestSeeds, AcceptsManifest});

// ---------------------------------------------------------------------------------- caches

DeviceProfile SomeProfile() {
  DeviceProfile profile{"w1/0", "cpu", "1.0", 42, {}};
  profile.layers.push_back({LayerKind::kBlock, 1, 2, 10, 20, 30, 40, 0.01, 50, 60, 70, 80});
  return profile;
}

bool AcceptsProfile(std::string_view bytes) {
  static const std::string path = [] {
    SimulatedFiles disk(1);
    ATOLL_CHECK(worker::ProfileCache(disk, "d").Store(SomeProfile()).ok());
    return disk.Paths().at(0);
  }();
  SimulatedFiles disk(1);
  PutFile(disk, path, bytes);
  const auto found = worker::ProfileCache(disk, "d").Find("w1/0", "cpu", 42, "1.0");
  if (!found) return false;
  ATOLL_CHECK(!found->layers.empty());
  return true;
}

std::vector<std::string> ProfileSeeds() {
  SimulatedFiles disk(1);
  ATOLL_CHECK(worker::ProfileCache(disk, "d").Store(SomeProfile()).ok());
  return {AsText(disk.Bytes(disk.Paths().at(0)))};
}

const Registration kProfile({"profile_cache", ProfileSeeds, AcceptsProfile});

FileIdentity OldFile() {
  FileIdentity identity{};
  identity.bytes = 8;
  return identity;
}

bool AcceptsDigests(std::string_view bytes) {
  SimulatedFiles disk(1);
  PutFile(disk, "d/digests", std::string(bytes) + ToBytes(Xxh3(bytes)));
  return DigestCache(disk, "d/digests").Find("0 0 corpus.txt", OldFile()).has_value();
}

std::vector<std::string> DigestsSeeds() {
  SimulatedFiles disk(1);
  DigestCache cache(disk, "d/digests");
  cache.Store("0 0 other.txt", OldFile(), {});
  cache.Store("0 0 corpus.txt", OldFile(), {.digest = 7});
  const std::string file = AsText(disk.Bytes("d/digests"));
  return {file.substr(0, file.size() - sizeof(uint64_t))};
}

const Registration kDigests({"digest_cache", DigestsSeeds, AcceptsDigests});

// A block of 64 bytes as it lies on the disk.
bool AcceptsBlock(std::string_view bytes) {
  static const BlockCache cache(Folder().folder() + "/blocks", 1 << 20);
  std::filesystem::create_directories(Folder().folder() + "/blocks");
  Folder().Write("blocks/b", bytes);
  std::vector<std::byte> block(64);
  return cache.Has("b") && cache.Read("b", block);
}

std::vector<std::string> BlockSeeds() {
  const std::string folder = Folder().folder() + "/blocks";
  BlockCache cache(folder, 1 << 20);
  const std::vector<std::byte> block(64, std::byte{7});
  cache.Store("seed", block);
  std::ifstream file(folder + "/seed", std::ios::binary);
  return {std::string(std::istreambuf_iterator<char>(file), {})};
}

const Registration kBlock({"block_cache", BlockSeeds, AcceptsBlock});

// --------------------------------------------------------------------- the coordinator's files

bool AcceptsHistoryFile(std::string_view bytes) {
  SimulatedFiles disk(1);
  Input input(bytes);
  const bool whole = input.Take<uint8_t>() % 2 == 1;  // else without a checksum that fits
  PutFile(
      disk, "d/j-1",
      whole ? std::string(input.Rest()) + ToBytes(Xxh3(input.Rest())) : std::string(input.Rest()));
  History history;
  HistoryFiles(&disk, "d").Load(&history);
  return history.Find("j-1") != nullptr;
}

std::vector<std::string> HistoryFileSeeds() {
  JobHistory history;
  history.NoteSubmitted(1000);
  v1::JobHistory message;
  message.set_job("j-1");
  history.Encode(100, 2, &message);
  return {'\1' + message.SerializeAsString()};
}

const Registration kHistoryFile({"history_file", HistoryFileSeeds, AcceptsHistoryFile});

bool AcceptsAuditLog(std::string_view bytes) {
  SimulatedFiles disk(1);
  PutFile(disk, "d/audit.log", bytes);
  AuditLog log(&disk, "d");
  const auto entries = log.Read(2);
  ATOLL_CHECK(entries.ok() && entries->size() <= 4);  // two of each kind
  // The log goes on behind whatever is there.
  ATOLL_CHECK(log.Add({}).ok());
  const auto with_new = log.Read(0);
  ATOLL_CHECK(with_new.ok() && !with_new->empty());
  return !entries->empty();
}

std::vector<std::string> AuditLogSeeds() {
  SimulatedFiles disk(1);
  AuditLog log(&disk, "d");
  v1::AuditEntry entry;
  entry.set_who("operator/me");
  entry.set_call("Jobs/Pause");
  entry.set_target("j-1");
  ATOLL_CHECK(log.Add(entry).ok());
  entry.set_denial(v1::TRUST_DENIAL_ROLE);
  ATOLL_CHECK(log.Add(entry).ok());
  return {AsText(disk.Bytes("d/audit.log"))};
}

const Registration kAuditLog({"audit_log", AuditLogSeeds, AcceptsAuditLog});

class OneValue : public SharedValue {
 public:
  explicit OneValue(std::string bytes) : bytes_(std::move(bytes)) {}
  absl::StatusOr<std::optional<std::string>> Read() override { return bytes_; }
  absl::Status Write(const std::string&) override { return absl::OkStatus(); }

 private:
  std::string bytes_;
};

bool AcceptsRegistry(std::string_view bytes) {
  const auto access = AccessControl::Open(Folder().folder() + "/trust", {}, 3600);
  ATOLL_CHECK(access.ok(), access.status().message());
  const std::string text(bytes);
  OneValue value(text + Sha256(text));
  if (!(*access)->Share(&value).ok()) return false;
  (*access)->keys();
  constexpr int64_t kNow = 1'700'000'000;
  TrustRegistry registry((*access)->records());
  const v1::TrustRecords records = registry.records();
  for (const v1::TrustToken& token : records.tokens()) {
    (void)registry.CheckToken(token.id(), "worker", kNow);
  }
  for (const v1::TrustMember& member : records.members()) {
    CertificateFacts facts;
    facts.identity = IdentityFromUri(absl::StrCat("atoll:", member.role(), "/", member.name()));
    facts.key_digest = member.key_digest();
    facts.curve_public_key = member.curve_public_key();
    facts.until_unix_s = kNow + 1;
    const Verdict verdict = registry.CheckCertificate(facts, kNow);
    ATOLL_CHECK(!verdict.ok() || member.revoked_unix_s() <= 0 || records.members_size() > 1,
                member.name());
    (void)registry.Revoke(member.name(), "", "operator/me", kNow);
  }
  return true;
}

std::vector<std::string> RegistrySeeds() {
  TrustRegistry registry;
  v1::CreateTokenRequest request;
  request.add_roles("worker");
  request.set_uses(2);
  request.set_key_digest(std::string(64, 'a'));
  const auto token = registry.CreateToken(request, "operator/me", 1'600'000'000);
  ATOLL_CHECK(token.ok(), token.status().message());
  v1::TrustMember member;
  member.set_role("worker");
  member.set_name("w1");
  member.set_key_digest(std::string(64, 'b'));
  member.set_curve_public_key(std::string(40, 'c'));
  member.set_token(token->id());
  member.set_expires_unix_s(2'000'000'000);
  ATOLL_CHECK(registry.Join(member, 1'600'000'001).ok());
  const std::string joined = registry.records().SerializeAsString();
  ATOLL_CHECK(registry.Revoke("w1", "", "operator/me", 1'600'000'002).ok());
  return {joined, registry.records().SerializeAsString()};
}

const Registration kRegistry({"trust_registry", RegistrySeeds, AcceptsRegistry});

// Entries of a log of steps in etcd, each behind its length. One that is changed is never taken,
// and a snapshot of what is taken makes the same.
bool AcceptsEtcdSteps(std::string_view bytes) {
  LoggedState state;
  Input input(bytes);
  int64_t number = 1;
  for (; !input.Rest().empty(); ++number) {
    const std::string text = input.TakeText(input.Take<uint16_t>());
    const LoggedState before = state;
    if (!state.Add(number, text).ok()) return false;
    etcd::Entry changed;
    ATOLL_CHECK(changed.ParseFromString(text));
    changed.set_sequence(changed.sequence() ^ 1);
    ATOLL_CHECK(!LoggedState(before).Add(number, changed.SerializeAsString()).ok());
  }
  const bool whole = state.next() == number;
  const auto before = state.values();
  int64_t snapshot = state.next();
  LoggedState again;
  for (const std::string& entry : state.AppendSnapshot()) {
    ATOLL_CHECK(again.Add(snapshot++, entry).ok());
  }
  ATOLL_CHECK(again.values() == before && again.sequence() == state.sequence());
  return whole && number > 1;
}

std::vector<std::string> EtcdStepsSeeds() {
  std::string bytes;
  LoggedState state;
  for (const char* key : {"job/j-1", "member/w1", "job/j-1"}) {
    etcd::Step step;
    step.add_writes()->set_key(key);
    step.mutable_writes(0)->set_value("a record");
    step.mutable_writes(0)->set_erase(state.sequence() == 2);
    for (const std::string& entry : state.Append(step)) {
      bytes += ToBytes(static_cast<uint16_t>(entry.size())) + entry;
    }
  }
  return {bytes};
}

const Registration kEtcdSteps({"etcd_steps", EtcdStepsSeeds, AcceptsEtcdSteps});

}  // namespace
}  // namespace atl::fuzz
