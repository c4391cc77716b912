#include "worker/data/parquet/delta.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace atl::parquet {
namespace {

constexpr uint64_t kBlockValuesMax = 1 << 20;

absl::Status Bad() {
  return absl::InvalidArgumentError("one of its Parquet pages has damaged deltas");
}

uint64_t Unfold(uint64_t folded) { return (folded >> 1) ^ (~(folded & 1) + 1); }

// Takes numbers of `width` bits (at most 64), `count` of them, padded to whole bytes.
bool TakePacked(size_t width, size_t count, std::string_view* bytes, std::vector<uint64_t>* out) {
  const size_t size = (width * count + 7) / 8;
  if (size > bytes->size()) return false;
  out->assign(count, 0);
  for (size_t bit = 0; bit < width * count; ++bit) {
    const auto byte = static_cast<uint8_t>((*bytes)[bit / 8]);
    (*out)[bit / width] |= static_cast<uint64_t>(byte >> (bit % 8) & 1) << (bit % width);
  }
  bytes->remove_prefix(size);
  return true;
}

}  // namespace

uint64_t TakeVarint(std::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) break;
  }
  return value;
}

absl::StatusOr<std::vector<int64_t>> TakeDeltas(int64_t count, std::string_view* bytes) {
  const uint64_t block = TakeVarint(bytes), parts = TakeVarint(bytes), all = TakeVarint(bytes);
  if (block == 0 || block > kBlockValuesMax || parts == 0 || block % parts != 0 ||
      block / parts % 8 != 0 || all != static_cast<uint64_t>(count) || bytes->empty()) {
    return Bad();
  }
  std::vector<int64_t> numbers;
  uint64_t last = Unfold(TakeVarint(bytes));
  const auto add = [&] { numbers.push_back(static_cast<int64_t>(last)); };
  if (count > 0) add();
  std::vector<uint64_t> deltas;
  while (std::ssize(numbers) < count) {
    const uint64_t least = Unfold(TakeVarint(bytes));
    if (bytes->size() < parts) return Bad();
    const std::string_view widths = bytes->substr(0, parts);
    bytes->remove_prefix(parts);
    for (const char width : widths) {
      if (std::ssize(numbers) == count) break;  // parts without a number take no room
      const auto bits = static_cast<uint8_t>(width);
      if (bits > 64 || !TakePacked(bits, block / parts, bytes, &deltas)) return Bad();
      deltas.resize(std::min(deltas.size(), static_cast<size_t>(count - std::ssize(numbers))));
      for (const uint64_t delta : deltas) {
        last += least + delta;
        add();
      }
    }
  }
  return numbers;
}

absl::StatusOr<std::vector<std::string_view>> TakeTexts(int64_t count, std::string_view* bytes) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, TakeDeltas(count, bytes));
  std::vector<std::string_view> texts;
  for (const int64_t size : sizes) {
    if (size < 0 || size > std::ssize(*bytes)) return Bad();
    texts.push_back(bytes->substr(0, static_cast<size_t>(size)));
    bytes->remove_prefix(static_cast<size_t>(size));
  }
  return texts;
}

absl::StatusOr<std::vector<std::string_view>> TakeTextsWithPrefixes(int64_t count,
                                                                    int64_t bytes_max,
                                                                    std::string_view* bytes,
                                                                    std::string* joined) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<int64_t> shared, TakeDeltas(count, bytes));
  ATOLL_ASSIGN_OR_RETURN(std::vector<std::string_view> texts, TakeTexts(count, bytes));
  int64_t total = 0, before = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (shared[i] < 0 || shared[i] > before) return Bad();
    before = shared[i] + std::ssize(texts[i]);
    total += before;
    if (total > bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrCat("one of its Parquet pages has texts of more than ", bytes_max, " bytes"));
    }
  }
  joined->clear();
  joined->reserve(static_cast<size_t>(total));  // texts that were added stay where they are
  std::string_view last;
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t begin = joined->size();
    joined->append(last.substr(0, static_cast<size_t>(shared[i]))).append(texts[i]);
    last = texts[i] = std::string_view(*joined).substr(begin);
  }
  return texts;
}

}  // namespace atl::parquet
