#include "tests/scenarios/transcript.h"

#include <fstream>
#include <sstream>

#include "common/check.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {

std::string Replay(const std::string& transcript) {
  World world;
  std::string replayed;
  std::istringstream lines(transcript);
  for (std::string line; std::getline(lines, line);) {
    const bool command = line.starts_with("> ");
    if (!command && !line.empty() && line[0] != '#') continue;  // what followed the last time
    replayed += line + "\n";
    if (!command) continue;
    std::istringstream followed(world.Do(line.substr(2)));
    for (std::string out; std::getline(followed, out);) replayed += "  " + out + "\n";
  }
  return replayed;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  ATOLL_CHECK(file.good(), "cannot read ", path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace atl::testing
