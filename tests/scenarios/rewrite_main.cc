// bazel run //tests/scenarios:rewrite -- $PWD/tests/scenarios/*.txt
// Writes into each transcript what the coordinator does now. Read the difference before you commit.

#include <cstdio>
#include <fstream>

#include "tests/scenarios/transcript.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string before = atl::testing::ReadText(argv[i]);
    const std::string after = atl::testing::Replay(before);
    if (before == after) continue;
    std::ofstream(argv[i], std::ios::binary) << after;
    std::printf("rewritten: %s\n", argv[i]);
  }
  return 0;
}
