// The folder of fetched and derived files on this machine.

#ifndef ATOLL_COMMON_CACHE_FOLDER_H_
#define ATOLL_COMMON_CACHE_FOLDER_H_

#include <string>

namespace atl {

// Returns the folder of tokenized text, fetched blocks and the hub's files: $ATOLL_DATA_CACHE, else
// systemd's $CACHE_DIRECTORY, else $XDG_CACHE_HOME/atoll, else $HOME/.cache/atoll, else
// /var/cache/atoll.
std::string DataCacheFolder();

}  // namespace atl

#endif  // ATOLL_COMMON_CACHE_FOLDER_H_
