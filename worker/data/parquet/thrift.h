// Thrift's compact protocol, in which Parquet's metadata is written, from bytes that may be
// anything.

#ifndef ATOLL_WORKER_DATA_PARQUET_THRIFT_H_
#define ATOLL_WORKER_DATA_PARQUET_THRIFT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace atl::parquet {

// Reads forward. After a byte that cannot be, ok() is false for good and every call gives 0, "" or
// an end.
class ThriftReader {
 public:
  enum class Type : uint8_t {
    kStop = 0,
    kTrue = 1,
    kFalse = 2,
    kByte = 3,
    kInt16 = 4,
    kInt32 = 5,
    kInt64 = 6,
    kDouble = 7,
    kBinary = 8,
    kList = 9,
    kSet = 10,
    kMap = 11,
    kStruct = 12,
  };
  struct Field {
    int id = 0;
    Type type = Type::kStop;  // kStop: the struct has ended
  };
  struct List {
    Type type = Type::kStop;
    int64_t size = 0;  // at most as many as bytes are left
  };

  explicit ThriftReader(std::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  size_t position() const { return at_; }

  // The next field of the struct whose last one had the id `last`; 0: none has been read.
  Field NextField(int last);
  int64_t Int();  // of kByte to kInt64
  static bool Bool(const Field& field) { return field.type == Type::kTrue; }
  std::string Binary();
  List BeginList();
  void Skip(Type type) { Skip(type, 0); }

 private:
  static constexpr int kDepthMax = 64;

  void Skip(Type type, int depth);
  uint64_t Varint();
  uint8_t Byte();
  void Fail() { ok_ = false; }

  const std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace atl::parquet

#endif  // ATOLL_WORKER_DATA_PARQUET_THRIFT_H_
