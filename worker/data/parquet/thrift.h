// Thrift's compact protocol, in which Parquet's metadata is written, from bytes that may be
// anything.

#ifndef ATOLL_WORKER_DATA_PARQUET_THRIFT_H_
#define ATOLL_WORKER_DATA_PARQUET_THRIFT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace atl::parquet {

struct ThriftValue {
  enum class Kind : uint8_t { kAbsent, kInt, kBytes, kList, kStruct, kOther };

  Kind kind = Kind::kAbsent;
  int id = 0;                         // of a struct's field
  int64_t number = 0;                 // of kInt: also 0 and 1, of booleans
  std::string_view bytes;             // of kBytes, in what was parsed
  std::vector<ThriftValue> children;  // of a list or a struct

  bool present() const { return kind != Kind::kAbsent; }
  int64_t Int(int64_t otherwise) const { return kind == Kind::kInt ? number : otherwise; }
  std::span<const ThriftValue> List() const {
    return kind == Kind::kList ? children : std::span<const ThriftValue>();
  }
  // The field of a struct; of another value, or where there is none, an absent one.
  const ThriftValue& operator[](int field) const;
};

struct ThriftStruct {
  ThriftValue value;
  size_t bytes = 0;  // that it takes
};

// Reads the struct that `bytes` begin with. Absent: there is none, it breaks off, or has more than
// 2^24 values or 64 levels.
std::optional<ThriftStruct> ParseThrift(std::string_view bytes);

}  // namespace atl::parquet

#endif  // ATOLL_WORKER_DATA_PARQUET_THRIFT_H_
