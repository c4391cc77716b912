#include "worker/data/parquet/thrift.h"

namespace atl::parquet {
namespace {

int64_t Unzigzag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

}  // namespace

uint8_t ThriftReader::Byte() {
  if (!ok_ || at_ == bytes_.size()) {
    Fail();
    return 0;
  }
  return static_cast<uint8_t>(bytes_[at_++]);
}

uint64_t ThriftReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t byte = Byte();
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return ok_ ? value : 0;
  }
  Fail();
  return 0;
}

int64_t ThriftReader::Int() { return Unzigzag(Varint()); }

ThriftReader::Field ThriftReader::NextField(int last) {
  const uint8_t head = Byte();
  if (!ok_ || head == 0) return {};
  Field field;
  field.type = static_cast<Type>(head & 0xf);
  field.id = (head >> 4) != 0 ? last + (head >> 4) : static_cast<int>(Int());
  if (field.type > Type::kStruct || field.type == Type::kStop || field.id < 0) Fail();
  return ok_ ? field : Field();
}

std::string ThriftReader::Binary() {
  const uint64_t size = Varint();
  if (!ok_ || size > bytes_.size() - at_) {
    Fail();
    return "";
  }
  at_ += size;
  return std::string(bytes_.substr(at_ - size, size));
}

ThriftReader::List ThriftReader::BeginList() {
  const uint8_t head = Byte();
  List list{static_cast<Type>(head & 0xf), head >> 4};
  if (list.size == 15) list.size = static_cast<int64_t>(Varint());
  // Every element takes a byte at the least.
  if (!ok_ || list.size < 0 || list.size > static_cast<int64_t>(bytes_.size() - at_)) {
    Fail();
    return {};
  }
  return list;
}

void ThriftReader::Skip(Type type, int depth) {
  if (depth > kDepthMax) return Fail();
  switch (type) {
    case Type::kTrue:
    case Type::kFalse:
      return;
    case Type::kByte:
      Byte();
      return;
    case Type::kInt16:
    case Type::kInt32:
    case Type::kInt64:
      Varint();
      return;
    case Type::kDouble:
      if (bytes_.size() - at_ < 8) return Fail();
      at_ += 8;
      return;
    case Type::kBinary:
      Binary();
      return;
    case Type::kList:
    case Type::kSet: {
      const List list = BeginList();
      // A bool of a list takes a byte.
      const bool is_bool = list.type == Type::kTrue || list.type == Type::kFalse;
      for (int64_t i = 0; ok_ && i < list.size; ++i) {
        Skip(is_bool ? Type::kByte : list.type, depth + 1);
      }
      return;
    }
    case Type::kStruct:
      for (Field field = NextField(0); field.type != Type::kStop; field = NextField(field.id)) {
        Skip(field.type, depth + 1);
      }
      return;
    default:  // Parquet has no maps
      return Fail();
  }
}

}  // namespace atl::parquet
