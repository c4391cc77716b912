// One decoder under libFuzzer: PROGRAM --decoder=NAME [libFuzzer's arguments]. PROGRAM --list names
// the decoders, PROGRAM --seeds=FOLDER writes the seeds of each to FOLDER/NAME/.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fuzz/decoder.h"

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
