#include "coordinator/recording/segment.h"

#include <xxhash.h>

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/plain_fields.h"
#include "common/status.h"
#include "common/version.h"
#include "coordinator/core/core_version.h"

namespace atl {
namespace {

constexpr char kSuffix[] = ".recording";

// Before a record's bytes. Its own check distinguishes a record that ends early from damage.
struct RecordHead {
  uint32_t bytes = 0;
  uint32_t head_check = 0;
  uint64_t check = 0;  // of the bytes

  uint32_t ComputeHeadCheck() const {
    return static_cast<uint32_t>(XXH3_64bits_withSeed(&bytes, sizeof(bytes), check));
  }
};
static_assert(sizeof(RecordHead) == 16);

}  // namespace

RecordedBy RecordedBy::Self(int64_t unix_time_ms, Instant now) {
  return {kSoftwareVersion, kCoreVersion, unix_time_ms, now};
}

void AppendRecord(RecordKind kind, absl::string_view bytes, std::string* segment) {
  RecordHead head{static_cast<uint32_t>(bytes.size() + 1)};
  const size_t at = segment->size();
  segment->append(sizeof(head), '\0');
  segment->push_back(static_cast<char>(kind));
  segment->append(bytes.data(), bytes.size());
  head.check = XXH3_64bits(segment->data() + at + sizeof(head), head.bytes);
  head.head_check = head.ComputeHeadCheck();
  std::memcpy(segment->data() + at, &head, sizeof(head));
}

NextRecord TakeRecord(absl::string_view* rest, SegmentRecord* record) {
  if (rest->empty()) return NextRecord::kEnd;
  // A machine that ended may leave zeros.
  if (rest->find_first_not_of('\0') == absl::string_view::npos) return NextRecord::kTorn;
  RecordHead head;
  if (rest->size() < sizeof(head)) return NextRecord::kTorn;
  std::memcpy(&head, rest->data(), sizeof(head));
  if (head.head_check != head.ComputeHeadCheck() || head.bytes == 0) return NextRecord::kDamaged;
  if (rest->size() - sizeof(head) < head.bytes) return NextRecord::kTorn;
  const absl::string_view bytes = rest->substr(sizeof(head), head.bytes);
  if (XXH3_64bits(bytes.data(), bytes.size()) != head.check) return NextRecord::kDamaged;
  *record = {static_cast<RecordKind>(bytes[0]), bytes.substr(1)};
  rest->remove_prefix(sizeof(head) + head.bytes);
  return NextRecord::kRecord;
}

std::string SegmentPath(const std::string& folder, int64_t number) {
  return absl::StrFormat("%s/%06d%s", folder, number, kSuffix);
}

absl::StatusOr<std::vector<std::pair<int64_t, std::string>>> ListSegments(
    Files& files, const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> segments;
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  for (const std::string& name : names) {
    absl::string_view digits = name;
    int64_t number = 0;
    if (!absl::ConsumeSuffix(&digits, kSuffix) || !absl::SimpleAtoi(digits, &number)) continue;
    segments.emplace_back(number, SegmentPath(folder, number));
    const size_t count = segments.size();
    if (count > 1 && segments[count - 2].first + 1 != number) {
      return absl::DataLossError(absl::StrCat(SegmentPath(folder, segments[count - 2].first + 1),
                                              ": is missing; the others are of no use without it"));
    }
  }
  return segments;
}

uint64_t DigestActions(const CoordinatorActions& actions) {
  std::string bytes;
  AppendPlain(&bytes, actions);
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace atl
