// Compares two descriptions of a model, which two versions of Atoll may have written, by their
// meaning.

#ifndef ATOLL_COMMON_MODEL_SAME_MODEL_H_
#define ATOLL_COMMON_MODEL_SAME_MODEL_H_

#include "common/protocol/job_spec.h"

namespace atl {

// Returns whether workers with `a` and with `b` train alike. Of config_json its meaning counts, not
// its text, and neither how weights began nor tokens that exports alone carry.
bool IsSameModel(const ModelSpec& a, const ModelSpec& b);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_SAME_MODEL_H_
