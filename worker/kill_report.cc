#include "worker/kill_report.h"

#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace atl::worker {
namespace {

constexpr int64_t kFileBytesMax = 1 << 14;

// "GROUP\nCOUNT\n"; nullopt for a file of anything else.
std::optional<MemoryKills> Parse(const std::vector<std::byte>& bytes) {
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  MemoryKills kills;
  if (lines.size() < 2 || !absl::SimpleAtoi(lines[1], &kills.count)) return std::nullopt;
  kills.group = lines[0];
  return kills;
}

}  // namespace

absl::StatusOr<std::string> ReportMemoryKills(Files& files, const std::string& folder,
                                              const MemoryKills& now, const MachineLimits& limits) {
  const std::string path = folder + "/memory-kills";
  std::optional<MemoryKills> before;
  const auto bytes = files.Read(path, kFileBytesMax);
  if (bytes.ok()) before = Parse(*bytes);
  if (before != now) {
    const std::string text = absl::StrCat(now.group, "\n", now.count, "\n");
    ATOLL_RETURN_IF_ERROR(WriteFileAtomically(files, path, std::array{AsBytes(text)}));
  }
  return DescribeMemoryKills(before, now, limits);
}

}  // namespace atl::worker
