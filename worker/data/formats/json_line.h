// One line of JSONL, and what is wrong with one.

#ifndef ATOLL_WORKER_DATA_FORMATS_JSON_LINE_H_
#define ATOLL_WORKER_DATA_FORMATS_JSON_LINE_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace atl {

// The reason why a text is not one JSON value, and the byte of it; found without recursion.
struct JsonFault {
  size_t at = 0;
  std::string problem;
};

// A number that JSON lacks, but exporters write: NaN, Infinity, -Infinity, 1e400.
struct JsonOddNumber {
  size_t begin = 0, end = 0;
};

// Absent: it is one value, but for `odd`.
std::optional<JsonFault> FindJsonFault(std::string_view text, std::vector<JsonOddNumber>* odd);

// The object of line `line` (from 1) of a file; absent: a line of white space alone. An odd number
// is kept as a value that is no text and no number. INVALID_ARGUMENT names the file, the line, the
// column in characters (from 1) and the cause. `Json`: nlohmann's json or ordered_json.
template <typename Json>
absl::StatusOr<std::optional<Json>> ParseJsonLine(std::string_view json, const std::string& file,
                                                  int64_t line);

// Names the kind of a value in what ParseJsonLine returns: "a number", "NaN", "null", "a list", ...
template <typename Json>
std::string DescribeJson(const Json& value);

// The levels of objects and lists of a text, which may be no JSON. An ordered_json of more than
// kJsonDepthMax is not made: the library copies it by recursion.
size_t JsonDepth(std::string_view json);
inline constexpr size_t kJsonDepthMax = 100;

// Describes the first odd number anywhere in what ParseJsonLine returned; "": there is none.
std::string FindOddNumber(const nlohmann::ordered_json& value);

// The text of a field. Absent: a line of white space. INVALID_ARGUMENT: there is none.
absl::StatusOr<std::optional<std::string>> JsonlText(std::string_view json,
                                                     const std::string& field,
                                                     const std::string& file, int64_t line);

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_FORMATS_JSON_LINE_H_
