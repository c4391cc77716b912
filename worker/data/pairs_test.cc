// Pairs of answers: each sequence has the chosen and the rejected one, behind their prompts.

#include <catch2/catch.hpp>
#include <cctype>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/masked_tokens.h"
#include "worker/data/dataset.h"
#include "worker/data/inspection.h"
#include "worker/data/testing/data_folder.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;

DataSpec Pairs(const std::string& path, int64_t sequence_length) {
  DataSpec spec;
  spec.format = DataFormat::kChat;
  spec.path = path;
  spec.sequence_length = sequence_length;
  spec.validation_fraction = 0;
  spec.documents = Documents::kPairs;
  return spec;
}

// A document a string, masked tokens in upper case; bytes are tokens.
std::vector<std::string> Spell(const std::vector<int32_t>& row) {
  std::vector<std::string> documents;
  for (const int32_t token : row) {
    if (BeginsDocument(token)) documents.emplace_back();
    const char c = static_cast<char>(UnmaskToken(token));
    documents.back() += token >= 0 ? c : c == 0 ? '.' : static_cast<char>(std::toupper(c));
  }
  return documents;
}

std::vector<std::string> ReadPair(const std::string& line, int64_t sequence_length = 15) {
  testing::DataFolder folder;
  const auto data = Dataset::Open(Pairs(folder.Write("p.jsonl", line), sequence_length), 256);
  INFO(data.status().message());
  REQUIRE(data.ok());
  REQUIRE(data->train_sequences() == 1);
  std::vector<int32_t> row(static_cast<size_t>(data->row()));
  REQUIRE(data->ReadTrain(0, row).ok());
  CHECK(*data->CountMasked(std::vector<PositionRange>{{0, 3}}) == 3 * (sequence_length - 1));
  return Spell(row);
}

std::string Refusal(const std::string& line, int64_t sequence_length = 15) {
  testing::DataFolder folder;
  const DataSpec spec = Pairs(folder.Write("p.jsonl", line), sequence_length);
  return std::string(Dataset::Open(spec, 256).status().message());
}

TEST_CASE("texts_are_prompt_and_answer_without_a_frame_and_answers_count_with_their_end") {
  CHECK(ReadPair(R"({"prompt": "ab", "chosen": "cd", "rejected": "e", "score": 1})") ==
        std::vector<std::string>{"ABcd\n", "ABe\n", "......."});
}

TEST_CASE("lists_of_messages_are_conversations_with_one_prompt") {
  const std::vector<std::string> expected = {"ABc\n", "ABde\n", "......."};
  CHECK(ReadPair(R"({"prompt": [{"role": "user", "content": "ab"}], )"
                 R"("chosen": [{"role": "assistant", "content": "c"}], )"
                 R"("rejected": [{"role": "assistant", "content": "de"}]})") == expected);
  CHECK(ReadPair(R"({"chosen": [{"role": "user", "content": "ab"}, )"
                 R"({"role": "assistant", "content": "c"}], )"
                 R"("rejected": [{"role": "user", "content": "ab"}, )"
                 R"({"role": "assistant", "content": "de"}]})") == expected);
}

TEST_CASE("answers_in_the_prompt_do_not_count") {
  CHECK(ReadPair(R"({"prompt": [{"role": "user", "content": "a"}, )"
                 R"({"role": "assistant", "content": "b"}], )"
                 R"("chosen": [{"role": "assistant", "content": "c"}], )"
                 R"("rejected": [{"role": "assistant", "content": "d"}]})") ==
        std::vector<std::string>{"AB\nc\n", "AB\nd\n", "......"});
}

TEST_CASE("each_line_is_a_sequence_and_none_is_cut") {
  testing::DataFolder folder;
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&lines, R"({"prompt": "p", "chosen": ")", std::string(1 + i % 7, 'c'),
                    R"(", "rejected": ")", std::string(1 + i % 5, 'r'), "\"}\n");
  }
  DataSpec spec = Pairs(folder.Write("p.jsonl", lines), 15);
  spec.validation_fraction = 0.25;
  const auto data = Dataset::Open(spec, 256);
  REQUIRE(data.ok());
  CHECK(data->train_sequences() == 30);
  CHECK(data->validation_sequences() == 10);
  std::multiset<std::pair<size_t, size_t>> lengths, expected;
  for (int64_t p = 0; p < 30; ++p) {
    std::vector<int32_t> row(16);
    REQUIRE(data->ReadTrain(p, row).ok());
    const std::vector<std::string> pair = Spell(row);
    REQUIRE(pair.size() >= 2);
    lengths.insert({pair[0].size(), pair[1].size()});
    expected.insert({static_cast<size_t>(3 + p % 7), static_cast<size_t>(3 + p % 5)});
  }
  CHECK(lengths == expected);
  const auto found = InspectData(spec, 256);
  REQUIRE(found.ok());
  CHECK_THAT(found->text, Contains("80 documents in 30 sequences and 10 held out"));
}

TEST_CASE("pairs_that_cannot_be_compared_are_refused_with_their_line_or_left_out") {
  CHECK_THAT(Refusal(R"({"prompt": "ab", "chosen": "cd"})"),
             Contains("p.jsonl:1: is no pair of preferences"));
  CHECK_THAT(Refusal(R"({"prompt": "ab", "answer": "cd"})"), Contains("\"chosen\""));
  CHECK_THAT(Refusal(R"({"prompt": "ab", "chosen": "cd", "rejected": ["x"]})"),
             Contains("is no pair of preferences"));
  CHECK_THAT(Refusal(R"({"chosen": [{"role": "user", "content": "a"}], )"
                     R"("rejected": [{"role": "assistant", "content": "b"}]})"),
             Contains("\"assistant\""));
  CHECK_THAT(Refusal(R"({"prompt": "ab", "chosen": "cd", "rejected": "e", "images": ["x"]})"),
             Contains("\"images\""));
  const std::string equal = R"({"prompt": "ab", "chosen": "cd", "rejected": "cd"})"
                            "\n";
  CHECK_THAT(Refusal(equal), Contains("p.jsonl:1: has one answer as"));
  const std::string list = R"([{"role": "user", "content": "a"}, )"
                           R"({"role": "assistant", "content": "b"}])";
  CHECK_THAT(Refusal(absl::StrCat(R"({"chosen": )", list, R"(, "rejected": )", list, "}")),
             Contains("has one answer as"));
  const std::string longer = R"({"prompt": "ab", "chosen": "cd", "rejected": "efghij"})"
                             "\n";
  CHECK_THAT(Refusal(longer, 12),
             Contains("p.jsonl:1: the pair has 14 tokens") && Contains("data.on_bad_document"));
  testing::DataFolder folder;
  DataSpec spec =
      Pairs(folder.Write("p.jsonl",
                         longer + equal + R"({"prompt": "x", "chosen": "y", "rejected": "z"})"),
            12);
  spec.on_bad_document = OnBadDocument::kSkip;
  const auto data = Dataset::Open(spec, 256);
  REQUIRE(data.ok());
  CHECK(data->train_sequences() == 1);
}

}  // namespace
}  // namespace atl
