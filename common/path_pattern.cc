#include "common/path_pattern.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/paths.h"
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
  Walk(Files& files, Parts parts, int64_t entries_max, LeftOut* left_out)
      : files_(files), parts_(std::move(parts)), left_(entries_max), left_out_(left_out) {}

  absl::StatusOr<std::vector<std::string>> Run(const fs::path& root) {
    ATOLL_RETURN_IF_ERROR(Visit(root, 0));
    return std::vector<std::string>(found_.begin(), found_.end());
  }

 private:
  absl::Status Visit(const fs::path& at, size_t part) {
    if (part == parts_.size()) return Add(at);
    const std::string& name = parts_[part];
    if (!IsPattern(name)) return Visit(at / name, part + 1);
    const bool any = name == kAnyParts, last = part + 1 == parts_.size();
    if (any && !last) ATOLL_RETURN_IF_ERROR(Visit(at, part + 1));
    const auto names = files_.List(at.empty() ? "." : at.string());
    if (absl::IsPermissionDenied(names.status())) return LeaveOut(at, "no permission");
    if (absl::IsNotFound(names.status())) return absl::OkStatus();
    ATOLL_RETURN_IF_ERROR(names.status());
    for (const std::string& file : *names) {
      if (--left_ < 0) {
        return absl::OutOfRangeError("too many files to look at; name a narrower pattern");
      }
      if (!MatchesPart(any ? "*" : name, file)) continue;
      if (!any) {
        ATOLL_RETURN_IF_ERROR(Visit(at / file, part + 1));
        continue;
      }
      ATOLL_ASSIGN_OR_RETURN(const fs::file_type type, FindType(at / file));
      std::error_code error;
      if (type == fs::file_type::directory) {
        ATOLL_RETURN_IF_ERROR(Visit(at / file, part));
      } else if (type == fs::file_type::symlink && fs::is_directory(at / file, error)) {
        ATOLL_RETURN_IF_ERROR(LeaveOut(at / file, "a link to a folder"));
      } else if (last) {
        ATOLL_RETURN_IF_ERROR(Visit(at / file, parts_.size()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Add(const fs::path& at) {
    const auto info = FindPath(at.string());
    if (absl::IsPermissionDenied(info.status())) return LeaveOut(at, "no permission");
    ATOLL_RETURN_IF_ERROR(info.status());
    if (*info) {
      found_.insert(at.string() + ((*info)->is_folder ? "/" : ""));
      return absl::OkStatus();
    }
    ATOLL_ASSIGN_OR_RETURN(const fs::file_type type, FindType(at));
    if (type != fs::file_type::symlink) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(at.string(),
                     " is a link that leads to nothing: fetch what it stands for (git "
                     "annex get, dvc pull), or remove it"));
  }

  absl::Status LeaveOut(const fs::path& at, const char* why) {
    if (left_out_ != nullptr) left_out_->Add(at.string(), why);
    return absl::OkStatus();
  }

  // Returns the kind of the path itself, links not followed.
  static absl::StatusOr<fs::file_type> FindType(const fs::path& at) {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(at, error);
    if (error && status.type() != fs::file_type::not_found) {
      return absl::UnavailableError(absl::StrCat(at.string(), ": ", error.message()));
    }
    return status.type();
  }

  Files& files_;
  const Parts parts_;
  int64_t left_;
  LeftOut* const left_out_;
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

void LeftOut::Add(const std::string& path, const char* why) {
  constexpr int64_t kNamed = 3;
  if (++count_ > kNamed) return;
  absl::StrAppend(&named_, count_ == 1 ? "" : ", ", path, " (", why, ")");
}

std::string LeftOut::Text() const {
  return count_ == 0 ? "" : absl::StrCat("leaves out ", count_, ": ", named_);
}

size_t FindPattern(std::string_view path) {
  const size_t at = path.find_first_of(kSpecial);
  if (at == std::string_view::npos) return at;
  return path.rfind('/', at) + 1;  // npos + 1 is 0
}

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  return Matches(absl::StrSplit(absl::string_view(pattern.data(), pattern.size()), '/'),
                 absl::StrSplit(absl::string_view(name.data(), name.size()), '/'));
}

absl::StatusOr<std::vector<std::string>> ExpandPattern(Files& files, const std::string& pattern,
                                                       int64_t entries_max, LeftOut* left_out) {
  const size_t begin = FindPattern(pattern);
  const fs::path root = pattern.substr(0, std::min(begin, pattern.size()));
  Parts parts;
  if (begin < pattern.size()) {
    parts = absl::StrSplit(pattern.substr(begin), '/', absl::SkipEmpty());
  }
  return Walk(files, std::move(parts), entries_max, left_out).Run(root);
}

namespace {

// Describes what a path with "://" has in place of an address that is read.
absl::Status CheckScheme(const std::string& what, std::string_view scheme) {
  constexpr std::string_view kRead[] = {"s3", "http", "https", "hf"};
  if (std::find(std::begin(kRead), std::end(kRead), scheme) != std::end(kRead)) {
    return absl::OkStatus();
  }
  const std::string name(scheme), small = absl::AsciiStrToLower(name);
  const char* const remedy = small == "file" ? "leave \"file://\" out"
                             : small == "s3a" || small == "s3n" || small == "s3" ? "write s3://"
                             : name != small ? "write it in small letters"
                             : small == "gs"
                                 ? "give AWS_ENDPOINT_URL=https://storage.googleapis.com and keys "
                                   "for it, and write s3://"
                                 : "copy it to a folder, an s3:// bucket or a web server";
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": addresses of \"", name,
                   "://\" are not read (s3, http, https and hf are): ", remedy));
}

}  // namespace

absl::Status CheckPlainPath(std::string_view field, const std::string& path) {
  const std::string what =
      absl::StrCat(absl::string_view(field.data(), field.size()), " = \"", path, "\"");
  if (const size_t end = path.find("://"); end != std::string::npos && end < path.find('/')) {
    return CheckScheme(what, std::string_view(path).substr(0, end));
  }
  const auto word = [&]() -> std::string {
    if (absl::StartsWith(path, "~")) return path.substr(0, path.find('/'));
    const size_t open = path.find('{'), close = path.find('}', open);
    if (open != std::string::npos && close != std::string::npos &&
        (open == 0 || path[open - 1] != '$')) {
      const std::string braces = path.substr(open, close - open + 1);
      if (absl::StrContains(braces, ",") || absl::StrContains(braces, "..")) return braces;
    }
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
  if (word.empty() || fs::exists(fs::symlink_status(path, error))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": \"", word, "\" is a shell's, and nothing replaces it here; write the path out"));
}

}  // namespace atl
