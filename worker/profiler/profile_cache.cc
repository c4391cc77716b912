#include "worker/profiler/profile_cache.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/protocol/wire.h"
#include "proto/control.pb.h"

namespace atl::worker {
namespace {

constexpr int64_t kFileBytesMax = 1 << 20;

}  // namespace

std::string ProfileCache::GetProfilePath(const std::string& device, uint64_t model_digest) const {
  return absl::StrCat(folder_, "/", absl::StrReplaceAll(device, {{"/", "-"}}), "-",
                      absl::Hex(model_digest, absl::kZeroPad16), ".profile");
}

std::optional<DeviceProfile> ProfileCache::Find(const std::string& device, const std::string& kind,
                                                uint64_t model_digest,
                                                const std::string& software_version) {
  const auto bytes = files_.Read(GetProfilePath(device, model_digest), kFileBytesMax);
  if (!bytes.ok()) return std::nullopt;
  v1::DeviceProfile message;
  if (!message.ParseFromArray(bytes->data(), static_cast<int>(bytes->size()))) return std::nullopt;
  const auto profile = Decode(&message);
  if (!profile.ok() || profile->layers.empty() || profile->device != device ||
      profile->kind != kind || profile->model_digest != model_digest ||
      profile->software_version != software_version) {
    return std::nullopt;
  }
  return *profile;
}

absl::Status ProfileCache::Store(const DeviceProfile& profile) {
  v1::DeviceProfile message;
  ATOLL_RETURN_IF_ERROR(Encode(profile, &message));
  const std::string bytes = message.SerializeAsString();
  ATOLL_RETURN_IF_ERROR(files_.MakeFolder(folder_));
  const ByteSpan buffers[] = {AsBytes(bytes)};
  return WriteFileAtomically(files_, GetProfilePath(profile.device, profile.model_digest), buffers);
}

absl::Status ProfileCache::Clear() {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(folder_));
  for (const std::string& name : names) {
    if (name.size() < 8 || name.substr(name.size() - 8) != ".profile") continue;
    ATOLL_RETURN_IF_ERROR(files_.Remove(absl::StrCat(folder_, "/", name)));
  }
  return absl::OkStatus();
}

}  // namespace atl::worker
