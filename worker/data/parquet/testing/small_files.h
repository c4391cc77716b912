// Small Parquet files for tests, written by hand.

#ifndef ATOLL_WORKER_DATA_PARQUET_TESTING_SMALL_FILES_H_
#define ATOLL_WORKER_DATA_PARQUET_TESTING_SMALL_FILES_H_

#include <snappy-c.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"

namespace atl::parquet {

// Writes Thrift's compact protocol.
class Thrift {
 public:
  Thrift& Int(int id, int64_t value, int type = 5) {
    Begin(id, type);
    return Varint(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
  }
  Thrift& Text(int id, const std::string& text) {
    Begin(id, 8);
    Varint(text.size());
    bytes_ += text;
    return *this;
  }
  Thrift& Struct(int id, const Thrift& inner) {
    Begin(id, 12);
    bytes_ += inner.bytes();
    return *this;
  }
  Thrift& Structs(int id, const std::vector<Thrift>& list) {
    Begin(id, 9);
    bytes_ += static_cast<char>(0xf0 | 12);
    Varint(list.size());
    for (const Thrift& one : list) bytes_ += one.bytes();
    return *this;
  }
  std::string bytes() const { return bytes_ + '\0'; }

 private:
  void Begin(int id, int type) {
    bytes_ += static_cast<char>((id - last_) << 4 | type);
    last_ = id;
  }
  Thrift& Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }
  std::string bytes_;
  int last_ = 0;
};

inline std::string Little(uint32_t value) { return {reinterpret_cast<const char*>(&value), 4}; }

inline std::string PlainText(const std::vector<std::string>& texts) {
  std::string bytes;
  for (const std::string& text : texts) bytes += Little(static_cast<uint32_t>(text.size())) + text;
  return bytes;
}

// Levels or indices of `width` bits: each number as a run of one.
inline std::string Runs(const std::vector<int>& numbers) {
  std::string bytes;
  for (const int number : numbers) (bytes += '\2') += static_cast<char>(number);
  return bytes;
}
inline std::string Levels(const std::vector<int>& numbers) {
  const std::string runs = Runs(numbers);
  return Little(static_cast<uint32_t>(runs.size())) + runs;
}

// A page of the first version as it lies in a file.
inline std::string Page(int values, const std::string& body, int encoding = 0, int codec = 0) {
  std::string packed = body;
  if (codec == 1) {
    packed.resize(snappy_max_compressed_length(body.size()));
    size_t bytes = packed.size();
    ATOLL_CHECK(snappy_compress(body.data(), body.size(), packed.data(), &bytes) == SNAPPY_OK);
    packed.resize(bytes);
  }
  return Thrift()
             .Int(1, 0)
             .Int(2, std::ssize(body))
             .Int(3, std::ssize(packed))
             .Struct(5, Thrift().Int(1, values).Int(2, encoding).Int(3, 3).Int(4, 3))
             .bytes() +
         packed;
}
inline std::string DictionaryPage(const std::vector<std::string>& texts) {
  const std::string body = PlainText(texts);
  return Thrift()
             .Int(1, 2)
             .Int(2, std::ssize(body))
             .Int(3, std::ssize(body))
             .Struct(7, Thrift().Int(1, std::ssize(texts)).Int(2, 0))
             .bytes() +
         body;
}

struct Column {
  std::string pages;
  int values = 0;
  int codec = 0;
};

inline Thrift Field(const std::string& name, int repetition, int type = 6) {
  return Thrift().Int(1, type).Int(3, repetition).Text(4, name);
}
inline Thrift Group(const std::string& name, int repetition, int children) {
  return Thrift().Int(3, repetition).Text(4, name).Int(5, children);
}

inline std::string File(std::vector<Thrift> schema, int rows, const std::vector<Column>& columns,
                        int top_columns = 1) {
  std::string file = "PAR1";
  std::vector<Thrift> chunks;
  for (const Column& column : columns) {
    const auto begin = static_cast<int64_t>(file.size());
    chunks.push_back(Thrift().Struct(3, Thrift()
                                            .Int(4, column.codec)
                                            .Int(5, column.values, 6)
                                            .Int(7, std::ssize(column.pages), 6)
                                            .Int(9, begin, 6)));
    file += column.pages;
  }
  schema.insert(schema.begin(), Group("schema", 0, top_columns));
  const std::string footer =
      Thrift()
          .Int(1, 1)
          .Structs(2, schema)
          .Int(3, rows, 6)
          .Structs(4, {Thrift().Structs(1, chunks).Int(2, 1, 6).Int(3, rows, 6)})
          .bytes();
  return file + footer + Little(static_cast<uint32_t>(footer.size())) + "PAR1";
}

}  // namespace atl::parquet

#endif  // ATOLL_WORKER_DATA_PARQUET_TESTING_SMALL_FILES_H_
