#include "paramserver/storage/codec.h"

#include <xxhash.h>

#include <bit>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "common/protocol/wire.h"
#include "common/status.h"
#include "proto/control.pb.h"

namespace atl::ps {
namespace {

static_assert(std::endian::native == std::endian::little);

// An archive is a Writer or a Reader; Fields() names the fields of a struct once for both.
class Writer {
 public:
  static uint32_t format() { return kStorageFormat; }
  template <class T>
  void Number(const T& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void Text(const std::string& text) {
    Number(static_cast<uint32_t>(text.size()));
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <class T, class Each>
  void Vector(std::vector<T>& values, Each each) {
    Number(static_cast<uint64_t>(values.size()));
    for (T& value : values) each(value);
  }
  // As its protobuf message.
  template <class Wire, class Plain>
  void Message(const Plain& plain) {
    Wire wire;
    status_.Update(Encode(plain, &wire));
    Text(wire.SerializeAsString());
  }
  absl::StatusOr<std::vector<std::byte>> Take() {
    if (!status_.ok()) return status_;
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
  absl::Status status_;
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, uint32_t format) : left_(bytes), format_(format) {}
  uint32_t format() const { return format_; }
  template <class T>
  void Number(T& value) {
    if (left_.size() < sizeof(T)) return Fail();
    std::memcpy(&value, left_.data(), sizeof(T));
    left_ = left_.subspan(sizeof(T));
  }
  void Number(bool& value) {
    uint8_t byte = 2;
    Number(byte);
    if (byte > 1) return Fail();
    value = byte == 1;
  }
  void Text(std::string& text) {
    uint32_t size = 0;
    Number(size);
    if (size > left_.size()) return Fail();
    text.assign(reinterpret_cast<const char*>(left_.data()), size);
    left_ = left_.subspan(size);
  }
  template <class T, class Each>
  void Vector(std::vector<T>& values, Each each) {
    uint64_t size = 0;
    Number(size);
    for (uint64_t i = 0; i < size && ok_; ++i) each(values.emplace_back());
  }
  template <class Wire, class Plain>
  void Message(Plain& plain) {
    std::string text;
    Text(text);
    Wire wire;
    if (!ok_ || !wire.ParseFromString(text)) return Fail();
    auto decoded = Decode(&wire);
    if (!decoded.ok()) return Fail();
    plain = *std::move(decoded);
  }
  absl::Status Done() const {
    return ok_ && left_.empty() ? absl::OkStatus()
                                : absl::DataLossError("its fields are malformed");
  }

 private:
  void Fail() {
    ok_ = false;
    left_ = {};
  }
  std::span<const std::byte> left_;
  const uint32_t format_;
  bool ok_ = true;
};

template <class A>
void Fields(A& a, OwnedShard& s) {
  a.Number(s.shard), a.Number(s.layer), a.Number(s.elements), a.Number(s.begin);
}
template <class A>
void Fields(A& a, IslandFence& f) {
  a.Number(f.island), a.Number(f.generation), a.Number(f.incarnation);
}
template <class A>
void Fields(A& a, ContributionId& c) {
  a.Number(c.island), a.Number(c.generation), a.Number(c.incarnation), a.Number(c.base_version);
}
template <class A>
void Fields(A& a, PushId& p) {
  a.Text(p.job), a.Number(p.island), a.Number(p.generation), a.Number(p.incarnation);
  a.Number(p.base_version), a.Number(p.shard), a.Number(p.begin), a.Number(p.elements);
}
template <class A>
void Fields(A& a, RoundTerm& t) {
  Fields(a, t.contribution), a.Number(t.weight);
}
template <class A, class T>
void Fields(A& a, std::vector<T>& values) {
  a.Vector(values, [&a](T& value) { Fields(a, value); });
}
template <class A>
void Fields(A& a, AssignShards& s) {
  a.Text(s.job), Fields(a, s.shards), a.Number(s.outer_learning_rate);
  a.Number(s.outer_momentum), a.Number(s.snapshot_every_rounds);
  a.template Message<v1::JobDefinition>(s.definition);
}
template <class A>
void Fields(A& a, AssignedRecord& r) {
  a.Number(r.epoch), Fields(a, r.assignment);
}
template <class A>
void Fields(A& a, FencedRecord& r) {
  Fields(a, r.islands);
}
template <class A>
void Fields(A& a, PushedRecord& r) {
  Fields(a, r.id), a.Number(r.encoding);
}
template <class A>
void Fields(A& a, CommittedRecord& r) {
  a.Number(r.version), Fields(a, r.terms), Fields(a, r.dropped);
  a.template Message<v1::JobImage>(r.image);
  if (a.format() >= 4) a.template Message<v1::RoundStep>(r.step);
}
template <class A>
void Fields(A& a, DroppedRecord& r) {
  Fields(a, r.contributions);
}
template <class A>
void Fields(A&, EndedRecord&) {}
template <class A>
void Fields(A& a, JoinedRecord& r) {
  a.Number(r.placement), Fields(a, r.newest), Fields(a, r.decided);
  if (a.format() >= 4) a.Number(r.slots);
}
template <class A>
void Fields(A& a, ReceivedRecord& r) {
  Fields(a, r.shard), a.Number(r.placement), a.Number(r.version), a.Number(r.part);
  a.Number(r.begin);
}
template <class A>
void Fields(A& a, IslandDecisions& d) {
  Fields(a, d.forgotten), a.Number(d.any_forgotten), Fields(a, d.newest);
}
template <class A>
void Fields(A& a, ShardSnapshot& s) {
  Fields(a, s.shard);
}
template <class A>
void Fields(A& a, SnapshotHead& h) {
  Snapshot& s = h.snapshot;
  a.Text(s.job), a.Number(s.version), a.Number(s.last_sequence), a.Number(s.replay_from);
  a.Number(s.epoch), a.Number(s.ended), Fields(a, s.assignment), Fields(a, s.newest);
  Fields(a, s.fences);
  Fields(a, s.decided), Fields(a, s.staged), Fields(a, s.shards);
  a.Vector(h.checksums, [&a](uint64_t& value) { a.Number(value); });
  if (a.format() >= 4) {
    a.Vector(s.slots, [&a](std::string& name) { a.Text(name); });
  } else {
    s.slots = {"momentum"};
  }
  if (a.format() >= 5) {
    a.Number(s.exchange.base), a.Number(s.exchange.based_at), a.Number(s.exchange.contributed_at);
  }
}

template <class Record>
absl::StatusOr<LogRecord> Read(std::span<const std::byte> bytes, uint32_t format) {
  Reader reader(bytes, format);
  Record record;
  Fields(reader, record);
  ATOLL_RETURN_IF_ERROR(reader.Done());
  return LogRecord(std::move(record));
}

template <size_t kType = 0>
absl::StatusOr<LogRecord> ReadType(uint32_t type, std::span<const std::byte> bytes,
                                   uint32_t format) {
  if constexpr (kType == std::variant_size_v<LogRecord>) {
    return absl::DataLossError(absl::StrCat("its type ", type, " is unknown"));
  } else {
    if (type == kType) return Read<std::variant_alternative_t<kType, LogRecord>>(bytes, format);
    return ReadType<kType + 1>(type, bytes, format);
  }
}

}  // namespace

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

absl::StatusOr<std::vector<std::byte>> EncodeRecord(const LogRecord& record) {
  Writer writer;
  std::visit([&](auto copy) { Fields(writer, copy); }, record);
  return writer.Take();
}

std::span<const std::byte> GetPayload(const LogRecord& record) {
  if (const auto* push = std::get_if<PushedRecord>(&record)) return push->payload.bytes;
  if (const auto* received = std::get_if<ReceivedRecord>(&record)) return received->payload.bytes;
  return {};
}

absl::StatusOr<LogRecord> DecodeRecord(uint32_t type, std::span<const std::byte> bytes,
                                       SharedBytes payload, uint32_t format) {
  ATOLL_ASSIGN_OR_RETURN(LogRecord record, ReadType(type, bytes, format));
  if (auto* push = std::get_if<PushedRecord>(&record)) {
    if (!IsEncoding(static_cast<int>(push->encoding))) {
      return absl::DataLossError("its encoding is unknown");
    }
    push->payload = std::move(payload);
  } else if (auto* received = std::get_if<ReceivedRecord>(&record)) {
    if (received->part > kLastPart) return absl::DataLossError("its part is unknown");
    if (received->begin < 0 || received->begin >= received->shard.elements) {
      return absl::DataLossError("its elements are not of its shard");
    }
    received->payload = std::move(payload);
  } else if (!payload.bytes.empty()) {
    return absl::DataLossError("it has a payload, which its type has not");
  }
  return record;
}

absl::StatusOr<std::vector<std::byte>> EncodeHead(const SnapshotHead& head) {
  Writer writer;
  SnapshotHead copy = head;
  Fields(writer, copy);
  return writer.Take();
}

absl::StatusOr<SnapshotHead> DecodeHead(std::span<const std::byte> bytes, uint32_t format) {
  Reader reader(bytes, format);
  SnapshotHead head;
  Fields(reader, head);
  ATOLL_RETURN_IF_ERROR(reader.Done());
  return head;
}

}  // namespace atl::ps
