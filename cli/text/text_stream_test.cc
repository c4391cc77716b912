#include "cli/text/text_stream.h"

#include <catch2/catch.hpp>

namespace atl::cli {
namespace {

// Five bytes as byte-level tokens, and a special one.
std::unique_ptr<const Tokenizer> Bytes() {
  auto tokenizer = ParseTokenizerJson(
      R"({"model": {"type": "BPE", "vocab": {"\u0120": 0, "a": 1, "b": 2, "\u00c3": 3,
          "\u00a9": 4}, "merges": []}, "decoder": {"type": "ByteLevel"},
          "added_tokens": [{"id": 5, "content": "<end>", "special": true}]})",
      "t.json");
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

struct Shown {
  std::vector<std::string> parts;
  std::string text() const {
    std::string all;
    for (const std::string& part : parts) all += part;
    return all;
  }
  std::function<void(const std::string&)> write() {
    return [this](const std::string& part) { parts.push_back(part); };
  }
};

TEST_CASE("a character is shown when it is whole, and special tokens never") {
  const auto tokenizer = Bytes();
  Shown shown;
  const std::vector<int32_t> prompt = {1, 2};
  TextStream stream(tokenizer.get(), prompt, {}, shown.write());
  REQUIRE(*stream.Add(1));
  REQUIRE(shown.text() == "a");
  REQUIRE(*stream.Add(3));
  REQUIRE(shown.text() == "a");  // half of a character
  REQUIRE(*stream.Add(4));
  REQUIRE(shown.text() == "a\xc3\xa9");
  REQUIRE(*stream.Add(5));
  REQUIRE(*stream.Add(3));
  REQUIRE(stream.Finish().ok());
  REQUIRE(shown.text() == "a\xc3\xa9\xef\xbf\xbd");
}

TEST_CASE("a stop text ends it, also one that tokens cut, and what only looked like one is shown") {
  Shown shown;
  TextStream stream(nullptr, {}, {"END", "no"}, shown.write());
  for (const char c : std::string("x EN n EN")) REQUIRE(*stream.Add(c));
  REQUIRE(shown.text() == "x EN n ");
  REQUIRE_FALSE(*stream.Add('D'));
  REQUIRE_FALSE(*stream.Add('y'));
  REQUIRE(stream.Finish().ok());
  REQUIRE(shown.text() == "x EN n ");
}

TEST_CASE("what was held back is shown at the end") {
  Shown shown;
  TextStream stream(nullptr, {}, {"END"}, shown.write());
  for (const char c : std::string("x EN")) REQUIRE(*stream.Add(c));
  REQUIRE(stream.Finish().ok());
  REQUIRE(shown.text() == "x EN");
}

}  // namespace
}  // namespace atl::cli
