// Changes JSON as JSON: a fuzzer that changes single bytes rarely makes "[]" of a number, or names
// a member twice.

#ifndef ATOLL_TESTS_FUZZ_JSON_MUTATOR_H_
#define ATOLL_TESTS_FUZZ_JSON_MUTATOR_H_

#include <optional>
#include <string>
#include <string_view>

#include "common/rng.h"

namespace atl::fuzz {

// `text` with a few values replaced, removed, copied or moved to another place. Nothing: `text` is
// no JSON object or array, or is nested too deeply.
std::optional<std::string> MutatedJson(std::string_view text, Rng& rng);

}  // namespace atl::fuzz

#endif  // ATOLL_TESTS_FUZZ_JSON_MUTATOR_H_
