// The clusters of this person, by name: ~/.config/atoll/config.toml (or under $XDG_CONFIG_HOME),
// and beside it contexts/NAME with the certificate of each. `atoll init` and `atoll join` add one.

#ifndef ATOLL_CLI_CONTEXTS_H_
#define ATOLL_CLI_CONTEXTS_H_

#include <string>

#include "cli/commands.h"
#include "cli/config.pb.h"
#include "common/status.h"
#include "common/trust/identity_folder.h"

namespace atl::cli {

// A file that is not there is an empty one. The error names the file and the line.
absl::StatusOr<v1::ClientConfig> ReadConfig();
std::string ConfigPath();

// The file's text, which was read from `path`, and back: what is formatted is parsed to the same.
absl::StatusOr<v1::ClientConfig> ParseConfig(absl::string_view text, const std::string& path);
std::string FormatConfig(const v1::ClientConfig& config);

// OK if a context may have this name: it is also that of a folder.
absl::Status CheckContextName(const std::string& name);
IdentityFolder ContextFolder(const std::string& name);
// Adds or replaces the context and uses it from now on.
absl::Status AddContext(const std::string& name, const std::string& coordinator);

// Fills in what the flags leave open: `name`, or the context in use, says where the coordinator is
// and who we are. `coordinator_given`: by a flag or the environment; the context then only counts
// if it is of that coordinator. Renews a certificate whose time is half over.
absl::Status UseContext(const std::string& name, bool coordinator_given, Global* global);

struct ContextFlags {
  std::string name;  // to be used from now on; empty: lists them
};
int Contexts(const Global& global, const ContextFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_CONTEXTS_H_
