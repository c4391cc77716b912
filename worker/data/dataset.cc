#include "worker/data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/masked_tokens.h"
#include "common/rng.h"
#include "worker/data/held_out.h"
#include "worker/data/permutation.h"

namespace atl {
namespace {

constexpr int64_t kRowsAtOnce = 16;
constexpr uint64_t kPackingVersion = 1;               // changes with what DocumentPacker makes
constexpr uint64_t kChangeSeed = 0x696d616765;        // of crops and flips, apart from the order
constexpr uint64_t kSourceSeed = 0x9e3779b97f4a7c15;  // between the orders of a mixture's sources

}  // namespace

absl::Status Dataset::TooSmall(const Part& part, int64_t units, absl::string_view name) const {
  const std::string& path = GetFilePath(part.file);
  if (!documents_.empty() || !images_.empty()) {
    const absl::string_view noun = frame_.has_value()   ? "documents"
                                   : documents_.empty() ? "images"
                                                        : "packed sequences";
    return absl::InvalidArgumentError(absl::StrCat("data path ", path, ": its ", name, " part has ",
                                                   units, " ", noun, ": use more ", noun,
                                                   " or another data.validation_fraction"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "data file ", path, ": its ", name, " part has ", units, " tokens; one sequence needs ",
      sequence_length_ + 1,
      ". Use a larger file, a smaller data.sequence_length or another data.validation_fraction"));
}

absl::StatusOr<Dataset> Dataset::Open(const DataSpec& spec, int64_t vocabulary,
                                      const DataOptions& options) {
  if (spec.format == DataFormat::kText && spec.tokenizer_path.empty() && vocabulary < 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.format is text, whose tokens are bytes, but the model's vocabulary is ",
                     vocabulary, "; it must be at least 256"));
  }
  if (const int64_t least = spec.pad_documents ? kFrameTokens + 1 : 1;
      spec.sequence_length < least) {
    return absl::InvalidArgumentError(absl::StrCat("data.sequence_length is ", spec.sequence_length,
                                                   "; expected at least ", least));
  }
  if (!(spec.validation_fraction >= 0 && spec.validation_fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("data.validation_fraction is ",
                                                   spec.validation_fraction,
                                                   "; expected at least 0 and below 1"));
  }
  if (spec.path.empty() && spec.sources.empty()) {
    return absl::InvalidArgumentError(
        "data.path is missing: the job has no data for this worker's site; name it in data.sites");
  }
  Dataset dataset;
  dataset.sequence_length_ = spec.sequence_length;
  dataset.vocabulary_ = vocabulary;
  dataset.shuffle_seed_ = spec.shuffle_seed;
  dataset.pairs_ = spec.documents == Documents::kPairs;
  dataset.change_ = {spec.crop_padding, spec.flip};
  ATOLL_CHECK(!spec.pad_documents || options.frame.has_value());
  if (spec.pad_documents) dataset.frame_ = options.frame;
  ATOLL_RETURN_IF_ERROR(dataset.AddSources(spec, options));
  ATOLL_RETURN_IF_ERROR(dataset.AddSets(spec, options));
  ATOLL_RETURN_IF_ERROR(dataset.CheckShapes());
  ATOLL_RETURN_IF_ERROR(dataset.TakeDigest(options));
  return dataset;
}

absl::Status Dataset::AddFile(const DataSpec& spec, const std::string& path,
                              const DataOptions& options) {
  if (IsImages(spec.format)) {
    ATOLL_ASSIGN_OR_RETURN(ImageSet images,
                           ImageSet::Open(spec, path, vocabulary_, options.watch.cancelled));
    images_.push_back(std::move(images));
    return absl::OkStatus();
  }
  ATOLL_ASSIGN_OR_RETURN(TokenStream file, TokenStream::Open(spec, path, vocabulary_, options));
  masks_ = masks_ || file.masked();
  if (frame_.has_value() || IsPacked(spec)) {
    const int64_t packed = IsPacked(spec) ? sequence_length_ + 1 : 0;
    ATOLL_ASSIGN_OR_RETURN(DocumentIndex index,
                           DocumentIndex::Open(file, vocabulary_, packed, options));
    documents_.push_back(std::move(index));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

const std::string& Dataset::GetFilePath(size_t file) const {
  return images_.empty() ? files_[file].path() : images_[file].path();
}

int64_t Dataset::CountUnits(size_t file) const {
  if (!images_.empty()) return images_[file].images();
  return documents_.empty() ? files_[file].tokens() : documents_[file].sequences();
}

int64_t Dataset::CountSequences(int64_t units) const {
  return images_.empty() && documents_.empty() ? SequencesIn(units, sequence_length_) : units;
}

absl::Status Dataset::AddSources(const DataSpec& spec, const DataOptions& options) {
  std::vector<DataSource> sources = spec.sources;
  if (sources.empty()) sources.push_back({spec.path, 1});
  Set held_out;
  std::vector<double> weights;
  for (const DataSource& source : sources) {
    ATOLL_RETURN_IF_ERROR(AddFile(spec, source.path, options));
    ATOLL_RETURN_IF_ERROR(SplitSource(spec, weights.size(), &held_out));
    weights.push_back(source.weight);
  }
  mixture_ = Mixture(weights);
  if (spec.validation_path.empty()) {
    AddSet(std::move(held_out));
    if (sets_[0].sequences > 0 || (spec.validation_fraction == 0 && images_.empty())) {
      return absl::OkStatus();
    }
    const Part& part = sets_[0].parts[0];
    return TooSmall(part, CountUnits(part.file) - part.begin, "validation");
  }
  return absl::OkStatus();
}

absl::Status Dataset::SplitSource(const DataSpec& spec, size_t file, Set* held_out) {
  const int64_t total = CountUnits(file);
  const int64_t kept_back =
      spec.validation_path.empty() ? HeldOut(total, spec.validation_fraction) : 0;
  train_.push_back({file, 0, CountSequences(total - kept_back)});
  if (train_.back().sequences < 1) {
    return TooSmall(train_.back(), total - kept_back, "training");
  }
  held_out->parts.push_back({file, total - kept_back, CountSequences(kept_back)});
  return absl::OkStatus();
}

absl::Status Dataset::AddSets(const DataSpec& spec, const DataOptions& options) {
  std::vector<std::string> paths;
  if (!spec.validation_path.empty()) paths.push_back(spec.validation_path);
  for (const ValidationSet& set : spec.validation) paths.push_back(set.path);
  for (const std::string& path : paths) {
    const size_t file = files_.size() + images_.size();
    ATOLL_RETURN_IF_ERROR(AddFile(spec, path, options));
    const int64_t sequences = CountSequences(CountUnits(file));
    const Part part = {file, 0, sequences};
    if (sequences < 1) return TooSmall(part, CountUnits(file), "validation");
    AddSet({0, 0, {part}});
  }
  return absl::OkStatus();
}

void Dataset::AddSet(Set set) {
  set.begin = sets_.empty() ? 0 : validation_sequences();
  set.sequences = 0;
  for (const Part& part : set.parts) set.sequences += part.sequences;
  sets_.push_back(std::move(set));
}

absl::Status Dataset::CheckShapes() const {
  for (size_t i = 1; i < images_.size(); ++i) {
    if (images_[i].shape() != images_[0].shape()) {
      return absl::InvalidArgumentError(absl::StrCat("data path ", GetFilePath(i),
                                                     ": its images are not of the size of ",
                                                     GetFilePath(0), "'s"));
    }
    if (images_[i].class_names() != images_[0].class_names()) {
      return absl::InvalidArgumentError(absl::StrCat("data path ", GetFilePath(i),
                                                     ": has not the classes of ", GetFilePath(0),
                                                     ": give both the same folders, by name"));
    }
  }
  return absl::OkStatus();
}

absl::Status Dataset::TakeDigest(const DataOptions& options) {
  std::vector<uint64_t> facts = {static_cast<uint64_t>(sequence_length_), shuffle_seed_,
                                 static_cast<uint64_t>(change_.crop_padding),
                                 static_cast<uint64_t>(change_.flip)};
  for (const TokenStream& file : files_) {
    ATOLL_ASSIGN_OR_RETURN(const uint64_t digest, file.Digest(vocabulary_, options));
    facts.push_back(digest);
  }
  for (const ImageSet& images : images_) facts.push_back(images.Digest());
  if (frame_.has_value()) {
    for (const int32_t token : {frame_->cls, frame_->sep, frame_->pad}) {
      facts.push_back(static_cast<uint64_t>(token));
    }
  }
  if (!documents_.empty() && !frame_.has_value()) facts.push_back(kPackingVersion);
  const auto add = [&](const Part& part) {
    facts.insert(facts.end(), {part.file, static_cast<uint64_t>(part.begin),
                               static_cast<uint64_t>(part.sequences)});
  };
  std::for_each(train_.begin(), train_.end(), add);
  for (const Set& set : sets_) std::for_each(set.parts.begin(), set.parts.end(), add);
  for (int64_t position = 0; train_.size() > 1 && position < Mixture::kPeriod; ++position) {
    facts.push_back(mixture_.At(position).source);
  }
  digest_ = XXH3_64bits(facts.data(), facts.size() * sizeof(uint64_t));
  return absl::OkStatus();
}

int64_t Dataset::train_sequences() const {
  int64_t sequences = 0;
  for (const Part& part : train_) sequences += part.sequences;
  return sequences;
}

Dataset::Location Dataset::LocateTraining(int64_t position) const {
  ATOLL_CHECK(position >= 0);
  const Mixture::Location location = mixture_.At(position % kAxisPositions);
  const Part& part = train_[location.source];
  const auto epoch = static_cast<uint64_t>(location.index / part.sequences);
  const uint64_t seed = shuffle_seed_ + kSourceSeed * location.source;
  const uint64_t key = Rng(seed, epoch).Next();
  return {&part, Permutation(part.sequences, key)(location.index % part.sequences)};
}

int64_t Dataset::Order(int64_t position) const {
  const Location location = LocateTraining(position);
  int64_t before = 0;
  for (const Part* part = train_.data(); part != location.part; ++part) before += part->sequences;
  return before + location.sequence;
}

PositionRange Dataset::SelectValidationPositions(int set, int64_t wanted) const {
  const Set& set_data = sets_.at(static_cast<size_t>(set));
  const int64_t count = wanted == 0 ? set_data.sequences : std::min(wanted, set_data.sequences);
  return {set_data.begin, set_data.begin + count};
}

// The first m multiples of a step near N / golden ratio, modulo N, are spread evenly over [0, N),
// for any m (the three-distance theorem); where the step has no factor in common with N, N of them
// are all.
Dataset::Location Dataset::LocateValidation(int64_t position) const {
  ATOLL_CHECK(position >= 0 && position < validation_sequences());
  const Set& set = *std::find_if(sets_.rbegin(), sets_.rend(), [&](const Set& one) {
    return one.begin <= position && one.sequences > 0;
  });
  const int64_t count = set.sequences;
  auto step = static_cast<int64_t>(static_cast<double>(count) * 0.6180339887498949);
  while (std::gcd(step, count) != 1) ++step;
  auto sequence = static_cast<int64_t>(static_cast<__int128>(position - set.begin) * step % count);
  const Part* part = set.parts.data();
  for (; sequence >= part->sequences; ++part) sequence -= part->sequences;
  return {part, sequence};
}

std::vector<Dataset::Location> Dataset::LocateTrainingAfter(int64_t first, int64_t count) const {
  std::vector<Location> locations;
  const std::lock_guard lock(pattern_->mutex);
  for (const PositionRange& range : pattern_->pattern.Note(first, count)) {
    for (int64_t p = range.begin; p < range.end; ++p) locations.push_back(LocateTraining(p));
  }
  return locations;
}

absl::Status Dataset::LoadImages(std::span<const Location> locations,
                                 std::span<const Location> next, const Cancelled& cancelled) const {
  for (size_t file = 0; file < images_.size(); ++file) {
    const auto select_by_file = [&](std::span<const Location> from) {
      std::vector<int64_t> images;
      for (const Location& location : from) {
        if (location.part->file == file) images.push_back(location.part->begin + location.sequence);
      }
      return images;
    };
    const std::vector<int64_t> now = select_by_file(locations);
    if (now.empty()) continue;
    ATOLL_RETURN_IF_ERROR(images_[file].Load(now, select_by_file(next), cancelled));
  }
  return absl::OkStatus();
}

absl::Status Dataset::ReadRows(std::span<const Location> locations, std::span<const Location> next,
                               std::optional<int64_t> first, std::span<int32_t> out,
                               const Cancelled& cancelled) const {
  if (images_.empty()) return ReadTokens(locations, out, cancelled);
  ATOLL_RETURN_IF_ERROR(LoadImages(locations, next, cancelled));
  const auto row_size = static_cast<size_t>(row());
  for (size_t r = 0; r < locations.size(); ++r) {
    const Part& part = *locations[r].part;
    const auto position = static_cast<uint64_t>(first.value_or(0)) + r;
    images_[part.file].Read(part.begin + locations[r].sequence,
                            first.has_value() ? change_ : ImageChange(),
                            first.has_value() ? Rng(shuffle_seed_ ^ kChangeSeed, position) : Rng(0),
                            out.subspan(r * row_size, row_size));
  }
  return absl::OkStatus();
}

absl::Status Dataset::ReadTrain(int64_t first, std::span<int32_t> out,
                                const Cancelled& cancelled) const {
  const int64_t count = std::ssize(out) / row();
  std::vector<Location> locations, next;
  for (int64_t r = 0; r < count; ++r) locations.push_back(LocateTraining(first + r));
  if (!images_.empty()) next = LocateTrainingAfter(first, count);
  return ReadRows(locations, next, first, out, cancelled);
}

absl::Status Dataset::ReadValidation(int64_t first, std::span<int32_t> out,
                                     const Cancelled& cancelled) const {
  const int64_t end = first + std::ssize(out) / row();
  std::vector<Location> locations, next;
  for (int64_t p = first; p < end; ++p) locations.push_back(LocateValidation(p));
  const int64_t last = std::min(2 * end - first, validation_sequences());
  for (int64_t p = end; !images_.empty() && p < last; ++p) next.push_back(LocateValidation(p));
  return ReadRows(locations, next, std::nullopt, out, cancelled);
}

template <typename Locate, typename Read>
absl::StatusOr<int64_t> Dataset::CountMaskedRows(const PositionRange& range, const Locate& locate,
                                                 const Read& read,
                                                 const Cancelled& cancelled) const {
  int64_t masked = 0;
  for (int64_t p = range.begin; frame_.has_value() && p < range.end; ++p) {
    ATOLL_ASSIGN_OR_RETURN(const int64_t here, CountUnpredicted(locate(p), cancelled));
    masked += here;
  }
  if (frame_.has_value()) return masked;
  if (pairs_) return (range.end - range.begin) * (sequence_length_ - 1);
  std::vector<int32_t> rows;
  for (int64_t begin = range.begin; masks_ && begin < range.end; begin += kRowsAtOnce) {
    rows.resize(static_cast<size_t>(std::min(kRowsAtOnce, range.end - begin) * row()));
    ATOLL_RETURN_IF_ERROR(read(begin, rows));
    masked += atl::CountMasked(rows, sequence_length_ + 1);
  }
  return masked;
}

absl::StatusOr<int64_t> Dataset::CountMasked(std::span<const PositionRange> ranges,
                                             const Cancelled& cancelled) const {
  int64_t masked = 0;
  for (const PositionRange& range : ranges) {
    ATOLL_ASSIGN_OR_RETURN(
        const int64_t here,
        CountMaskedRows(
            range, [&](int64_t p) { return LocateTraining(p); },
            [&](int64_t p, std::span<int32_t> rows) { return ReadTrain(p, rows, cancelled); },
            cancelled));
    masked += here;
  }
  return masked;
}

absl::StatusOr<int64_t> Dataset::CountMaskedValidation(int64_t first, int64_t count,
                                                       const Cancelled& cancelled) const {
  return CountMaskedRows(
      {first, first + count}, [&](int64_t p) { return LocateValidation(p); },
      [&](int64_t p, std::span<int32_t> rows) { return ReadValidation(p, rows, cancelled); },
      cancelled);
}

absl::StatusOr<std::vector<Document>> Dataset::FindDocuments(const Location& location,
                                                             const Cancelled& cancelled) const {
  ATOLL_CHECK(location.sequence >= 0 && location.sequence < location.part->sequences);
  ATOLL_ASSIGN_OR_RETURN(
      std::vector<Document> documents,
      documents_[location.part->file].Read(location.part->begin + location.sequence, cancelled));
  if (frame_.has_value()) {
    documents[0].tokens = std::min(documents[0].tokens, sequence_length_ - kFrameTokens);
  }
  return documents;
}

absl::StatusOr<int64_t> Dataset::CountUnpredicted(const Location& location,
                                                  const Cancelled& cancelled) const {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Document> alone, FindDocuments(location, cancelled));
  return sequence_length_ - CountPredicted(alone[0].tokens + kFrameTokens);
}

void Dataset::FrameDocument(std::span<int32_t> row, int64_t tokens) const {
  row[0] = frame_->cls;
  row[static_cast<size_t>(tokens) + 1] = frame_->sep;
  std::fill(row.begin() + tokens + kFrameTokens, row.end(), MaskToken(frame_->pad));
}

absl::Status Dataset::ReadDocuments(std::span<const Location> locations, std::span<int32_t> out,
                                    const Cancelled& cancelled) const {
  const auto length = static_cast<size_t>(this->row());
  std::vector<std::vector<Document>> rows;
  std::map<size_t, std::vector<Document>> wanted;  // of each file that is read
  for (const Location& location : locations) {
    ATOLL_ASSIGN_OR_RETURN(rows.emplace_back(), FindDocuments(location, cancelled));
    std::vector<Document>& of_file = wanted[location.part->file];
    of_file.insert(of_file.end(), rows.back().begin(), rows.back().end());
  }
  for (const auto& [file, ranges] : wanted) {
    ATOLL_RETURN_IF_ERROR(files_[file].Prefetch(ranges, cancelled));
  }
  for (size_t r = 0; r < locations.size(); ++r) {
    const std::span<int32_t> row = out.subspan(r * length, length);
    size_t at = frame_.has_value() ? 1 : 0;
    for (const Document& document : rows[r]) {
      const auto part = row.subspan(at, static_cast<size_t>(document.tokens));
      ATOLL_RETURN_IF_ERROR(
          files_[locations[r].part->file].Read(document.begin, vocabulary_, part, cancelled));
      if (!frame_.has_value()) part[0] = MarkDocument(part[0]);
      at += part.size();
    }
    if (frame_.has_value()) {
      FrameDocument(row, rows[r][0].tokens);
    } else if (at < length) {
      std::ranges::fill(row.subspan(at), MaskToken(0));
      row[at] = MarkDocument(0);  // so that no document sees the rest
    }
  }
  return absl::OkStatus();
}

absl::Status Dataset::ReadTokens(std::span<const Location> locations, std::span<int32_t> out,
                                 const Cancelled& cancelled) const {
  if (!documents_.empty()) return ReadDocuments(locations, out, cancelled);
  const auto length = static_cast<size_t>(this->row());
  ATOLL_CHECK(out.size() == locations.size() * length);
  std::map<size_t, std::vector<Document>> wanted;  // of each file that is read
  const auto get_begin = [&](const Location& location) {
    ATOLL_CHECK(location.sequence >= 0 && location.sequence < location.part->sequences);
    return location.part->begin + location.sequence * sequence_length_;
  };
  for (const Location& location : locations) {
    wanted[location.part->file].push_back({get_begin(location), sequence_length_ + 1});
  }
  for (const auto& [file, ranges] : wanted) {
    ATOLL_RETURN_IF_ERROR(files_[file].Prefetch(ranges, cancelled));
  }
  for (size_t r = 0; r < locations.size(); ++r) {
    ATOLL_RETURN_IF_ERROR(files_[locations[r].part->file].Read(
        get_begin(locations[r]), vocabulary_, out.subspan(r * length, length), cancelled));
  }
  return absl::OkStatus();
}

}  // namespace atl
