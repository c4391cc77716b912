#include "common/tokenizer/split.h"

#include <algorithm>
#include <utility>

#include "common/tokenizer/unicode.h"

namespace atl::tokenizer {
namespace {

// Joins a match to the part beside it that was appended last, unless that is a match itself.
template <typename Iterator, typename Join>
void Merge(Iterator first, Iterator last, std::vector<Pieces::Range>* out, Join join) {
  const size_t before = out->size();
  bool previous_match = false;
  for (; first != last; ++first) {
    if (first->match && !previous_match && out->size() > before) {
      join(&out->back(), *first);
    } else {
      out->push_back({first->begin, first->end});
    }
    previous_match = first->match;
  }
}

void MergeContiguous(const std::vector<Part>& parts, std::vector<Pieces::Range>* out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && parts[i].match == parts[i - 1].match) {
      out->back().end = parts[i].end;
    } else {
      out->push_back({parts[i].begin, parts[i].end});
    }
  }
}

}  // namespace

absl::StatusOr<Behavior> ParseBehavior(const std::string& name, const std::string& where) {
  constexpr std::pair<const char*, Behavior> kNames[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  return Bad(absl::StrCat(where, ".behavior"), absl::StrCat("\"", name, "\" is not a behavior"));
}

absl::Status PartsByRegex(const Regex& regex, std::string_view piece, size_t base,
                          std::vector<Part>* parts) {
  size_t at = 0;
  for (size_t from = 0; from < piece.size();) {
    ATOLL_ASSIGN_OR_RETURN(const Match match, regex.Find(piece, from));
    if (!match.found) break;
    if (match.begin > at) parts->push_back({base + at, base + match.begin, false});
    if (match.end > match.begin) {
      parts->push_back({base + match.begin, base + match.end, true});
      from = match.end;
    } else {
      from =
          match.end < piece.size() ? match.end + CharacterAt(piece, match.end).bytes : piece.size();
    }
    at = match.end;
  }
  if (at < piece.size()) parts->push_back({base + at, base + piece.size(), false});
  return absl::OkStatus();
}

void PartsByPredicate(Predicate predicate, std::string_view piece, size_t base,
                      std::vector<Part>* parts) {
  size_t at = 0;
  for (size_t i = 0; i < piece.size();) {
    const Character c = CharacterAt(piece, i);
    if (predicate(c.code)) {
      if (i > at) parts->push_back({base + at, base + i, false});
      parts->push_back({base + i, base + i + c.bytes, true});
      at = i + c.bytes;
    }
    i += c.bytes;
  }
  if (at < piece.size()) parts->push_back({base + at, base + piece.size(), false});
}

void AppendPieces(const std::vector<Part>& parts, Behavior behavior,
                  std::vector<Pieces::Range>* out) {
  const size_t before = out->size();
  switch (behavior) {
    case Behavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.match) out->push_back({part.begin, part.end});
      }
      break;
    case Behavior::kIsolated:
      for (const Part& part : parts) out->push_back({part.begin, part.end});
      break;
    case Behavior::kMergedWithPrevious:
      Merge(parts.begin(), parts.end(), out,
            [](Pieces::Range* last, const Part& part) { last->end = part.end; });
      break;
    case Behavior::kMergedWithNext:
      Merge(parts.rbegin(), parts.rend(), out,
            [](Pieces::Range* last, const Part& part) { last->begin = part.begin; });
      std::reverse(out->begin() + static_cast<std::ptrdiff_t>(before), out->end());
      break;
    case Behavior::kContiguous:
      MergeContiguous(parts, out);
      break;
  }
}

}  // namespace atl::tokenizer
