#include "common/tokenizer/added_tokens.h"

#include <algorithm>

#include "common/tokenizer/unicode.h"

namespace atl::tokenizer {
namespace {

bool HasWordBefore(std::string_view text, size_t at) {
  if (at == 0) return false;
  const std::string_view before = text.substr(0, at);
  return IsWordCharacter(CharacterAt(text, at - LastCharacterBytes(before)).code);
}

bool HasWordAfter(std::string_view text, size_t at) {
  return at < text.size() && IsWordCharacter(CharacterAt(text, at).code);
}

size_t SpacesBefore(std::string_view text, size_t at, size_t lowest) {
  while (at > lowest) {
    const size_t bytes = LastCharacterBytes(text.substr(0, at));
    if (!IsWhiteSpace(CharacterAt(text, at - bytes).code)) break;
    at -= bytes;
  }
  return std::max(at, lowest);
}

size_t SpacesAfter(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Character c = CharacterAt(text, at);
    if (!IsWhiteSpace(c.code)) break;
    at += c.bytes;
  }
  return at;
}

}  // namespace

void AddedTokenFinder::Add(const std::string& content, const AddedToken& token) {
  if (content.empty()) return;
  begins_[static_cast<unsigned char>(content[0])] = true;
  int32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    const auto [child, made] = nodes_[static_cast<size_t>(node)].children.try_emplace(
        byte, static_cast<int32_t>(nodes_.size()));
    node = child->second;
    if (made) nodes_.emplace_back();
  }
  nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

int32_t AddedTokenFinder::LongestAt(std::string_view text, size_t at, size_t* end) const {
  int32_t longest = -1;
  const Node* node = nodes_.data();
  for (size_t i = at; i < text.size(); ++i) {
    const auto child = node->children.find(static_cast<unsigned char>(text[i]));
    if (child == node->children.end()) break;
    node = &nodes_[static_cast<size_t>(child->second)];
    if (node->token >= 0) {
      longest = node->token;
      *end = i + 1;
    }
  }
  return longest;
}

std::vector<AddedTokenFinder::Place> AddedTokenFinder::Find(std::string_view text) const {
  std::vector<Place> places;
  for (size_t at = 0; at < text.size();) {
    size_t end = 0;
    const bool may = begins_[static_cast<unsigned char>(text[at])];
    const int32_t found = may ? LongestAt(text, at, &end) : -1;
    if (found < 0) {
      ++at;
      continue;
    }
    places.push_back({at, end - at, &tokens_[static_cast<size_t>(found)]});
    at = end;
  }
  return places;
}

void AddedTokenFinder::Split(std::string_view text, std::vector<Segment>* out) const {
  size_t done = 0;  // up to here the text is in segments
  for (size_t at = 0; at < text.size();) {
    if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    size_t end = 0;
    const int32_t found = LongestAt(text, at, &end);
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    if (token.single_word && (HasWordBefore(text, at) || HasWordAfter(text, end))) {
      at = end;
      continue;
    }
    const size_t begin = token.left_strip ? SpacesBefore(text, at, done) : std::max(at, done);
    if (token.right_strip) end = SpacesAfter(text, end);
    if (begin > done) out->push_back({text.substr(done, begin - done)});
    out->push_back({text.substr(begin, end - begin), token.id});
    at = done = end;
  }
  if (done < text.size()) out->push_back({text.substr(done)});
}

}  // namespace atl::tokenizer
