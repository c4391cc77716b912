// An interval of time in which something happened, as OpenTelemetry traces have it.

#ifndef ATOLL_COORDINATOR_TRACING_SPAN_H_
#define ATOLL_COORDINATOR_TRACING_SPAN_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace atl {

using SpanValue = std::variant<std::string, int64_t, double, bool>;

struct Span {
  std::string trace_id;   // 32 hexadecimal digits
  std::string span_id;    // 16
  std::string parent_id;  // empty: a root
  std::string name;
  int64_t begin_unix_ms = 0, end_unix_ms = 0;
  std::vector<std::pair<std::string, SpanValue>> attributes;
  std::string error;  // why it failed; empty: it did not

  bool operator==(const Span&) const = default;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRACING_SPAN_H_
