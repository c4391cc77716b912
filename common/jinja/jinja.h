// Chat templates: the part of Jinja that published models' templates use, with the meaning that
// transformers gives it (white space around blocks, tojson, raise_exception, strftime_now).
//
//   ATOLL_ASSIGN_OR_RETURN(const auto chat, jinja::Template::Parse(text));
//   ATOLL_ASSIGN_OR_RETURN(const std::string prompt, chat->Render({{"messages", messages}}, {}));
//
// Templates are untrusted: whatever one says, the answer is its text or one error that names the
// line. What is not implemented is refused by its name.

#ifndef ATOLL_COMMON_JINJA_JINJA_H_
#define ATOLL_COMMON_JINJA_JINJA_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/civil_time.h"
#include "common/jinja/ast.h"

namespace atl::jinja {

inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

using Variables = std::vector<std::pair<std::string, Value>>;

struct RenderOptions {
  // The time that strftime_now formats; without one the template may not call it.
  std::optional<absl::CivilSecond> now;
  int64_t steps_max = 10'000'000;
  int64_t bytes_max = int64_t{256} << 20;  // of all values that are made, and of the text
};

// Thread-safe.
class Template {
 public:
  static absl::StatusOr<std::unique_ptr<const Template>> Parse(std::string_view text);

  // INVALID_ARGUMENT: the template raised an exception, or does what is an error in Python.
  // RESOURCE_EXHAUSTED: it is beyond the limits.
  absl::StatusOr<std::string> Render(const Variables& variables,
                                     const RenderOptions& options) const;

  // Returns whether the template has this name anywhere: "tools", "strftime_now".
  bool Mentions(std::string_view name) const;

 private:
  Template(Body body, std::vector<std::string> names)
      : body_(std::move(body)), names_(std::move(names)) {}

  const Body body_;
  const std::vector<std::string> names_;  // sorted
};

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_JINJA_H_
