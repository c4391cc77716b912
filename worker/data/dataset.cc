#include "worker/data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/masked_tokens.h"
#include "common/rng.h"
#include "worker/data/permutation.h"

namespace atl {
namespace {

constexpr int64_t kRowsAtOnce = 16;
constexpr uint64_t kChangeSeed = 0x696d616765;  // of crops and flips, apart from the order

int64_t SequencesIn(int64_t tokens, int64_t sequence_length) {
  return tokens < 1 ? 0 : (tokens - 1) / sequence_length;
}

absl::Status TooSmall(const TokenStream& file, absl::string_view part, int64_t tokens,
                      int64_t sequence_length) {
  return absl::InvalidArgumentError(absl::StrCat(
      "data file ", file.path(), ": its ", part, " part has ", tokens,
      " tokens; one sequence needs ", sequence_length + 1,
      ". Use a larger file, a smaller data.sequence_length or another data.validation_fraction"));
}

}  // namespace

absl::StatusOr<Dataset> Dataset::Open(const DataSpec& spec, int64_t vocabulary,
                                      const DataOptions& options) {
  if (spec.format == DataFormat::kText && spec.tokenizer_path.empty() && vocabulary < 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.format is text, whose tokens are bytes, but the model's vocabulary is ",
                     vocabulary, "; it must be at least 256"));
  }
  if (spec.sequence_length < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequence_length is ", spec.sequence_length, "; expected at least 1"));
  }
  if (!(spec.validation_fraction >= 0 && spec.validation_fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("data.validation_fraction is ",
                                                   spec.validation_fraction,
                                                   "; expected at least 0 and below 1"));
  }
  if (IsImages(spec.format)) return OpenImages(spec, vocabulary, options);
  ATOLL_ASSIGN_OR_RETURN(TokenStream train,
                         TokenStream::Open(spec, spec.path, vocabulary, options));
  Dataset dataset;
  dataset.train_file_ = std::move(train);
  dataset.sequence_length_ = spec.sequence_length;
  dataset.vocabulary_ = vocabulary;
  dataset.shuffle_seed_ = spec.shuffle_seed;
  if (!spec.validation_path.empty()) {
    ATOLL_ASSIGN_OR_RETURN(dataset.validation_file_,
                           TokenStream::Open(spec, spec.validation_path, vocabulary, options));
  }
  dataset.masks_ = dataset.train_file_->masked() ||
                   (dataset.validation_file_.has_value() && dataset.validation_file_->masked());
  ATOLL_RETURN_IF_ERROR(dataset.Split(spec));
  ATOLL_RETURN_IF_ERROR(dataset.TakeDigest(options));
  return dataset;
}

absl::StatusOr<Dataset> Dataset::OpenImages(const DataSpec& spec, int64_t classes,
                                            const DataOptions& options) {
  Dataset dataset;
  dataset.sequence_length_ = spec.sequence_length;
  dataset.vocabulary_ = classes;
  dataset.shuffle_seed_ = spec.shuffle_seed;
  dataset.change_ = {spec.crop_padding, spec.flip};
  const auto open = [&](const std::string& path) {
    return ImageSet::Open(spec, path, classes, options.watch.cancelled);
  };
  ATOLL_ASSIGN_OR_RETURN(dataset.images_, open(spec.path));
  const int64_t total = dataset.images_->images();
  int64_t held_out = static_cast<int64_t>(static_cast<double>(total) * spec.validation_fraction);
  uint64_t validation_digest = 0;
  if (!spec.validation_path.empty()) {
    ATOLL_ASSIGN_OR_RETURN(dataset.validation_images_, open(spec.validation_path));
    if (dataset.validation_images_->shape() != dataset.images_->shape()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.validation_path: its images are not of the size of data.path's"));
    }
    if (dataset.validation_images_->class_names() != dataset.images_->class_names()) {
      return absl::InvalidArgumentError(absl::StrCat("data.validation_path: ", spec.validation_path,
                                                     " has not the classes of ", spec.path,
                                                     ": give both the same folders, by name"));
    }
    held_out = 0;
    validation_digest = dataset.validation_images_->Digest();
  }
  dataset.train_ = {0, total - held_out};
  dataset.validation_ = {dataset.train_.sequences, held_out};
  if (dataset.validation_images_) dataset.validation_ = {0, dataset.validation_images_->images()};
  if (dataset.train_.sequences < 1 || dataset.validation_.sequences < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.path: ", spec.path, " has ", total, " images, of which ", held_out,
                     " are held out: use more images or another data.validation_fraction"));
  }
  const uint64_t facts[] = {dataset.images_->Digest(),
                            validation_digest,
                            static_cast<uint64_t>(dataset.train_.sequences),
                            static_cast<uint64_t>(spec.crop_padding),
                            static_cast<uint64_t>(spec.flip),
                            spec.shuffle_seed};
  dataset.digest_ = XXH3_64bits(facts, sizeof facts);
  return dataset;
}

absl::Status Dataset::Split(const DataSpec& spec) {
  const int64_t total = train_file_->tokens();
  int64_t validation_tokens = 0;
  if (validation_file_.has_value()) {
    validation_tokens = validation_file_->tokens();
  } else {
    validation_tokens = static_cast<int64_t>(static_cast<double>(total) * spec.validation_fraction);
  }
  const int64_t train_tokens = validation_file_.has_value() ? total : total - validation_tokens;
  train_ = {0, SequencesIn(train_tokens, sequence_length_)};
  validation_ = {validation_file_.has_value() ? 0 : train_tokens,
                 SequencesIn(validation_tokens, sequence_length_)};
  if (train_.sequences == 0) {
    return TooSmall(*train_file_, "training", train_tokens, sequence_length_);
  }
  const bool wanted = validation_file_.has_value() || spec.validation_fraction > 0;
  if (wanted && validation_.sequences == 0) {
    return TooSmall(validation_file_.has_value() ? *validation_file_ : *train_file_, "validation",
                    validation_tokens, sequence_length_);
  }
  return absl::OkStatus();
}

absl::Status Dataset::TakeDigest(const DataOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(const uint64_t train_digest, train_file_->Digest(vocabulary_, options));
  uint64_t validation_digest = 0;
  if (validation_file_.has_value()) {
    ATOLL_ASSIGN_OR_RETURN(validation_digest, validation_file_->Digest(vocabulary_, options));
  }
  const uint64_t facts[] = {train_digest,
                            validation_digest,
                            static_cast<uint64_t>(sequence_length_),
                            static_cast<uint64_t>(train_.sequences),
                            static_cast<uint64_t>(validation_.begin),
                            static_cast<uint64_t>(validation_.sequences),
                            shuffle_seed_};
  digest_ = XXH3_64bits(facts, sizeof facts);
  return absl::OkStatus();
}

int64_t Dataset::Order(int64_t position) const {
  ATOLL_CHECK(position >= 0);
  const int64_t epoch = position / train_.sequences;
  const uint64_t key = Rng(shuffle_seed_, static_cast<uint64_t>(epoch)).Next();
  return Permutation(train_.sequences, key)(position % train_.sequences);
}

// The first m multiples of a step near N / golden ratio, modulo N, are spread evenly over [0, N),
// for any m (the three-distance theorem); where the step has no factor in common with N, N of them
// are all.
int64_t Dataset::ValidationSequence(int64_t place) const {
  const int64_t count = validation_.sequences;
  ATOLL_CHECK(place >= 0 && place < count);
  auto step = static_cast<int64_t>(static_cast<double>(count) * 0.6180339887498949);
  while (std::gcd(step, count) != 1) ++step;
  return static_cast<int64_t>(static_cast<__int128>(place) * step % count);
}

absl::Status Dataset::ReadTrain(int64_t first, std::span<int32_t> out,
                                const Cancelled& cancelled) const {
  std::vector<int64_t> sequences(out.size() / static_cast<size_t>(row()));
  for (size_t r = 0; r < sequences.size(); ++r) {
    sequences[r] = Order(first + static_cast<int64_t>(r));
  }
  const auto row_size = static_cast<size_t>(row());
  for (size_t r = 0; images_ && r < sequences.size(); ++r) {
    const auto position = static_cast<uint64_t>(first) + r;
    images_->Read(sequences[r], change_, Rng(shuffle_seed_ ^ kChangeSeed, position),
                  out.subspan(r * row_size, row_size));
  }
  if (images_) return absl::OkStatus();
  return Read(*train_file_, train_, sequences, out, cancelled);
}

absl::Status Dataset::ReadValidation(int64_t first, std::span<int32_t> out,
                                     const Cancelled& cancelled) const {
  std::vector<int64_t> sequences(out.size() / static_cast<size_t>(row()));
  for (size_t r = 0; r < sequences.size(); ++r) {
    sequences[r] = ValidationSequence(first + static_cast<int64_t>(r));
  }
  const auto row_size = static_cast<size_t>(row());
  for (size_t r = 0; images_ && r < sequences.size(); ++r) {
    const ImageSet& images = validation_images_ ? *validation_images_ : *images_;
    images.Read(validation_.begin + sequences[r], {}, Rng(0), out.subspan(r * row_size, row_size));
  }
  if (images_) return absl::OkStatus();
  const TokenStream& file = validation_file_.has_value() ? *validation_file_ : *train_file_;
  return Read(file, validation_, sequences, out, cancelled);
}

template <typename ReadRows>
absl::StatusOr<int64_t> Dataset::CountMaskedRows(int64_t first, int64_t end,
                                                 const ReadRows& read) const {
  int64_t masked = 0;
  std::vector<int32_t> rows;
  for (int64_t begin = first; masks_ && begin < end; begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, end - begin);
    rows.resize(static_cast<size_t>(count * row()));
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
        CountMaskedRows(range.begin, range.end, [&](int64_t first, std::span<int32_t> rows) {
          return ReadTrain(first, rows, cancelled);
        }));
    masked += here;
  }
  return masked;
}

absl::StatusOr<int64_t> Dataset::CountMaskedValidation(int64_t first, int64_t count,
                                                       const Cancelled& cancelled) const {
  return CountMaskedRows(first, first + count, [&](int64_t begin, std::span<int32_t> rows) {
    return ReadValidation(begin, rows, cancelled);
  });
}

absl::Status Dataset::Read(const TokenStream& file, const Part& part,
                           std::span<const int64_t> sequences, std::span<int32_t> out,
                           const Cancelled& cancelled) const {
  const auto length = static_cast<size_t>(this->row());
  ATOLL_CHECK(out.size() == sequences.size() * length);
  std::vector<int64_t> begins;
  for (const int64_t sequence : sequences) {
    ATOLL_CHECK(sequence >= 0 && sequence < part.sequences);
    begins.push_back(part.begin + sequence * sequence_length_);
  }
  ATOLL_RETURN_IF_ERROR(file.Prefetch(begins, sequence_length_ + 1, cancelled));
  for (size_t r = 0; r < begins.size(); ++r) {
    ATOLL_RETURN_IF_ERROR(
        file.Read(begins[r], vocabulary_, out.subspan(r * length, length), cancelled));
  }
  return absl::OkStatus();
}

}  // namespace atl
