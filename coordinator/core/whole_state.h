// Everything the coordinator knows, as bytes. Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_WHOLE_STATE_H_
#define ATOLL_COORDINATOR_CORE_WHOLE_STATE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/core/state.h"

namespace atl::coord {

// REQUIRES: no Step is under way.
std::string SaveWhole(const State& s);
// Into a new State, whose functions of CoordinatorOptions stay. False: the bytes are not one's.
bool LoadWhole(absl::string_view bytes, State& s);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_WHOLE_STATE_H_
