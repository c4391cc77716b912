#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "common/rng.h"
#include "tests/fuzz/decoder.h"
#include "tests/fuzz/mutate.h"

namespace atl::fuzz {
namespace {

constexpr int kChangesPerSeed = 200;

// Returns the bytes with a fuzzer's most common changes: bytes changed, cut off, repeated; values
// of JSON and of messages replaced.
std::string Changed(std::string bytes, Rng& rng) {
  if (rng.Chance(0.5)) {
    if (const auto changed = Mutated(bytes, rng)) return *changed;
  }
  for (uint64_t left = 1 + rng.Below(4); left > 0 && !bytes.empty(); --left) {
    const size_t at = rng.Below(bytes.size());
    switch (rng.Below(5)) {
      case 0:
        bytes[at] = static_cast<char>(rng.Below(256));
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng.Below(8)));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, 1 + rng.Below(16)));
        break;
      default:  // the largest and the smallest numbers of eight bytes
        bytes.replace(at, std::min<size_t>(8, bytes.size() - at), std::string(7, '\xff') + '\x7f');
    }
  }
  return bytes;
}

TEST_CASE("every seed is accepted by its decoder") {
  REQUIRE_FALSE(Decoders().empty());
  std::set<std::string> names;
  for (const Decoder& decoder : Decoders()) {
    CAPTURE(decoder.name);
    REQUIRE(names.insert(decoder.name).second);
    const std::vector<std::string> seeds = decoder.seeds();
    REQUIRE_FALSE(seeds.empty());
    for (size_t i = 0; i < seeds.size(); ++i) {
      CAPTURE(i);
      CHECK(decoder.accepts(seeds[i]));
    }
  }
}

TEST_CASE("changed seeds are accepted or refused, and nothing else happens") {
  for (const Decoder& decoder : Decoders()) {
    Rng rng(18);
    int refused = 0;
    for (const std::string& seed : decoder.seeds()) {
      for (int i = 0; i < kChangesPerSeed; ++i) {
        if (!decoder.accepts(Changed(seed, rng))) ++refused;
      }
    }
    CAPTURE(decoder.name);
    CHECK(refused > 0);
  }
}

TEST_CASE("random_choices_are_accepted_or_refused_and_nothing_else_happens") {
  constexpr size_t kBytesMax = 512;
  for (const Decoder& decoder : Decoders()) {
    CAPTURE(decoder.name);
    int accepted = 0;
    for (int i = 0; i < decoder.random_inputs; ++i) {
      CAPTURE(i);
      Rng rng(static_cast<uint64_t>(i));
      std::string bytes(rng.Below(kBytesMax), '\0');
      for (char& byte : bytes) byte = static_cast<char>(rng.Below(256));
      if (decoder.accepts(bytes)) ++accepted;
    }
    CHECK((decoder.random_inputs == 0 || accepted > 0));
  }
}

}  // namespace
}  // namespace atl::fuzz
