// A job's training and validation data as sequences of sequence_length tokens.
//
// Sequence i of a part covers its tokens [i T, i T + T], T = sequence_length: T inputs and, one
// further, T targets. What is left of less than T tokens at a part's end is not used.
//
// The coordinator leases positions of one endless axis (PositionRange in
// common/protocol/control.h): position p is sequence Order(p) of epoch p / N. Every epoch has its
// own shuffled order, which follows from the job's shuffle_seed alone: all workers agree on it
// without talking.
//
// Of images, a sequence is a sample: T is 1, and its row holds the pixels and behind them the
// class. Those that are trained on are cropped and mirrored by the seed and the position.
//
// Thread safety: const methods may be called from several threads.

#ifndef ATOLL_WORKER_DATA_DATASET_H_
#define ATOLL_WORKER_DATA_DATASET_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "common/protocol/control.h"
#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "worker/data/digest_cache.h"
#include "worker/data/images.h"
#include "worker/data/token_stream.h"

namespace atl {

class Dataset {
 public:
  // Opens and checks the files of `spec`: that each part has at least one sequence (validation:
  // unless validation_fraction is 0 and there is no validation_path), and that every token is one
  // of the model's `vocabulary`. Reads every byte of files that `digests` does not know.
  static absl::StatusOr<Dataset> Open(const DataSpec& spec, int64_t vocabulary,
                                      const DataOptions& options = {});

  int64_t sequence_length() const { return sequence_length_; }
  // Numbers of one sequence, as it is read.
  int64_t row() const { return (images_ ? images().pixels() : sequence_length_) + 1; }
  // Zeroes: there are none.
  ImageShape images() const { return images_ ? images_->shape() : ImageShape(); }
  int64_t train_sequences() const { return train_.sequences; }
  int64_t validation_sequences() const { return validation_.sequences; }

  // Equal on two machines that have the same tokens, split and sequence length.
  uint64_t digest() const { return digest_; }

  // Number of the training sequence at a position of the endless axis. REQUIRES: position >= 0.
  int64_t Order(int64_t position) const;

  // Training sequences of positions [first, first + n), as n rows of row() numbers. Of T + 1
  // tokens, row r holds inputs r[0..T) and targets r[1..T] (common/masked_tokens.h). n = out.size()
  // / row(), which must be whole. ABORTED: cancelled.
  absl::Status ReadTrain(int64_t first, std::span<int32_t> out,
                         const Cancelled& cancelled = {}) const;

  // How many targets of the training sequences at these positions, or of validation sequences
  // [first, first + count), are masked (common/masked_tokens.h). Reads them if there are masks.
  absl::StatusOr<int64_t> CountMasked(std::span<const PositionRange> ranges,
                                      const Cancelled& cancelled = {}) const;
  absl::StatusOr<int64_t> CountMaskedValidation(int64_t first, int64_t count,
                                                const Cancelled& cancelled = {}) const;

  // How many validation sequences a job evaluates that asks for `wanted`; 0: all.
  int64_t ValidationCount(int64_t wanted) const {
    return wanted == 0 ? validation_sequences() : std::min(wanted, validation_sequences());
  }

  // Validation sequences at places [first, first + n) of an order whose first m are spread evenly
  // over the validation part, for any m. REQUIRES: they exist.
  absl::Status ReadValidation(int64_t first, std::span<int32_t> out,
                              const Cancelled& cancelled = {}) const;

 private:
  // Tokens [begin, begin + sequences * T + 1) of one file.
  struct Part {
    int64_t begin = 0;
    int64_t sequences = 0;
  };

  Dataset() = default;
  static absl::StatusOr<Dataset> OpenImages(const DataSpec& spec, int64_t classes,
                                            const DataOptions& options);
  absl::Status Split(const DataSpec& spec);
  absl::Status TakeDigest(const DataOptions& options);
  absl::Status Read(const TokenStream& file, const Part& part, std::span<const int64_t> sequences,
                    std::span<int32_t> out, const Cancelled& cancelled) const;

  int64_t ValidationSequence(int64_t place) const;
  template <typename ReadRows>
  absl::StatusOr<int64_t> CountMaskedRows(int64_t first, int64_t end, const ReadRows& read) const;

  std::optional<TokenStream> train_file_;       // absent: images
  std::optional<TokenStream> validation_file_;  // absent: validation is the end of train_file_
  std::optional<ImageSet> images_, validation_images_;
  ImageChange change_;
  Part train_, validation_;
  bool masks_ = false;
  int64_t sequence_length_ = 0;
  int64_t vocabulary_ = 0;
  uint64_t shuffle_seed_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_DATASET_H_
