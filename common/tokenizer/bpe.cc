#include "common/tokenizer/bpe.h"

#include <algorithm>
#include <utility>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/unicode.h"

namespace atl::tokenizer {
namespace {

// Up to here looking through all pairs for the next merge is faster than keeping them in a heap.
constexpr size_t kShortSymbols = 48;
constexpr uint32_t kNoRank = UINT32_MAX;

}  // namespace

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Parse(const Json& json,
                                                          const Vocabulary& vocabulary,
                                                          bool bytes_are_symbols,
                                                          const std::string& where) {
  auto model = std::make_unique<BpeModel>();
  ATOLL_ASSIGN_OR_RETURN(model->unknown_, UnknownId(json, vocabulary, where));
  ATOLL_ASSIGN_OR_RETURN(model->fuse_unknown_, BoolField(json, "fuse_unk", where, false));
  ATOLL_ASSIGN_OR_RETURN(model->ignore_merges_, BoolField(json, "ignore_merges", where, false));
  ATOLL_ASSIGN_OR_RETURN(model->prefix_, StringField(json, "continuing_subword_prefix", where));
  ATOLL_ASSIGN_OR_RETURN(model->suffix_, StringField(json, "end_of_word_suffix", where));
  ATOLL_ASSIGN_OR_RETURN(const bool fallback, BoolField(json, "byte_fallback", where, false));
  if (fallback) model->fallback_ = ByteTokens(vocabulary);
  ATOLL_RETURN_IF_ERROR(model->ParseMerges(Member(json, "merges"), vocabulary, where));
  if (bytes_are_symbols && !model->suffix_.empty()) {
    return Bad(where, "end_of_word_suffix with a byte-level pre-tokenizer is not supported");
  }
  if (bytes_are_symbols) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string character;
      AppendCharacter(CharacterOfByte(static_cast<uint8_t>(byte)), &character);
      model->bytes_.push_back(vocabulary.Find(character));
    }
  }
  const std::vector<std::string>& tokens = vocabulary.tokens();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    const bool single = tokens[id].size() <= 4 + model->prefix_.size() + model->suffix_.size();
    if (!model->ignore_merges_ && (bytes_are_symbols || !single)) continue;
    if (!bytes_are_symbols) {
      model->words_.emplace(tokens[id], static_cast<int32_t>(id));
    } else if (auto bytes = BytesFromByteLevel(tokens[id]); bytes.has_value()) {
      model->words_.emplace(*std::move(bytes), static_cast<int32_t>(id));
    }
  }
  return model;
}

absl::Status BpeModel::AddMerge(const std::string& left, const std::string& right, size_t rank,
                                const Vocabulary& vocabulary, const std::string& where) {
  const auto refuse = [&](absl::string_view token) {
    return Bad(absl::StrCat(where, ".merges[", rank, "]"),
               absl::StrCat("\"", token, "\" is not in the vocabulary"));
  };
  const int32_t left_id = vocabulary.Find(left), right_id = vocabulary.Find(right);
  if (left_id < 0) return refuse(left);
  if (right_id < 0) return refuse(right);
  if (!prefix_.empty() && right.size() < prefix_.size()) return refuse(right);
  const std::string joined = left + right.substr(prefix_.size());
  const int32_t joined_id = vocabulary.Find(joined);
  if (joined_id < 0) return refuse(joined);
  merges_.insert_or_assign(Key(left_id, right_id), Merge{static_cast<uint32_t>(rank), joined_id});
  return absl::OkStatus();
}

absl::Status BpeModel::ParseMerges(const Json& merges, const Vocabulary& vocabulary,
                                   const std::string& where) {
  if (!merges.is_array()) return Bad(absl::StrCat(where, ".merges"), "must be a list");
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Json& merge = merges[rank];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      ATOLL_RETURN_IF_ERROR(AddMerge(merge[0].get<std::string>(), merge[1].get<std::string>(), rank,
                                     vocabulary, where));
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return Bad(absl::StrCat(where, ".merges[", rank, "]"), "must be two tokens");
    }
    ATOLL_RETURN_IF_ERROR(
        AddMerge(text.substr(0, space), text.substr(space + 1), rank, vocabulary, where));
  }
  return absl::OkStatus();
}

void BpeModel::BeginWithBytes(std::string_view piece, std::vector<Scratch::Symbol>* symbols) const {
  for (const char c : piece) {
    const int32_t id = bytes_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      symbols->push_back({id, 0, 0, 1});
    } else {
      AddUnknown(1, symbols);
    }
  }
}

void BpeModel::AddUnknown(size_t bytes, std::vector<Scratch::Symbol>* symbols) const {
  if (unknown_ < 0) return;
  if (fuse_unknown_ && !symbols->empty() && symbols->back().id == unknown_) {
    symbols->back().bytes += static_cast<uint32_t>(bytes);
  } else {
    symbols->push_back({unknown_, 0, 0, static_cast<uint32_t>(bytes)});
  }
}

void BpeModel::BeginWithCharacters(std::string_view piece,
                                   std::vector<Scratch::Symbol>* symbols) const {
  std::string spelled;
  for (size_t i = 0; i < piece.size();) {
    const uint32_t bytes = CharacterAt(piece, i).bytes;
    spelled.clear();
    if (i > 0) spelled += prefix_;
    spelled.append(piece, i, bytes);
    if (i + bytes == piece.size()) spelled += suffix_;
    const auto found = words_.find(spelled);
    if (found != words_.end()) {
      symbols->push_back({found->second, 0, 0, bytes});
    } else if (!fallback_.empty()) {
      for (const char c : spelled) {
        symbols->push_back({fallback_[static_cast<unsigned char>(c)], 0, 0, 1});
      }
    } else {
      AddUnknown(bytes, symbols);
    }
    i += bytes;
  }
}

void BpeModel::MergeShort(std::vector<Scratch::Symbol>* symbols, Scratch* scratch) const {
  std::vector<Scratch::Symbol>& s = *symbols;
  std::vector<Scratch::Candidate>& pairs = scratch->heap;  // pairs[i]: of symbols i and i + 1
  const auto pair = [&](size_t i) -> Scratch::Candidate {
    const Merge* merge = Find(s[i].id, s[i + 1].id);
    return merge == nullptr ? Scratch::Candidate{kNoRank, 0, 0, 0, 0}
                            : Scratch::Candidate{merge->rank, 0, 0, 0, merge->joined};
  };
  pairs.clear();
  for (size_t i = 0; i + 1 < s.size(); ++i) pairs.push_back(pair(i));
  while (!pairs.empty()) {
    size_t first = 0;
    for (size_t i = 1; i < pairs.size(); ++i) {
      if (pairs[i].rank < pairs[first].rank) first = i;
    }
    if (pairs[first].rank == kNoRank) return;
    s[first].id = pairs[first].joined;
    s.erase(s.begin() + static_cast<std::ptrdiff_t>(first) + 1);
    pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(first));
    if (first < pairs.size()) pairs[first] = pair(first);
    if (first > 0) pairs[first - 1] = pair(first - 1);
  }
}

void BpeModel::MergeLong(std::vector<Scratch::Symbol>* symbols, Scratch* scratch) const {
  std::vector<Scratch::Symbol>& s = *symbols;
  std::vector<Scratch::Candidate>& heap = scratch->heap;
  const auto offer = [&](int32_t left) {
    const int32_t right = s[static_cast<size_t>(left)].next;
    if (right < 0) return;
    const int32_t a = s[static_cast<size_t>(left)].id, b = s[static_cast<size_t>(right)].id;
    if (const Merge* merge = Find(a, b); merge != nullptr) {
      heap.push_back({merge->rank, left, a, b, merge->joined});
      std::push_heap(heap.begin(), heap.end());
    }
  };
  heap.clear();
  const auto count = static_cast<int32_t>(s.size());
  for (int32_t i = 0; i < count; ++i) {
    s[static_cast<size_t>(i)].previous = i - 1;
    s[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
  for (int32_t i = 0; i < count; ++i) offer(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = s[static_cast<size_t>(top.at)];
    if (left.bytes == 0 || left.id != top.left || left.next < 0) continue;
    Scratch::Symbol& right = s[static_cast<size_t>(left.next)];
    if (right.id != top.right) continue;
    left.id = top.joined;
    left.bytes += right.bytes;
    left.next = right.next;
    right.bytes = 0;  // it is merged
    if (left.next >= 0) s[static_cast<size_t>(left.next)].previous = top.at;
    if (left.previous >= 0) offer(left.previous);
    offer(top.at);
  }
  std::erase_if(s, [](const Scratch::Symbol& symbol) { return symbol.bytes == 0; });
}

void BpeModel::Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* out) const {
  if (ignore_merges_) {
    const auto found = words_.find(piece);
    if (found != words_.end()) {
      out->push_back(found->second);
      return;
    }
  }
  std::vector<Scratch::Symbol>& symbols = scratch->symbols;
  symbols.clear();
  if (bytes_.empty()) {
    BeginWithCharacters(piece, &symbols);
  } else {
    BeginWithBytes(piece, &symbols);
  }
  if (symbols.size() <= kShortSymbols) {
    MergeShort(&symbols, scratch);
  } else {
    MergeLong(&symbols, scratch);
  }
  for (const Scratch::Symbol& symbol : symbols) out->push_back(symbol.id);
}

}  // namespace atl::tokenizer
