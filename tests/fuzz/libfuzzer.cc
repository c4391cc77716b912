// One decoder under libFuzzer: PROGRAM --decoder=NAME [libFuzzer's arguments]. PROGRAM --list names
// the decoders, PROGRAM --seeds=FOLDER writes the seeds of each to FOLDER/NAME/.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "common/rng.h"
#include "tests/fuzz/decoder.h"
#include "tests/fuzz/mutate.h"

namespace {

const atl::fuzz::Decoder* chosen = nullptr;

void WriteSeeds(const std::filesystem::path& folder) {
  for (const atl::fuzz::Decoder& decoder : atl::fuzz::Decoders()) {
    std::filesystem::create_directories(folder / decoder.name);
    int number = 0;
    for (const std::string& seed : decoder.seeds()) {
      std::ofstream(folder / decoder.name / std::to_string(number++), std::ios::binary) << seed;
    }
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Half of the changes of JSON and of messages go by their structure; all others are libFuzzer's.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  atl::Rng rng(seed);
  if (rng.Chance(0.5)) {
    const auto changed = atl::fuzz::Mutated({reinterpret_cast<const char*>(data), size}, rng);
    if (changed.has_value() && changed->size() <= max_size) {
      std::memcpy(data, changed->data(), changed->size());
      return changed->size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string argument = (*argv)[i];
    if (argument == "--list") {
      for (const auto& decoder : atl::fuzz::Decoders()) std::puts(decoder.name.c_str());
      std::exit(0);
    }
    if (argument.starts_with("--seeds=")) {
      WriteSeeds(argument.substr(8));
      std::exit(0);
    }
    for (const auto& decoder : atl::fuzz::Decoders()) {
      if (argument == "--decoder=" + decoder.name) chosen = &decoder;
    }
  }
  if (chosen == nullptr) {
    std::fputs("--decoder=NAME: one of those that --list names\n", stderr);
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  chosen->accepts({reinterpret_cast<const char*>(data), size});
  return 0;
}
