#include "cli/job_file.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/wire.h"
#include "common/toml_message.h"
#include "proto/job.pb.h"

namespace atl::cli {
namespace {

constexpr int64_t kMaxJobFileBytes = 1 << 20;

void MakeAbsolute(const std::filesystem::path& folder, std::string* path) {
  if (path->empty() || std::filesystem::path(*path).is_absolute()) return;
  if (absl::StrContains(*path, "://")) return;  // lies in an object store
  *path = (folder / *path).lexically_normal().string();
}

}  // namespace

absl::StatusOr<JobSpec> ParseJob(absl::string_view text, const std::string& path) {
  TomlMessage reader(path);
  v1::JobSpec wire;
  ATOLL_RETURN_IF_ERROR(reader.Read(text, &wire));
  auto spec = Decode(&wire);
  if (!spec.ok()) return reader.Locate(spec.status());
  ATOLL_RETURN_IF_ERROR(reader.Locate(Validate(*spec)));

  std::error_code error;
  const auto folder = std::filesystem::absolute(path, error).parent_path();
  MakeAbsolute(folder, &spec->data.path);
  MakeAbsolute(folder, &spec->data.validation_path);
  MakeAbsolute(folder, &spec->data.tokenizer_path);
  MakeAbsolute(folder, &spec->model.config_path);
  MakeAbsolute(folder, &spec->model.initial_weights_path);
  return spec;
}

absl::StatusOr<JobSpec> ReadJobFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read; is the path right?"));
  }
  std::string text(kMaxJobFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (static_cast<int64_t>(text.size()) > kMaxJobFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": larger than ", kMaxJobFileBytes, " bytes; a job file is small"));
  }
  if (file.bad() || (text.empty() && std::filesystem::is_directory(path))) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a file that can be read"));
  }
  return ParseJob(text, path);
}

}  // namespace atl::cli
