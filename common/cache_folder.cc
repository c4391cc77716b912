#include "common/cache_folder.h"

#include <cstdlib>

namespace atl {
namespace {

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string DataCacheFolder() {
  if (std::string folder = FromEnvironment("ATOLL_DATA_CACHE"); !folder.empty()) return folder;
  if (std::string folder = FromEnvironment("CACHE_DIRECTORY"); !folder.empty()) {
    return folder.substr(0, folder.find(':'));
  }
  if (std::string folder = FromEnvironment("XDG_CACHE_HOME"); !folder.empty()) {
    return folder + "/atoll";
  }
  if (std::string folder = FromEnvironment("HOME"); !folder.empty()) {
    return folder + "/.cache/atoll";
  }
  return "/var/cache/atoll";
}

}  // namespace atl
