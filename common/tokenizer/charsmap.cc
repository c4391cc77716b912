#include "common/tokenizer/charsmap.h"

#include <cstring>

#include "common/status.h"
#include "common/tokenizer/unicode.h"

namespace atl::tokenizer {
namespace {

// A longer cluster is looked up character by character.
constexpr size_t kMaxClusterBytes = 6;

// One unit of a double array (Darts-clone's layout).
struct Unit {
  uint32_t bits;
  bool has_leaf() const { return ((bits >> 8) & 1) == 1; }
  uint32_t value() const { return bits & 0x7fffffff; }
  uint32_t label() const { return bits & 0x800000ff; }
  uint32_t offset() const { return (bits >> 10) << ((bits & 0x200) >> 6); }
};

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Parse(std::string bytes) {
  Charsmap map;
  if (bytes.empty()) return map;
  uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof trie_bytes) return absl::InvalidArgumentError("is too short");
  std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 ||
      trie_bytes > bytes.size() - sizeof trie_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("says that its trie has ", trie_bytes, " bytes of ", bytes.size()));
  }
  map.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(map.units_.data(), bytes.data() + sizeof trie_bytes, trie_bytes);
  map.texts_ = bytes.substr(sizeof trie_bytes + trie_bytes);
  if (map.texts_.empty() || map.texts_.back() != '\0' || !IsWellFormed(map.texts_)) {
    return absl::InvalidArgumentError("its replacements are not UTF-8 texts that end with zero");
  }
  return map;
}

template <typename Visit>
void Charsmap::VisitKeys(std::string_view text, const Visit& visit) const {
  size_t node = Unit{units_[0]}.offset();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) return;
    node ^= byte;
    if (node >= units_.size() || Unit{units_[node]}.label() != byte) return;
    const Unit unit{units_[node]};
    node ^= unit.offset();
    if (!unit.has_leaf()) continue;
    if (node >= units_.size()) return;
    const size_t begin = Unit{units_[node]}.value();
    if (begin >= texts_.size() || (begin > 0 && (texts_[begin] & 0xc0) == 0x80)) return;
    if (!visit(Key{i + 1, std::string_view(texts_.c_str() + begin)})) return;
  }
}

std::optional<std::string_view> Charsmap::Replacement(std::string_view text) const {
  std::optional<std::string_view> replacement;
  VisitKeys(text, [&](const Key& key) {
    replacement = key.replacement;
    return false;
  });
  return replacement;
}

std::string Charsmap::NormalizedByLongestKey(std::string_view text) const {
  if (units_.empty()) return std::string(text);
  std::string result;
  for (size_t i = 0; i < text.size();) {
    Key longest;
    VisitKeys(text.substr(i), [&](const Key& key) {
      const size_t end = i + key.bytes;
      if (end == text.size() || (text[end] & 0xc0) != 0x80) longest = key;
      return true;
    });
    if (longest.bytes == 0) {
      longest.bytes = CharacterAt(text, i).bytes;
      longest.replacement = text.substr(i, longest.bytes);
    }
    result += longest.replacement;
    i += longest.bytes;
  }
  return result;
}

std::string Charsmap::NormalizedByCluster(std::string_view text) const {
  if (units_.empty()) return std::string(text);
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t end = i + GraphemeBytes(text, i);
    const std::string_view cluster = text.substr(i, end - i);
    if (cluster.size() < kMaxClusterBytes) {
      if (const auto replacement = Replacement(cluster); replacement.has_value()) {
        result += *replacement;
        i = end;
        continue;
      }
    }
    while (i < end) {
      const std::string_view character = text.substr(i, CharacterAt(text, i).bytes);
      result += Replacement(character).value_or(character);
      i += character.size();
    }
  }
  return result;
}

}  // namespace atl::tokenizer
