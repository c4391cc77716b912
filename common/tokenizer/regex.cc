#include "common/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/status.h"
#include "common/tokenizer/views.h"

namespace atl::tokenizer {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
constexpr std::string_view kSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr std::string_view kWord = "\\p{L}\\p{M}\\p{N}\\p{Pc}";

// Memory that a thread needs to match: a result and a stack. 8 MB bound what a hostile text can
// take.
class MatchState {
 public:
  MatchState()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr)) {
    pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~MatchState() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  pcre2_match_data* data() { return data_; }
  pcre2_match_context* context() { return context_; }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

std::string PcreError(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Compiled() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<std::string> PcrePattern(std::string_view pattern) {
  std::string result;
  int depth = 0;  // of classes
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's' || next == 'w') {
        const std::string_view set = next == 's' ? kSpace : kWord;
        result += depth > 0 ? std::string(set) : absl::StrCat("[", View(set), "]");
      } else if (depth == 0 && (next == 'S' || next == 'W')) {
        absl::StrAppend(&result, "[^", View(next == 'S' ? kSpace : kWord), "]");
      } else {
        result += c;
        result += next;
      }
    } else if (c == '[' && depth == 0) {
      depth = 1;
      result += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') result += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') {  // a first ']' is itself
        result += "\\]";
        ++i;
      }
    } else if (c == '[' && i + 1 < pattern.size() && pattern[i + 1] == ':') {
      const size_t end = pattern.find(":]", i + 2);
      if (end == std::string_view::npos) {
        result += "\\[";
        continue;
      }
      result.append(pattern, i, end + 2 - i);
      i = end + 1;
    } else if (c == '[') {
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') {
        return absl::InvalidArgumentError("a negated class inside a class is not supported");
      }
      ++depth;  // a union: its members join the outer class
    } else if (c == ']' && depth > 0) {
      if (--depth == 0) result += c;
    } else if (c == '&' && depth > 0 && i + 1 < pattern.size() && pattern[i + 1] == '&') {
      return absl::InvalidArgumentError("an intersection of classes (&&) is not supported");
    } else {
      result += c;
    }
  }
  return result;
}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a pattern of ", pattern.size(), " bytes"));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string spelled, PcrePattern(pattern));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (compiled->code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern \"", View(pattern), "\" does not compile: ", PcreError(error)));
  }
  compiled->jit = pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(compiled));
}

absl::StatusOr<Regex> Regex::Literal(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && !absl::ascii_isalnum(byte)) {
      absl::StrAppend(&escaped, "\\x{", absl::Hex(byte), "}");
    } else {
      escaped += c;
    }
  }
  return Compile(escaped);
}

absl::StatusOr<Match> Regex::Find(std::string_view text, size_t from) const {
  thread_local MatchState state;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = compiled_->jit
                        ? pcre2_jit_match(compiled_->code, subject, text.size(), from,
                                          PCRE2_NO_UTF_CHECK, state.data(), state.context())
                        : pcre2_match(compiled_->code, subject, text.size(), from,
                                      PCRE2_NO_UTF_CHECK, state.data(), state.context());
  if (found == PCRE2_ERROR_NOMATCH) return Match{};
  if (found < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("matching the tokenizer's pattern: ", PcreError(found)));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state.data());
  if (ends[0] < from || ends[1] < ends[0]) {  // a pattern with \K
    return absl::InvalidArgumentError("the tokenizer's pattern matches backwards");
  }
  return Match{ends[0], ends[1], true};
}

}  // namespace atl::tokenizer
