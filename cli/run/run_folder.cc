#include "cli/run/run_folder.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/write_file.h"
#include "common/files.h"
#include "common/paths.h"
#include "common/toml_message.h"

namespace atl::cli {
namespace {

constexpr char kRecord[] = "/run.toml";
constexpr int64_t kRecordBytesMax = 65536;

// OK: an earlier run's, or nothing is in it.
absl::Status CheckContents(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const auto there, FindPath(path));
  if (!there) return absl::OkStatus();
  if (!there->is_folder) return absl::FailedPreconditionError("is no folder");
  ATOLL_ASSIGN_OR_RETURN(const auto record, FindPath(path + kRecord));
  if (record) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names, RealFiles().List(path));
  for (const std::string& name : names) {
    if (name == "lock") continue;  // a run that ended before it wrote its record
    return absl::FailedPreconditionError(
        absl::StrCat("holds ", name, " and is of no earlier run; name another folder by --folder"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunFolder> RunFolder::Open(const std::string& path) {
  const std::string where = absl::StrCat("--folder ", path);
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(path, error).lexically_normal().string();
  ATOLL_RETURN_IF_ERROR(Annotate(CheckContents(absolute), where));
  auto lock = StateFolder::Open(absolute);
  if (!lock.ok()) {
    absl::string_view why = lock.status().message();
    absl::ConsumePrefix(&why, absl::StrCat("--state-dir ", absolute, ": "));
    return absl::Status(lock.status().code(), absl::StrCat(where, ": ", why));
  }
  RunFolder folder(absolute, *std::move(lock));
  const auto bytes = RealFiles().Read(absolute + kRecord, kRecordBytesMax);
  if (absl::IsNotFound(bytes.status())) return folder;
  ATOLL_RETURN_IF_ERROR(bytes.status());
  ATOLL_RETURN_IF_ERROR(
      TomlMessage(absolute + kRecord)
          .Read({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, &folder.record_));
  return folder;
}

absl::Status RunFolder::Write(const v1::RunRecord& record) {
  const std::string text = absl::StrCat("# Written by atoll run.\njob = \"", record.job(),
                                        "\"\nservers = ", record.servers(), "\n");
  ATOLL_RETURN_IF_ERROR(
      WriteFileAtomically(RealFiles(), path_ + kRecord, std::array{AsBytes(text)}));
  record_ = record;
  return absl::OkStatus();
}

absl::Status WriteShippedJob(const std::string& folder) {
  for (const auto& [name, text] :
       {std::pair("/alice.toml", kShippedJob), std::pair("/alice.txt", kShippedText)}) {
    ATOLL_ASSIGN_OR_RETURN(const auto written, FindPath(folder + name));
    if (written) continue;
    ATOLL_RETURN_IF_ERROR(WriteFile(folder + name, text));
  }
  return absl::OkStatus();
}

}  // namespace atl::cli
