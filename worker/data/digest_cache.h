// Keeps what was read of data files on the worker's disk, so that a file is read whole once and not
// at every start. An entry is good as long as the key (TokenFile::Key), size, inode and both times
// of the file are the same; one whose file changed within the last seconds is not kept, since a
// later change could leave its times as they are. Losing the cache costs time only: what cannot be
// read or written is no error.

#ifndef ATOLL_WORKER_DATA_DIGEST_CACHE_H_
#define ATOLL_WORKER_DATA_DIGEST_CACHE_H_

#include <list>
#include <optional>
#include <string>

#include "common/files.h"
#include "common/masked_tokens.h"
#include "worker/data/token_file.h"

namespace atl {

class DigestCache {
 public:
  // Creates a cache in one file at `path`, whose folder is there. `files` outlives the cache.
  DigestCache(Files& files, std::string path);

  std::optional<TokenFileContent> Find(const std::string& key, const FileIdentity& identity) const;
  void Store(const std::string& key, const FileIdentity& identity, const TokenFileContent& content);

 private:
  struct Entry {
    std::string key;
    FileIdentity identity;
    TokenFileContent content;
  };
  void Load();
  void Save() const;

  Files& files_;
  const std::string path_;
  std::list<Entry> entries_;  // the newest first; few
};

// Options of code that reads data whole when it opens them.
struct DataOptions {
  DigestCache* digests = nullptr;  // null: every file is read whole each time
  ReadWatch watch;
  std::optional<DocumentFrame> frame;  // the model's, where data.pad_documents is true
};

// Returns the content of the file's tokens: from the cache, else by reading the file whole.
absl::StatusOr<TokenFileContent> GetTokenFileContent(const TokenFile& file,
                                                     const DataOptions& options);

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_DIGEST_CACHE_H_
