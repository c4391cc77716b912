// A look at a job's data before it is submitted.

#ifndef ATOLL_WORKER_DATA_INSPECTION_H_
#define ATOLL_WORKER_DATA_INSPECTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "worker/data/digest_cache.h"
#include "worker/data/images.h"

namespace atl {

// The findings in a job's data, or in all that it names.
struct Inspection {
  std::string text;                   // describes what is there
  std::vector<std::string> warnings;  // of what a worker would do, but hardly as it is meant
  std::vector<std::string> unread;    // what was not looked at
  std::vector<std::string> missing;   // of that: what this machine has not and cannot fetch
};

// The depth of an inspection.
struct InspectionDepth {
  int64_t head_bytes = 1 << 20;  // of each of the first files
  bool remote = true;            // data in stores, too
};

// Inspects the data as a worker would, from the tokenizer, the heads of the files and samples of
// the rest alone. Data that are not on this machine, or that it may not read from a store, are not
// looked at; what a worker would refuse is the error. Of the model, if known: `images`, their size,
// and `frame`, that of documents.
absl::StatusOr<Inspection> InspectData(const DataSpec& spec, int64_t vocabulary,
                                       const std::optional<ImageShape>& images = std::nullopt,
                                       const std::optional<DocumentFrame>& frame = {},
                                       const InspectionDepth& depth = {});

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_INSPECTION_H_
