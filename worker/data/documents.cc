#include "worker/data/documents.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/masked_tokens.h"

namespace atl {
namespace {

// A window has at least so many of both.
constexpr int64_t kDocumentsAtOnce = int64_t{1} << 16, kSequencesAtOnce = 16;

}  // namespace

int64_t CountLonger(std::span<const Document> documents, int64_t tokens) {
  return std::count_if(documents.begin(), documents.end(),
                       [&](const Document& document) { return document.tokens > tokens; });
}

void DocumentSplitter::Add(std::span<const int32_t> tokens, std::vector<Document>* documents) {
  for (const int32_t token : tokens) {
    if (marks_.whole) {
      if (BeginsDocument(token)) End(documents);
      ++at_;
      if (token == marks_.end) End(documents);
      continue;
    }
    if (token == marks_.end) {
      End(documents);
      begin_ = ++at_;
      continue;
    }
    if (at_ == begin_ && token == marks_.before) ++begin_;
    last_ = token;
    ++at_;
  }
}

void DocumentSplitter::End(std::vector<Document>* documents) {
  int64_t size = at_ - begin_;
  if (size > 0 && last_ == marks_.behind) --size;
  if (size > 0) documents->push_back({begin_, size});
  begin_ = at_;
}

void DocumentPacker::Add(const Document& document, std::vector<Sequence>* sequences) {
  Document rest = document;
  for (const int64_t step = sequence_tokens_ - 1; rest.tokens > sequence_tokens_;) {
    sequences->push_back({{rest.begin, sequence_tokens_}});
    rest = {rest.begin + step, rest.tokens - step};
  }
  if (rest.tokens < 2) return;
  window_.push_back(rest);
  window_tokens_ += rest.tokens;
  if (std::ssize(window_) >= kDocumentsAtOnce &&
      window_tokens_ >= kSequencesAtOnce * sequence_tokens_) {
    Pack(/*all=*/false, sequences);
  }
}

void DocumentPacker::End(std::vector<Sequence>* sequences) { Pack(/*all=*/true, sequences); }

// The longest first, each where the least room is left behind it.
std::vector<DocumentPacker::Bin> DocumentPacker::FitBest() {
  std::ranges::stable_sort(window_, std::ranges::greater(), &Document::tokens);
  std::vector<Bin> bins;
  std::set<std::pair<int64_t, size_t>> room;  // and the bin that has it
  for (const Document& document : window_) {
    const auto found = room.lower_bound({document.tokens, 0});
    size_t bin = bins.size();
    if (found == room.end()) {
      bins.push_back({{}, sequence_tokens_});
    } else {
      bin = found->second;
      room.erase(found);
    }
    bins[bin].documents.push_back(document);
    bins[bin].free -= document.tokens;
    if (bins[bin].free >= 2) room.insert({bins[bin].free, bin});
  }
  window_.clear();
  window_tokens_ = 0;
  return bins;
}

// Fills the fullest with documents of the emptiest, cut where they have to be.
void DocumentPacker::FillHoles(std::vector<Bin*> holes) {
  std::ranges::stable_sort(holes, std::ranges::less(), &Bin::free);
  for (size_t full = 0, empty = holes.size(); full + 1 < empty;) {
    Bin &to = *holes[full], &from = *holes[empty - 1];
    Document& document = from.documents.back();
    const int64_t moved = std::min(to.free, document.tokens);
    to.documents.push_back({document.begin, moved});
    to.free -= moved;
    if (moved == document.tokens) {
      from.documents.pop_back();
      from.free += moved;
    } else {
      document = {document.begin + moved - 1, document.tokens - moved + 1};
      from.free += moved - 1;
    }
    if (from.documents.empty()) --empty;
    if (!HasHole(to)) ++full;
  }
}

void DocumentPacker::Pack(bool all, std::vector<Sequence>* sequences) {
  std::vector<Bin> bins = FitBest();
  std::vector<Bin*> holes;
  for (Bin& bin : bins) {
    if (HasHole(bin)) holes.push_back(&bin);
  }
  FillHoles(holes);
  std::erase_if(bins, [](const Bin& bin) { return bin.documents.empty(); });
  // In the order of their longest document's place: what is held out at the end is then no shorter
  // than the rest.
  std::ranges::stable_sort(bins, std::ranges::less(),
                           [](const Bin& bin) { return bin.documents.front().begin; });
  for (Bin& bin : bins) {
    if (all || !HasHole(bin)) {
      sequences->push_back(std::move(bin.documents));
    } else {
      window_.insert(window_.end(), bin.documents.begin(), bin.documents.end());
      window_tokens_ += sequence_tokens_ - bin.free;
    }
  }
}

}  // namespace atl
