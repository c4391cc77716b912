#include "worker/data/parquet/thrift.h"

#include "worker/data/parquet/delta.h"

namespace atl::parquet {
namespace {

constexpr int kLevelsMax = 64;
constexpr int64_t kValuesMax = 1 << 24, kIdMax = INT16_MAX;
enum Type { kStop, kTrue, kFalse, kByte, kInt16, kInt32, kInt64, kDouble, kBinary, kList, kSet };
constexpr int kStructType = 12;  // Parquet has no maps, which are 11

class ThriftReader {
 public:
  explicit ThriftReader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  size_t left() const { return rest_.size(); }

  ThriftValue Struct(int level) {
    ThriftValue value{.kind = ThriftValue::Kind::kStruct};
    for (int64_t id = 0; ok_;) {
      const uint8_t head = Byte();
      if (head == 0) break;
      id = (head >> 4) != 0 ? id + (head >> 4) : Int();
      ok_ = ok_ && id >= 0 && id <= kIdMax;
      value.children.push_back(Value(head & 0xf, level + 1));
      value.children.back().id = static_cast<int>(id);
    }
    return value;
  }

 private:
  using Kind = ThriftValue::Kind;

  std::string_view Take(uint64_t bytes) {
    ok_ = ok_ && bytes <= rest_.size();
    const std::string_view taken = rest_.substr(0, ok_ ? bytes : 0);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  uint8_t Byte() {
    const std::string_view byte = Take(1);
    return ok_ ? static_cast<uint8_t>(byte[0]) : 0;
  }
  uint64_t Varint() {
    ok_ = ok_ && !rest_.empty();
    const std::string_view before = rest_;
    const uint64_t value = TakeVarint(&rest_);
    const std::string_view taken = before.substr(0, before.size() - rest_.size());
    ok_ = ok_ && (static_cast<uint8_t>(taken.back()) & 0x80) == 0;
    return ok_ ? value : 0;
  }
  int64_t Int() {
    const uint64_t folded = Varint();
    return static_cast<int64_t>(folded >> 1) ^ -static_cast<int64_t>(folded & 1);
  }

  ThriftValue Value(int type, int level) {
    ok_ = ok_ && level <= kLevelsMax && ++values_ <= kValuesMax;
    switch (ok_ ? type : kStop) {
      case kTrue:
      case kFalse:
        return {.kind = Kind::kInt, .number = type == kTrue ? 1 : 0};
      case kByte:
        return {.kind = Kind::kInt, .number = Byte()};
      case kInt16:
      case kInt32:
      case kInt64:
        return {.kind = Kind::kInt, .number = Int()};
      case kDouble:
        Take(8);
        return {.kind = Kind::kOther};
      case kBinary:
        return {.kind = Kind::kBytes, .bytes = Take(Varint())};
      case kList:
      case kSet:
        return List(level);
      case kStructType:
        return Struct(level);
      default:
        ok_ = false;
        return {};
    }
  }

  ThriftValue List(int level) {
    ThriftValue value{.kind = Kind::kList};
    const uint8_t head = Byte();
    const uint64_t size = head >> 4 == 15 ? Varint() : head >> 4;
    const int type = head & 0xf;
    ok_ = ok_ && size <= rest_.size();  // every element takes a byte at the least
    for (uint64_t i = 0; ok_ && i < size; ++i) {
      // A bool of a list takes a byte.
      value.children.push_back(Value(type == kTrue || type == kFalse ? kByte : type, level + 1));
    }
    return value;
  }

  std::string_view rest_;
  int64_t values_ = 0;
  bool ok_ = true;
};

}  // namespace

const ThriftValue& ThriftValue::operator[](int field) const {
  static const auto* const kNone = new ThriftValue();
  if (kind != Kind::kStruct) return *kNone;
  for (const ThriftValue& child : children) {
    if (child.id == field) return child;
  }
  return *kNone;
}

std::optional<ThriftStruct> ParseThrift(std::string_view bytes) {
  ThriftReader reader(bytes);
  ThriftStruct parsed{reader.Struct(0)};
  parsed.bytes = bytes.size() - reader.left();
  return reader.ok() ? std::optional(std::move(parsed)) : std::nullopt;
}

}  // namespace atl::parquet
