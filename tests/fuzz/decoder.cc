#include "tests/fuzz/decoder.h"

#include <google/protobuf/stubs/logging.h>

namespace atl::fuzz {
namespace {

// A line for every text that is no UTF-8 would be most of the time and all of the log.
[[maybe_unused]] google::protobuf::LogHandler* const kSilenced =
    google::protobuf::SetLogHandler(nullptr);

}  // namespace

std::vector<Decoder>& Decoders() {
  static std::vector<Decoder> decoders;
  return decoders;
}

}  // namespace atl::fuzz
