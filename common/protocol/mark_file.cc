#include "common/protocol/mark_file.h"

#include <algorithm>
#include <array>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status.h"

namespace atl {
namespace {

std::string GetMarkPath(const std::string& state_folder) { return state_folder + "/cluster"; }

std::string Text(const ClusterMark& mark) {
  return absl::StrCat("cluster ", mark.cluster, " epoch ", mark.epoch, " sequence ", mark.sequence);
}

// FNV-1a: against flipped bits, not against attackers.
std::string Checksum(absl::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return absl::StrFormat("%016x", hash);
}

}  // namespace

bool IsClusterId(absl::string_view text) {
  return text.size() == 16 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

ClusterId NewClusterId() {
  std::random_device device;
  return absl::StrFormat("c%07x%08x", device() >> 4, device());
}

absl::StatusOr<ClusterMark> ReadClusterMark(Files& files, const std::string& state_folder) {
  const auto bytes = files.Read(GetMarkPath(state_folder), 256);
  if (absl::IsNotFound(bytes.status())) return ClusterMark();
  ATOLL_RETURN_IF_ERROR(bytes.status());
  const absl::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  const std::vector<std::string> words = absl::StrSplit(absl::StripSuffix(text, "\n"), ' ');
  ClusterMark mark;
  if (words.size() == 8 && IsClusterId(words[1]) && absl::SimpleAtoi(words[3], &mark.epoch) &&
      absl::SimpleAtoi(words[5], &mark.sequence)) {
    mark.cluster = words[1];
    if (text == absl::StrCat(Text(mark), " checksum ", Checksum(Text(mark)), "\n")) return mark;
  }
  return absl::DataLossError(
      absl::StrCat(GetMarkPath(state_folder),
                   ": is damaged; restore it from a copy, or delete it: this "
                   "daemon then joins the next coordinator that it meets"));
}

absl::Status WriteClusterMark(Files& files, const std::string& state_folder,
                              const ClusterMark& mark) {
  const std::string text = absl::StrCat(Text(mark), " checksum ", Checksum(Text(mark)), "\n");
  return WriteFileAtomically(files, GetMarkPath(state_folder), std::array{AsBytes(text)});
}

bool MarkWriter::Fences(Instant now) {
  constexpr Duration kRetry = std::chrono::seconds(1);
  if (!pending_) return true;
  if (now < next_try_) return fences_;
  const absl::Status status = WriteClusterMark(*files_, state_folder_, *pending_);
  next_try_ = status.ok() ? Instant() : now + kRetry;
  if (status.ok()) pending_.reset();
  const std::string trouble(status.message());
  if (trouble != trouble_) on_change_(trouble_ = trouble);
  if (status.ok()) return true;
  const auto durable = ReadClusterMark(*files_, state_folder_);
  fences_ =
      durable.ok() && durable->cluster == pending_->cluster && durable->epoch == pending_->epoch;
  return fences_;
}

std::string ForeignClusterText(const ClusterId& own, const ClusterId& foreign) {
  return absl::StrCat("the coordinator is of cluster ", foreign,
                      ", this daemon belongs to cluster ", own,
                      " and follows none of its orders; start the coordinator with the "
                      "--state-dir of cluster ",
                      own, " (if that is lost: an empty one and --cluster ", own,
                      "), or delete the file \"cluster\" in this daemon's --state-dir to let it "
                      "join the other cluster with all that it holds");
}

}  // namespace atl
