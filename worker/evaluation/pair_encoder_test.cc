#include "worker/evaluation/pair_encoder.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

constexpr const char* kTokenizer = "tests/tokenizer/small/gpt2/tokenizer.json";

TEST_CASE("white_space_at_the_end_of_a_context_is_scored") {
  PairEncoder bytes(nullptr, std::nullopt, 256);
  const auto text = bytes.Encode("ab \n", "c");
  REQUIRE(text.ok());
  CHECK(text->tokens == std::vector<int32_t>{'a', 'b', ' ', '\n', 'c'});
  CHECK(text->context == 2);
}

TEST_CASE("a_text_without_context_begins_with_the_token_of_a_beginning") {
  PairEncoder bytes(nullptr, 0, 256);
  const auto text = bytes.Encode("", "ab");
  REQUIRE(text.ok());
  CHECK(text->tokens == std::vector<int32_t>{0, 'a', 'b'});
  CHECK(text->context == 1);
  // Not where a context is there.
  CHECK(bytes.Encode("a", "b")->tokens == std::vector<int32_t>{'a', 'b'});
  PairEncoder bare(nullptr, std::nullopt, 256);
  CHECK(bare.Encode("", "ab")->context == 0);
}

TEST_CASE("tokens_beyond_the_models_vocabulary_are_refused") {
  PairEncoder bytes(nullptr, std::nullopt, 'z');
  CHECK(bytes.Encode("a", "y").ok());
  CHECK(bytes.Encode("a", "z").status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("context_and_continuation_are_encoded_as_one_text") {
  const auto tokenizer = OpenTokenizer(kTokenizer);
  REQUIRE(tokenizer.ok());
  PairEncoder pairs(tokenizer->get(), std::nullopt, (*tokenizer)->vocabulary());
  std::vector<int32_t> both, context;
  Encoder encoder(**tokenizer);
  REQUIRE(encoder.Encode("The first of them", &both).ok());
  REQUIRE(encoder.Encode("The first", &context).ok());
  const auto text = pairs.Encode("The first ", "of them");
  REQUIRE(text.ok());
  const auto before = static_cast<int64_t>((*tokenizer)->before().size());
  CHECK(std::vector(text->tokens.begin() + before, text->tokens.end()) == both);
  CHECK(text->context == before + static_cast<int64_t>(context.size()));
}

}  // namespace
}  // namespace atl
