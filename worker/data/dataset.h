// A job's training and validation data as sequences of sequence_length tokens.
//
// The training part is that of one source, or a mixture of several (mixture.h), each with an order
// of its own. Validation has the held-out data as its set 0, and data.validation's behind it.
//
// Sequence i of a part covers its tokens [i T, i T + T], T = sequence_length: T inputs and, one
// further, T targets. What is left of less than T tokens at a part's end is not used.
//
// The coordinator leases positions of one endless axis (PositionRange in
// common/protocol/control.h): position p is sequence Order(p) of epoch p / N. Every epoch has its
// own shuffled order, which follows from the job's shuffle_seed alone: all workers agree on it
// without talking.
//
// With data.pad_documents a sequence is a document, of the first tokens of a longer one, in the
// model's frame: [CLS] document [SEP] [PAD]... (common/masked_tokens.h). Empty ones are left out.
//
// With data.documents = "pairs" a sequence is a chosen conversation, a rejected one and masked
// tokens, and it has one target: CountMasked counts all but one of its tokens.
//
// With data.documents that are packed, a sequence holds the documents that DocumentPacker gives it,
// and behind them masked tokens: each begins with a marked one (common/masked_tokens.h).
//
// Of images, a sequence is a sample: T is 1, and its row holds the pixels and behind them the
// class. Those that are trained on are cropped and mirrored by the seed and the position.
//
// Thread safety: const methods may be called from several threads.

#ifndef ATOLL_WORKER_DATA_DATASET_H_
#define ATOLL_WORKER_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/protocol/control.h"
#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "worker/data/digest_cache.h"
#include "worker/data/document_index.h"
#include "worker/data/images.h"
#include "worker/data/mixture.h"
#include "worker/data/token_stream.h"

namespace atl {

class Dataset {
 public:
  // Opens and checks the files of `spec`: that each part has at least one sequence (validation:
  // unless validation_fraction is 0 and there is no validation_path), and that every token is one
  // of the model's `vocabulary`. Reads every byte of files that `digests` does not know. REQUIRES:
  // with data.pad_documents, options.frame.
  static absl::StatusOr<Dataset> Open(const DataSpec& spec, int64_t vocabulary,
                                      const DataOptions& options = {});

  int64_t sequence_length() const { return sequence_length_; }
  // Numbers of one sequence, as it is read.
  int64_t row() const { return (images_.empty() ? sequence_length_ : images().pixels()) + 1; }
  // Zeroes: there are none.
  ImageShape images() const { return images_.empty() ? ImageShape() : images_[0].shape(); }
  int64_t train_sequences() const;
  // Returns the number of sequences of all sets together.
  int64_t validation_sequences() const { return sets_.back().begin + sets_.back().sequences; }

  // Equal on two machines that have the same tokens, split and sequence length.
  uint64_t digest() const { return digest_; }

  // Number of the training sequence at a position of an endless axis; those of a source come behind
  // those of the sources before it. REQUIRES: position >= 0.
  int64_t Order(int64_t position) const;

  // Training sequences of positions [first, first + n), as n rows of row() numbers. Of T + 1
  // tokens, row r holds inputs r[0..T) and targets r[1..T] (common/masked_tokens.h). n = out.size()
  // / row(), which must be whole. ABORTED: cancelled.
  absl::Status ReadTrain(int64_t first, std::span<int32_t> out,
                         const Cancelled& cancelled = {}) const;

  // Returns how many targets of the training sequences at these positions, or of validation
  // sequences [first, first + count), are masked (common/masked_tokens.h), or are none of a padded
  // document (CountPredicted). Reads sequences that may have masks.
  absl::StatusOr<int64_t> CountMasked(std::span<const PositionRange> ranges,
                                      const Cancelled& cancelled = {}) const;
  absl::StatusOr<int64_t> CountMaskedValidation(int64_t first, int64_t count,
                                                const Cancelled& cancelled = {}) const;

  // The positions of set `set` that a job evaluates with `wanted` sequences; 0: all.
  // REQUIRES: there is this set.
  PositionRange SelectValidationPositions(int set, int64_t wanted) const;

  // Validation sequences at positions [first, first + n) of an order in which sets follow each
  // other, and any first ones of a set are spread evenly over it. REQUIRES: they exist.
  absl::Status ReadValidation(int64_t first, std::span<int32_t> out,
                              const Cancelled& cancelled = {}) const;

 private:
  // Tokens [begin, begin + sequences * T + 1) of a file, or images or sequences of documents
  // [begin, begin + sequences).
  struct Part {
    size_t file = 0;
    int64_t begin = 0;
    int64_t sequences = 0;
  };
  // One sequence of a part.
  struct Location {
    const Part* part = nullptr;
    int64_t sequence = 0;
  };
  struct Set {
    int64_t begin = 0;  // its first place
    int64_t sequences = 0;
    std::vector<Part> parts;  // together they have its sequences
  };

  struct SharedPattern {
    std::mutex mutex;
    ReadPattern pattern;
  };

  Dataset() : pattern_(std::make_shared<SharedPattern>()) {}
  absl::Status AddFile(const DataSpec& spec, const std::string& path, const DataOptions& options);
  absl::Status AddSources(const DataSpec& spec, const DataOptions& options);
  absl::Status AddSets(const DataSpec& spec, const DataOptions& options);
  absl::Status SplitSource(const DataSpec& spec, size_t file, Set* held_out);
  void AddSet(Set set);
  absl::Status CheckShapes() const;
  absl::Status TakeDigest(const DataOptions& options);

  const std::string& GetFilePath(size_t file) const;
  absl::Status TooSmall(const Part& part, int64_t units, absl::string_view name) const;
  int64_t CountUnits(size_t file) const;            // tokens, images or sequences of documents
  int64_t CountSequences(int64_t units) const;      // whole ones
  Location LocateTraining(int64_t position) const;  // REQUIRES: position >= 0
  // Images at `locations`, and what is expected to be read after them.
  absl::Status LoadImages(std::span<const Location> locations, std::span<const Location> next,
                          const Cancelled& cancelled) const;
  std::vector<Location> LocateTrainingAfter(int64_t first,
                                            int64_t count) const;  // of training images
  Location LocateValidation(int64_t position) const;  // REQUIRES: there is this position
  // `next`: as LoadImages has it. `first`: the position of training images, which are changed by
  // it.
  absl::Status ReadRows(std::span<const Location> locations, std::span<const Location> next,
                        std::optional<int64_t> first, std::span<int32_t> out,
                        const Cancelled& cancelled) const;
  absl::Status ReadTokens(std::span<const Location> locations, std::span<int32_t> out,
                          const Cancelled& cancelled) const;
  absl::Status ReadDocuments(std::span<const Location> locations, std::span<int32_t> out,
                             const Cancelled& cancelled) const;
  // Finds the documents of a sequence; a padded one is cut.
  absl::StatusOr<std::vector<Document>> FindDocuments(const Location& location,
                                                      const Cancelled& cancelled) const;
  void FrameDocument(std::span<int32_t> row, int64_t tokens) const;
  // Counts what CountMasked counts, of one sequence.
  absl::StatusOr<int64_t> CountUnpredicted(const Location& location,
                                           const Cancelled& cancelled) const;
  // Counts what CountMasked counts at these positions, which `locate` finds and `read` reads.
  template <typename Locate, typename Read>
  absl::StatusOr<int64_t> CountMaskedRows(const PositionRange& range, const Locate& locate,
                                          const Read& read, const Cancelled& cancelled) const;

  // Either of tokens or of images: the sources, and behind them those for validation alone.
  std::vector<TokenStream> files_;
  std::vector<ImageSet> images_;
  std::vector<DocumentIndex> documents_;  // of each file, where they are padded or packed
  std::optional<DocumentFrame> frame_;    // where they are padded
  ImageChange change_;
  std::shared_ptr<SharedPattern> pattern_;  // of reading images
  Mixture mixture_;
  std::vector<Part> train_;  // of each source
  std::vector<Set> sets_;    // at least the held-out one
  bool pairs_ = false;       // each sequence is one
  bool masks_ = false;       // tokens say what the loss leaves out, beside documents' borders
  int64_t sequence_length_ = 0;
  int64_t vocabulary_ = 0;
  uint64_t shuffle_seed_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_DATASET_H_
