// Texts as Python's str sees them: characters, white space, letters; how values print.

#ifndef ATOLL_COMMON_JINJA_TEXT_H_
#define ATOLL_COMMON_JINJA_TEXT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/jinja/value.h"

namespace atl::jinja {

// The character at byte `at` of well-formed UTF-8, and its bytes.
struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
};
Character CharacterAt(std::string_view text, size_t at);
void AppendCharacter(uint32_t code, std::string* text);
// Returns where each character begins, and the end.
std::vector<size_t> CharacterStarts(std::string_view text);
int64_t CountCharacters(std::string_view text);

bool IsSpace(uint32_t code);  // str.isspace
// Returns the text without white space, or the characters of `chars`, at either end.
std::string_view Strip(std::string_view text, bool left, bool right,
                       std::optional<std::string_view> chars = std::nullopt);

// nullopt: Python's result is not known here, because a letter becomes several or its case depends
// on its place.
std::optional<std::string> ToUpper(std::string_view text);
std::optional<std::string> ToLower(std::string_view text);

// Formats a float as Python's repr does: "1.0", "1e+16", "nan".
std::string FloatText(double value);

// str(value), and repr(value) inside of lists. nullopt: of a namespace or a function, or of lists
// nested too deeply.
std::optional<std::string> ToText(const Value& value);

struct JsonStyle {
  int indent = -1;  // below 0: on one line
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii = false;
  bool sort_keys = false;
};
// json.dumps. nullopt: as of ToText, an undefined value, or a key that is no text.
std::optional<std::string> ToJson(const Value& value, const JsonStyle& style);

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_TEXT_H_
