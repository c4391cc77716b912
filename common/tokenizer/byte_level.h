// GPT-2's spelling of bytes: each of the 256 as one printable character.

#ifndef ATOLL_COMMON_TOKENIZER_BYTE_LEVEL_H_
#define ATOLL_COMMON_TOKENIZER_BYTE_LEVEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace atl::tokenizer {

// The character that stands for a byte.
int32_t CharacterOfByte(uint8_t byte);

// Every byte as its character.
std::string ByteLevelText(std::string_view bytes);

// Back; absent: there is a character that stands for no byte. REQUIRES: well-formed.
std::optional<std::string> BytesFromByteLevel(std::string_view text);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_BYTE_LEVEL_H_
