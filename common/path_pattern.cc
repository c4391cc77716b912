#include "common/path_pattern.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

using Parts = std::vector<std::string>;

constexpr std::string_view kSpecial = "*?[";
constexpr const char* kAnyParts = "**";

bool IsPattern(std::string_view part) {
  return part.find_first_of(kSpecial) != std::string_view::npos;
}

bool MatchesPart(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD | FNM_PATHNAME) == 0;
}

class Walk {
 public:
  Walk(Parts parts, int64_t entries_max) : parts_(std::move(parts)), left_(entries_max) {}

  absl::StatusOr<std::vector<std::string>> Run(const fs::path& root) {
    ATOLL_RETURN_IF_ERROR(Visit(root, 0));
    return std::vector<std::string>(found_.begin(), found_.end());
  }

 private:
  absl::Status Visit(const fs::path& at, size_t part) {
    std::error_code error;
    if (part == parts_.size()) {
      const fs::file_status status = fs::status(at, error);
      if (fs::exists(status)) found_.insert(at.string() + (fs::is_directory(status) ? "/" : ""));
      return absl::OkStatus();
    }
    const std::string& name = parts_[part];
    if (!IsPattern(name)) return Visit(at / name, part + 1);
    const bool any = name == kAnyParts, last = part + 1 == parts_.size();
    if (any && !last) ATOLL_RETURN_IF_ERROR(Visit(at, part + 1));
    fs::directory_iterator entry(at.empty() ? "." : at,
                                 fs::directory_options::skip_permission_denied, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      if (--left_ < 0) {
        return absl::OutOfRangeError("too many files to look at; name a narrower pattern");
      }
      const std::string file = entry->path().filename().string();
      if (!MatchesPart(any ? "*" : name, file)) continue;
      std::error_code unknown;
      if (!any) ATOLL_RETURN_IF_ERROR(Visit(at / file, part + 1));
      const bool folder = entry->is_directory(unknown) && !entry->is_symlink(unknown);
      if (any && folder) ATOLL_RETURN_IF_ERROR(Visit(at / file, part));
      if (any && last && !folder) ATOLL_RETURN_IF_ERROR(Visit(at / file, parts_.size()));
    }
    return absl::OkStatus();
  }

  const Parts parts_;
  int64_t left_;
  std::set<std::string> found_;
};

bool Matches(const Parts& pattern, const Parts& name) {
  // reached[i]: the first i parts of the pattern match the parts of the name so far.
  std::vector<bool> reached(pattern.size() + 1, false);
  const auto skip_any = [&] {
    for (size_t i = 0; i < pattern.size(); ++i) {
      if (reached[i] && pattern[i] == kAnyParts) reached[i + 1] = true;
    }
  };
  reached[0] = true;
  skip_any();
  for (const std::string& part : name) {
    std::vector<bool> next(pattern.size() + 1, false);
    for (size_t i = 0; i < pattern.size(); ++i) {
      if (!reached[i]) continue;
      if (pattern[i] == kAnyParts) {
        if (MatchesPart("*", part)) next[i] = true;
      } else if (MatchesPart(pattern[i], part)) {
        next[i + 1] = true;
      }
    }
    reached = std::move(next);
    skip_any();
  }
  return reached[pattern.size()];
}

}  // namespace

size_t FindPattern(std::string_view path) {
  const size_t at = path.find_first_of(kSpecial);
  if (at == std::string_view::npos) return at;
  return path.rfind('/', at) + 1;  // npos + 1 is 0
}

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  return Matches(absl::StrSplit(absl::string_view(pattern.data(), pattern.size()), '/'),
                 absl::StrSplit(absl::string_view(name.data(), name.size()), '/'));
}

absl::StatusOr<std::vector<std::string>> ExpandPattern(const std::string& pattern,
                                                       int64_t entries_max) {
  const size_t begin = FindPattern(pattern);
  const fs::path root = pattern.substr(0, std::min(begin, pattern.size()));
  Parts parts;
  if (begin < pattern.size()) {
    parts = absl::StrSplit(pattern.substr(begin), '/', absl::SkipEmpty());
  }
  return Walk(std::move(parts), entries_max).Run(root);
}

absl::Status CheckPlainPath(std::string_view field, const std::string& path) {
  const auto word = [&]() -> std::string {
    if (absl::StartsWith(path, "~")) return path.substr(0, path.find('/'));
    for (size_t at = path.find('$'); at != std::string::npos; at = path.find('$', at + 1)) {
      const char next = at + 1 < path.size() ? path[at + 1] : '\0';
      if (next == '{') return path.substr(at, path.find('}', at) - at + 1);
      if (std::isalpha(static_cast<unsigned char>(next)) == 0 && next != '_') continue;
      size_t end = at + 1;
      while (end < path.size() &&
             (std::isalnum(static_cast<unsigned char>(path[end])) != 0 || path[end] == '_')) {
        ++end;
      }
      return path.substr(at, end - at);
    }
    return "";
  }();
  std::error_code error;
  if (word.empty() || absl::StrContains(path, "://") || fs::exists(path, error)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(absl::string_view(field.data(), field.size()), " = \"", path, "\": \"", word,
                   "\" is a shell's, and nothing replaces it here; write the path out"));
}

}  // namespace atl
