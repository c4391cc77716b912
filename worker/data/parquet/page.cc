#include "worker/data/parquet/page.h"

#include <snappy-c.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/data/formats/decompressor.h"
#include "worker/data/parquet/delta.h"

namespace atl::parquet {
namespace {

constexpr int64_t kHeadBytes = 4 << 10, kHeadBytesMax = 1 << 20;
// Encodings.
constexpr int kPlain = 0, kPlainDictionary = 2, kRle = 3, kDeltas = 5, kDeltaLengths = 6,
              kDeltaTexts = 7, kRleDictionary = 8, kByteStreams = 9;

absl::Status Bad(absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("one of its Parquet pages ", problem));
}

template <typename T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

const char* CodecName(int codec) {
  constexpr const char* kNames[] = {"none",   "snappy", "gzip", "LZO",
                                    "brotli", "LZ4",    "zstd", "LZ4_RAW"};
  return codec >= 0 && codec < 8 ? kNames[codec] : "unknown";
}

absl::Status UnsupportedEncoding(const std::string& column, int encoding) {
  return absl::InvalidArgumentError(
      absl::StrCat("its column \"", column, "\" has the encoding ", encoding,
                   encoding == 4 ? " (BIT_PACKED)" : "",
                   ", which is not read; write it with dictionaries or plain pages"));
}

int BitsFor(int level) { return std::bit_width(static_cast<unsigned>(level)); }

// The levels in front of the values of a page of the first version, with their length.
absl::Status TakeLevels(int level_max, int64_t count, std::string_view* bytes,
                        std::vector<uint32_t>* out) {
  out->clear();
  if (level_max == 0) return absl::OkStatus();
  if (bytes->size() < 4) return Bad("ends in its levels");
  const auto size = Load<uint32_t>(bytes->data());
  bytes->remove_prefix(4);
  if (size > bytes->size()) return Bad("ends in its levels");
  ATOLL_RETURN_IF_ERROR(DecodeRuns(bytes->substr(0, size), BitsFor(level_max), count, out));
  bytes->remove_prefix(size);
  return absl::OkStatus();
}

bool AllAtMost(const std::vector<uint32_t>& levels, int most) {
  return std::all_of(levels.begin(), levels.end(),
                     [&](uint32_t level) { return level <= static_cast<uint32_t>(most); });
}

}  // namespace

absl::Status DecodeRuns(std::string_view bytes, int width, int64_t count,
                        std::vector<uint32_t>* out) {
  if (width < 0 || width > 32) return Bad(absl::StrCat("has numbers of ", width, " bits"));
  const size_t value_bytes = static_cast<size_t>(width + 7) / 8;
  const uint64_t mask = (uint64_t{1} << width) - 1;
  while (std::ssize(*out) < count) {
    if (bytes.empty()) return Bad("has fewer numbers than it says");
    const uint64_t head = TakeVarint(&bytes);
    const auto left = static_cast<uint64_t>(count - std::ssize(*out));
    if ((head & 1) == 0) {  // one number, repeated
      if (bytes.size() < value_bytes || head == 0) return Bad("ends in a run");
      uint32_t value = 0;
      if (value_bytes > 0) std::memcpy(&value, bytes.data(), value_bytes);
      bytes.remove_prefix(value_bytes);
      out->insert(out->end(), std::min(head >> 1, left), value & static_cast<uint32_t>(mask));
      continue;
    }
    // Groups of eight numbers, packed; the last group may be cut.
    const uint64_t groups = std::min(head >> 1, (left + 7) / 8);
    if (groups == 0) return Bad("has an empty run");
    uint64_t buffer = 0;
    int bits = 0;
    size_t at = 0;
    for (uint64_t i = 0; i < std::min(8 * groups, left); ++i) {
      while (bits < width) {
        if (at == bytes.size()) return Bad("ends in packed numbers");
        buffer |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[at++])) << bits;
        bits += 8;
      }
      out->push_back(static_cast<uint32_t>(buffer & mask));
      buffer >>= width;
      bits -= width;
    }
    const uint64_t size =
        (head >> 1) > bytes.size() ? bytes.size() : (head >> 1) * static_cast<uint64_t>(width);
    bytes.remove_prefix(std::min<uint64_t>(size, bytes.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Unpack(int codec, std::string_view packed, int64_t bytes) {
  if (bytes > kPageBytesMax) {
    return Bad(absl::StrCat("has ", bytes, " bytes, more than ", kPageBytesMax));
  }
  const auto wrong = [&] { return Bad(absl::StrCat("is damaged (", CodecName(codec), ")")); };
  if (codec == static_cast<int>(Codec::kNone)) {
    if (std::ssize(packed) != bytes) return wrong();
    return std::string(packed);
  }
  std::string out;
  if (codec == static_cast<int>(Codec::kSnappy)) {
    size_t size = 0;
    if (snappy_uncompressed_length(packed.data(), packed.size(), &size) != SNAPPY_OK ||
        static_cast<int64_t>(size) != bytes) {
      return wrong();
    }
    out.resize(size);
    const auto result = snappy_uncompress(packed.data(), packed.size(), out.data(), &size);
    if (result != SNAPPY_OK || static_cast<int64_t>(size) != bytes) return wrong();
    return out;
  }
  const auto decompressor =
      NewDecompressor(codec == static_cast<int>(Codec::kGzip)   ? FileKind::kGzip
                      : codec == static_cast<int>(Codec::kZstd) ? FileKind::kZstd
                                                                : FileKind::kUnknown);
  if (decompressor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("its Parquet pages are packed with ", CodecName(codec), " (", codec,
                     "), which is not read; write it with zstd, snappy or gzip"));
  }
  out.resize(static_cast<size_t>(bytes));
  std::span<const uint8_t> in(reinterpret_cast<const uint8_t*>(packed.data()), packed.size());
  std::span<uint8_t> room(reinterpret_cast<uint8_t*>(out.data()), out.size());
  const absl::Status status = decompressor->Decompress(&in, &room);
  if (!status.ok()) return Bad(absl::StrCat("is damaged: ", status.message()));
  if (!room.empty()) return wrong();
  return out;
}

ColumnCursor::ColumnCursor(const Node& leaf, const Chunk& chunk, Read read)
    : leaf_(leaf), chunk_(chunk), read_(std::move(read)) {}

absl::StatusOr<bool> ColumnCursor::HasNext() {
  while (static_cast<int64_t>(at_) >= page_entries_) {
    if (read_bytes_ >= chunk_.bytes || entries_ >= chunk_.values) return false;
    ATOLL_RETURN_IF_ERROR(LoadPage());
  }
  return true;
}

void ColumnCursor::Advance() {
  if (has_value()) ++value_at_;
  ++at_;
}

absl::StatusOr<PageHeader> ColumnCursor::ReadHeader() {
  for (int64_t bytes = kHeadBytes;; bytes *= 16) {
    const int64_t count = std::min(bytes, chunk_.bytes - read_bytes_);
    std::string head(static_cast<size_t>(count), '\0');
    ATOLL_RETURN_IF_ERROR(read_(chunk_.begin + read_bytes_, head.data(), count));
    auto header = ParsePageHeader(head);
    if (!absl::IsOutOfRange(header.status())) return header;
    if (count < bytes || bytes >= kHeadBytesMax) return Bad("has a damaged head");
  }
}

absl::Status ColumnCursor::LoadPage() {
  ATOLL_ASSIGN_OR_RETURN(const PageHeader header, ReadHeader());
  const int64_t begin = read_bytes_ + header.header_bytes;
  if (header.packed_bytes > chunk_.bytes - begin) return Bad("reaches beyond its column");
  if (header.packed_bytes > kPageBytesMax || header.values > kPageValuesMax) {
    return Bad(absl::StrCat("has ", header.packed_bytes, " bytes and ", header.values,
                            " values, more than is read at once"));
  }
  std::string packed(static_cast<size_t>(header.packed_bytes), '\0');
  ATOLL_RETURN_IF_ERROR(read_(chunk_.begin + begin, packed.data(), header.packed_bytes));
  read_bytes_ = begin + header.packed_bytes;
  switch (header.type) {
    case PageHeader::Type::kIndex:
      return absl::OkStatus();
    case PageHeader::Type::kDictionary:
      return LoadDictionary(header, std::move(packed));
    case PageHeader::Type::kData:
      return LoadData(header, std::move(packed));
    case PageHeader::Type::kData2:
      return LoadData2(header, std::move(packed));
  }
  return absl::OkStatus();
}

absl::Status ColumnCursor::LoadDictionary(const PageHeader& header, std::string packed) {
  if (header.encoding != kPlain && header.encoding != kPlainDictionary) {
    return UnsupportedEncoding(leaf_.name, header.encoding);
  }
  ATOLL_ASSIGN_OR_RETURN(dictionary_page_, Unpack(chunk_.codec, packed, header.bytes));
  dictionary_.clear();
  has_dictionary_ = true;
  return DecodePlain(dictionary_page_, header.values, &dictionary_);
}

absl::Status ColumnCursor::LoadData(const PageHeader& header, std::string packed) {
  ATOLL_ASSIGN_OR_RETURN(page_, Unpack(chunk_.codec, packed, header.bytes));
  if (header.definition_encoding != kRle && leaf_.definition_level > 0) {
    return UnsupportedEncoding(leaf_.name, header.definition_encoding);
  }
  std::string_view bytes = page_;
  at_ = value_at_ = 0;
  page_entries_ = header.values;
  entries_ += header.values;
  ATOLL_RETURN_IF_ERROR(TakeLevels(leaf_.repetition_level, header.values, &bytes, &repetitions_));
  ATOLL_RETURN_IF_ERROR(TakeLevels(leaf_.definition_level, header.values, &bytes, &definitions_));
  return DecodeValues(header.encoding, bytes);
}

absl::Status ColumnCursor::LoadData2(const PageHeader& header, std::string packed) {
  const int64_t levels = header.repetition_bytes + header.definition_bytes;
  if (levels > std::ssize(packed) || levels > header.bytes) return Bad("ends in its levels");
  at_ = value_at_ = 0;
  page_entries_ = header.values;
  entries_ += header.values;
  repetitions_.clear();
  definitions_.clear();
  const std::string_view all = packed;
  if (leaf_.repetition_level > 0) {
    ATOLL_RETURN_IF_ERROR(DecodeRuns(all.substr(0, header.repetition_bytes),
                                     BitsFor(leaf_.repetition_level), header.values,
                                     &repetitions_));
  }
  if (leaf_.definition_level > 0) {
    ATOLL_RETURN_IF_ERROR(DecodeRuns(all.substr(header.repetition_bytes, header.definition_bytes),
                                     BitsFor(leaf_.definition_level), header.values,
                                     &definitions_));
  }
  const int codec = header.packed ? chunk_.codec : static_cast<int>(Codec::kNone);
  if (header.bytes == levels) {  // only nulls: some writers pack nothing at all
    page_.clear();
  } else {
    ATOLL_ASSIGN_OR_RETURN(
        page_, Unpack(codec, all.substr(static_cast<size_t>(levels)), header.bytes - levels));
  }
  return DecodeValues(header.encoding, page_);
}

absl::Status ColumnCursor::DecodeValues(int encoding, std::string_view bytes) {
  if (!AllAtMost(definitions_, leaf_.definition_level) ||
      !AllAtMost(repetitions_, leaf_.repetition_level)) {
    return Bad("has a level that its schema has not");
  }
  const int64_t count = leaf_.definition_level == 0
                            ? page_entries_
                            : std::count(definitions_.begin(), definitions_.end(),
                                         static_cast<uint32_t>(leaf_.definition_level));
  values_.clear();
  if (count == 0) return absl::OkStatus();
  if (encoding == kPlain) return DecodePlain(bytes, count, &values_);
  std::vector<uint32_t> numbers;
  if (encoding == kRle && leaf_.type == ValueType::kBoolean) {
    ATOLL_RETURN_IF_ERROR(TakeLevels(1, count, &bytes, &numbers));
    for (const uint32_t number : numbers) values_.push_back({.number = number});
    return absl::OkStatus();
  }
  if (encoding != kPlainDictionary && encoding != kRleDictionary) {
    return DecodeOther(encoding, bytes, count);
  }
  if (!has_dictionary_ || bytes.empty()) return Bad("has no dictionary");
  const int width = static_cast<uint8_t>(bytes.front());
  ATOLL_RETURN_IF_ERROR(DecodeRuns(bytes.substr(1), width, count, &numbers));
  values_.reserve(numbers.size());
  for (const uint32_t number : numbers) {
    if (number >= dictionary_.size()) return Bad("has a value beyond its dictionary");
    values_.push_back(dictionary_[number]);
  }
  return absl::OkStatus();
}

absl::Status ColumnCursor::DecodeOther(int encoding, std::string_view bytes, int64_t count) {
  const bool is_text = leaf_.type == ValueType::kBytes;
  if (encoding == kDeltaLengths && is_text) {
    ATOLL_ASSIGN_OR_RETURN(const auto texts, TakeTexts(count, &bytes));
    for (const std::string_view text : texts) values_.push_back({.text = text});
    return absl::OkStatus();
  }
  if (encoding == kDeltaTexts && is_text) {
    ATOLL_ASSIGN_OR_RETURN(const auto texts,
                           TakeTextsWithPrefixes(count, kPageBytesMax, &bytes, &joined_));
    for (const std::string_view text : texts) values_.push_back({.text = text});
    return absl::OkStatus();
  }
  const bool is_int32 = leaf_.type == ValueType::kInt32;
  if (encoding == kDeltas && (is_int32 || leaf_.type == ValueType::kInt64)) {
    ATOLL_ASSIGN_OR_RETURN(const auto numbers, TakeDeltas(count, &bytes));
    for (const int64_t number : numbers) {
      values_.push_back({.number = is_int32 ? static_cast<int32_t>(number) : number});
    }
    return absl::OkStatus();
  }
  const bool is_wide = leaf_.type == ValueType::kInt64 || leaf_.type == ValueType::kDouble;
  if (encoding == kByteStreams && (is_wide || is_int32 || leaf_.type == ValueType::kFloat)) {
    // The first bytes of all values, then the second ones, ...
    const size_t width = is_wide ? 8 : 4, values = static_cast<size_t>(count);
    if (values > bytes.size() / width) return Bad("ends in its values");
    std::string joined(values * width, '\0');
    for (size_t i = 0; i < joined.size(); ++i) joined[i] = bytes[i % width * values + i / width];
    return DecodePlain(joined, count, &values_);
  }
  return UnsupportedEncoding(leaf_.name, encoding);
}

absl::Status ColumnCursor::DecodePlain(std::string_view bytes, int64_t count,
                                       std::vector<Value>* out) const {
  const auto fixed = [&]<typename T>(T, const auto& make) -> absl::Status {
    if (static_cast<uint64_t>(count) > bytes.size() / sizeof(T)) return Bad("ends in its values");
    for (int64_t i = 0; i < count; ++i) {
      out->push_back(make(Load<T>(bytes.data() + i * static_cast<int64_t>(sizeof(T)))));
    }
    return absl::OkStatus();
  };
  const auto number = [](auto value) { return Value{.number = value}; };
  const auto real = [](auto value) { return Value{.real = value}; };
  switch (leaf_.type) {
    case ValueType::kBoolean:
      if (static_cast<uint64_t>(count) > 8 * bytes.size()) return Bad("ends in its values");
      for (int64_t i = 0; i < count; ++i) {
        out->push_back(
            {.number = static_cast<uint8_t>(bytes[static_cast<size_t>(i / 8)]) >> (i % 8) & 1});
      }
      return absl::OkStatus();
    case ValueType::kInt32:
      return fixed(int32_t{}, number);
    case ValueType::kInt64:
      return fixed(int64_t{}, number);
    case ValueType::kFloat:
      return fixed(float{}, real);
    case ValueType::kDouble:
      return fixed(double{}, real);
    case ValueType::kBytes:
      for (int64_t i = 0; i < count; ++i) {
        if (bytes.size() < 4) return Bad("ends in its values");
        const auto size = Load<uint32_t>(bytes.data());
        if (size > bytes.size() - 4) return Bad("ends in its values");
        out->push_back({.text = bytes.substr(4, size)});
        bytes.remove_prefix(4 + size_t{size});
      }
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "its column \"", leaf_.name, "\" has values of a kind that is not read (",
          leaf_.type == ValueType::kInt96 ? "96-bit numbers" : "bytes of fixed length", ")"));
  }
}

}  // namespace atl::parquet
