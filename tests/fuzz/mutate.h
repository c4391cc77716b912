// Changes inputs by their structure: a fuzzer that changes single bytes rarely makes "[]" of a
// number, names a member twice, or takes a field out of a message whose length is written before
// it.

#ifndef ATOLL_TESTS_FUZZ_MUTATE_H_
#define ATOLL_TESTS_FUZZ_MUTATE_H_

#include <optional>
#include <string>
#include <string_view>

#include "common/rng.h"

namespace atl::fuzz {

// `text` with a few values replaced, removed, copied or moved to another place. Nothing: `text` is
// no JSON object or array, or is nested too deeply.
std::optional<std::string> MutatedJson(std::string_view text, Rng& rng);

// The same of protobuf's encoding, without its schema; perhaps behind a byte that selects what
// to decode. Nothing: `bytes` do not parse.
std::optional<std::string> MutatedMessage(std::string_view bytes, Rng& rng);

// By whichever of these fits.
std::optional<std::string> Mutated(std::string_view input, Rng& rng);

}  // namespace atl::fuzz

#endif  // ATOLL_TESTS_FUZZ_MUTATE_H_
