#include "common/tokenizer/byte_level.h"

#include <array>

#include "common/tokenizer/unicode.h"

namespace atl::tokenizer {
namespace {

constexpr int32_t kFirstSubstitute = 256;
constexpr int32_t kSubstitutes = 68;  // bytes that are not printable in Latin-1

constexpr bool IsPrintable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Tables {
  std::array<int32_t, 256> characters{};
  std::array<int16_t, kFirstSubstitute + kSubstitutes> bytes{};
};

constexpr Tables MakeTables() {
  Tables tables;
  for (int16_t& byte : tables.bytes) byte = -1;
  int32_t next = kFirstSubstitute;
  for (int byte = 0; byte < 256; ++byte) {
    const int32_t character = IsPrintable(byte) ? byte : next++;
    tables.characters[static_cast<size_t>(byte)] = character;
    tables.bytes[static_cast<size_t>(character)] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

int32_t CharacterOfByte(uint8_t byte) { return kTables.characters[byte]; }

std::string ByteLevelText(std::string_view bytes) {
  std::string result;
  result.reserve(2 * bytes.size());
  for (const char c : bytes) AppendCharacter(CharacterOfByte(static_cast<uint8_t>(c)), &result);
  return result;
}

std::optional<std::string> BytesFromByteLevel(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const Character c = CharacterAt(text, i);
    i += c.bytes;
    if (c.code >= static_cast<int32_t>(kTables.bytes.size())) return std::nullopt;
    const int16_t byte = kTables.bytes[static_cast<size_t>(c.code)];
    if (byte < 0) return std::nullopt;
    result += static_cast<char>(byte);
  }
  return result;
}

}  // namespace atl::tokenizer
