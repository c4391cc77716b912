// Tokens that are found in a text before anything else is done with it: "added_tokens" of
// tokenizer.json, such as "<|endoftext|>".

#ifndef ATOLL_COMMON_TOKENIZER_ADDED_TOKENS_H_
#define ATOLL_COMMON_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace atl::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only between characters that are not of a word
  bool left_strip = false;   // it takes the white space before it
  bool right_strip = false;  // and after it
  bool normalized = false;   // it is looked for in the normalized text
  bool special = false;      // it is no text: left out when tokens become text
};

// Finds the longest of a set of tokens at each place, from the left. Thread-safe once built.
class AddedTokenFinder {
 public:
  struct Segment {
    std::string_view text;
    int32_t id = -1;  // of the token that it is; -1: text between tokens
  };

  // Looks for `content`, which is the token's or its normalized form. Empty: ignored.
  void Add(const std::string& content, const AddedToken& token);

  // The text's segments in order; none is empty. REQUIRES: well-formed UTF-8.
  void Split(std::string_view text, std::vector<Segment>* out) const;

  struct Place {
    size_t begin = 0, bytes = 0;
    const AddedToken* token = nullptr;
  };
  // Returns where the text spells tokens, without the white space that they take.
  std::vector<Place> Find(std::string_view text) const;

 private:
  struct Node {
    absl::flat_hash_map<unsigned char, int32_t> children;
    int32_t token = -1;  // index into tokens_
  };
  // The longest token that begins at `at`: its index, or -1, and where it ends.
  int32_t LongestAt(std::string_view text, size_t at, size_t* end) const;

  std::vector<Node> nodes_{1};
  std::array<bool, 256> begins_{};  // whether a token begins with this byte
  std::vector<AddedToken> tokens_;
};

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_ADDED_TOKENS_H_
