// The commands of a World (world.h), of one line each. A line that cannot be read ends the process.

#ifndef ATOLL_COORDINATOR_CORE_TESTING_COMMAND_H_
#define ATOLL_COORDINATOR_CORE_TESTING_COMMAND_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/core.h"

namespace atl::testing {

// A line's meaning: words, and key=value arguments.
struct Command {
  std::vector<std::string> words;
  std::map<std::string, std::string> arguments;

  explicit Command(const std::string& line);
  bool Has(const std::string& word) const;
  std::string Text(const std::string& key, const std::string& otherwise = "") const;
  int64_t Int(const std::string& key, int64_t otherwise) const;
  double Real(const std::string& key, double otherwise) const;
  int64_t Number(size_t word) const;                                // that this word is
  std::vector<PositionRange> Ranges(const std::string& key) const;  // "0-8,12-16"
};

// Parses commands that are one event; nothing: it is not one of them.
std::optional<CoordinatorEvent> ParseEvent(const Command& command);

// Parses what "submit" says of a small job.
JobSpec ParseJobSpec(const Command& command);

}  // namespace atl::testing

#endif  // ATOLL_COORDINATOR_CORE_TESTING_COMMAND_H_
