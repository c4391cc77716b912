#include "coordinator/core/sharing/quotas.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace atl {
namespace {

constexpr int64_t kDevicesMost = 1'000'000;

absl::StatusOr<DeviceQuota> ParseQuota(absl::string_view text) {
  DeviceQuota quota;
  const size_t at = text.rfind('=');
  if (at != absl::string_view::npos) quota.owners = std::string(text.substr(0, at));
  const size_t star = quota.owners.find('*');
  const bool named = !quota.owners.empty() && quota.owners.size() <= 256 &&
                     (star == std::string::npos || star + 1 == quota.owners.size());
  if (!named || !absl::SimpleAtoi(text.substr(at + 1), &quota.devices) || quota.devices < 0 ||
      quota.devices > kDevicesMost) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--quota \"", text, "\": must be NAME=DEVICES, such as alice=8 or vision-*=16, ",
        "with at most ", kDevicesMost, " devices"));
  }
  return quota;
}

}  // namespace

absl::StatusOr<std::vector<DeviceQuota>> ParseQuotas(const std::vector<std::string>& texts) {
  if (texts.size() > kQuotasMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(texts.size(), " of --quota: at most ", kQuotasMax, " may be given"));
  }
  std::vector<DeviceQuota> quotas;
  for (const std::string& text : texts) {
    absl::StatusOr<DeviceQuota> quota = ParseQuota(text);
    if (!quota.ok()) return quota.status();
    const bool again = std::any_of(quotas.begin(), quotas.end(), [&](const DeviceQuota& other) {
      return other.owners == quota->owners;
    });
    if (again) {
      return absl::InvalidArgumentError(
          absl::StrCat("--quota \"", text, "\": ", quota->owners, " has one already"));
    }
    quotas.push_back(*std::move(quota));
  }
  return quotas;
}

std::optional<size_t> FindQuota(const std::vector<DeviceQuota>& quotas, absl::string_view owner) {
  std::optional<size_t> found;
  for (size_t i = 0; i < quotas.size(); ++i) {
    absl::string_view name = quotas[i].owners;
    const bool begins = absl::ConsumeSuffix(&name, "*");
    if (!begins && name == owner) return i;
    const bool longer = !found || name.size() >= quotas[*found].owners.size();
    if (begins && longer && absl::StartsWith(owner, name)) found = i;
  }
  return found;
}

}  // namespace atl
