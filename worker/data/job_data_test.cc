// The data of a job, as its file describes them: text, JSONL, conversations, and what is held out.

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "worker/data/dataset.h"
#include "worker/data/inputs.h"
#include "worker/data/inspection.h"
#include "worker/data/testing/data_folder.h"
#include "worker/data/tokenize.h"

namespace atl {
namespace {

using namespace std::string_literals;
using Catch::Matchers::Contains;
using Folder = testing::DataFolder;
using testing::AllTokens, testing::Gzipped, testing::LongText, testing::Spec, testing::Zstd;
namespace fs = std::filesystem;

TEST_CASE("a job reads text with a tokenizer, made once into the cache") {
  Folder folder;
  DataSpec spec = Spec(DataFormat::kText, folder.Write("t.txt", LongText(400)));
  spec.tokenizer_path = folder.Tokenizer();
  const auto first = Dataset::Open(spec, 4);
  INFO(first.status().message());
  REQUIRE(first.ok());
  CHECK(first->train_sequences() == 75);
  const auto count = [&] {
    return std::distance(fs::directory_iterator(folder.at("cache")), fs::directory_iterator());
  };
  CHECK(count() == 1);
  CHECK(Dataset::Open(spec, 4)->digest() == first->digest());
  CHECK(count() == 1);
  folder.Write("t.txt", LongText(404));
  CHECK(Dataset::Open(spec, 4)->digest() != first->digest());
  CHECK(count() == 2);
  CHECK_THAT(std::string(Dataset::Open(spec, 3).status().message()),
             Contains("model.vocabulary = 3") && Contains("1 token beyond it"));
}

TEST_CASE("a job reads JSONL, compressed text, globs and 32-bit tokens") {
  Folder folder;
  const auto tokens = [&](const DataSpec& spec, int64_t vocabulary) {
    const auto stream = TokenStream::Open(spec, spec.path, vocabulary);
    INFO(stream.status().message());
    REQUIRE(stream.ok());
    std::vector<int32_t> all(static_cast<size_t>(stream->tokens()));
    REQUIRE(stream->Read(0, vocabulary, all).ok());
    return all;
  };
  CHECK(tokens(Spec(DataFormat::kJsonl, folder.Write("x.jsonl", "{\"text\": \"hi\"}\n")), 256) ==
        std::vector<int32_t>{'h', 'i', '\n'});
  CHECK(tokens(Spec(DataFormat::kText, folder.Write("z.zst", Zstd("hi"))), 256) ==
        std::vector<int32_t>{'h', 'i'});
  const std::vector<uint32_t> wide = {1, 100000, 7};
  folder.Write("1.bin", std::string(reinterpret_cast<const char*>(wide.data()), 12));
  folder.Write("2.bin", std::string(reinterpret_cast<const char*>(wide.data() + 1), 4));
  CHECK(tokens(Spec(DataFormat::kTokens32, folder.at("*.bin")), 1 << 20) ==
        std::vector<int32_t>{1, 100000, 7, 100000});
  const auto stream =
      TokenStream::Open(Spec(DataFormat::kTokens32, ""), folder.at("*.bin"), 1 << 20);
  REQUIRE(stream.ok());
  std::vector<int32_t> part(2);
  REQUIRE(stream->Read(2, 1 << 20, part).ok());  // across files
  CHECK(part == std::vector<int32_t>{7, 100000});
  CHECK_THAT(std::string(stream->Read(2, 8, part).message()), Contains("2.bin: token 0"));
  const auto beyond = TokenStream::Open(Spec(DataFormat::kTokens32, ""), folder.at("*.bin"), 8);
  CHECK_THAT(std::string(beyond.status().message()), Contains("1.bin: token 1"));
}

// ---- conversations ----

// Every word is a token; frames of ChatML.
std::string ChatTokenizer(const Folder& folder) {
  folder.Write("chat_template.jinja",
               "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + "
               "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}"
               "{{ '<|im_start|>assistant\\n' }}{% endif %}");
  return folder.Write("tokenizer.json", R"({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1,
      "?": 2, "</s>": 3, "user": 4, "assistant": 5}, "unk_token": "?"},
      "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": [
      {"id": 6, "content": "<|im_start|>", "special": true},
      {"id": 7, "content": "<|im_end|>", "special": true}]})");
}

std::vector<int32_t> ReadTrainRow(const Dataset& dataset, int64_t sequence) {
  std::vector<int32_t> row(static_cast<size_t>(dataset.sequence_length() + 1));
  for (int64_t p = 0; p < dataset.train_sequences(); ++p) {
    if (dataset.Order(p) == sequence) REQUIRE(dataset.ReadTrain(p, row).ok());
  }
  return row;
}

TEST_CASE("of_a_conversation_only_answers_and_their_ends_count") {
  Folder folder;
  DataSpec spec = Spec(
      DataFormat::kChat,
      folder.Write("c.jsonl",
                   R"({"prompt": "a b", "answer": "b"})"
                   "\n"
                   R"({"messages": [{"role": "user", "content": "a"}, )"
                   R"({"role": "assistant", "content": "b b"}, {"role": "user", "content": "b"}, )"
                   R"({"role": "assistant", "content": "a"}]})"));
  spec.tokenizer_path = ChatTokenizer(folder);
  spec.validation_fraction = 0;
  spec.sequence_length = 20;
  const auto dataset = Dataset::Open(spec, 8);
  INFO(dataset.status().message());
  REQUIRE(dataset.ok());
  REQUIRE(dataset->train_sequences() == 1);
  // The second one does not fit behind the first: it would begin the next sequence.
  const std::vector<int32_t> expected = {~6, ~4, ~0, ~1, ~7, ~6, ~5, 1,  7,  ~3, ~3,
                                         ~3, ~3, ~3, ~3, ~3, ~3, ~3, ~3, ~3, ~6};
  CHECK(ReadTrainRow(*dataset, 0) == expected);
  const std::vector<PositionRange> twice = {{0, 2}};
  CHECK(*dataset->CountMasked(twice) == 2 * 18);
  CHECK_THAT(InspectData(spec, 8)->text, Contains("template " + folder.at("chat_template.jinja")) &&
                                             Contains("37 tokens, 1 sequence,"));
  spec.sequence_length = 13;  // now it has a whole sequence and two tokens of another
  CHECK(ReadTrainRow(*Dataset::Open(spec, 8), 0)[8] == 7);
  CHECK(Dataset::Open(spec, 8)->digest() != dataset->digest());
}

TEST_CASE("without_special_tokens_a_prompt_is_masked_and_the_end_of_text_counts") {
  Folder folder;
  DataSpec spec = Spec(DataFormat::kChat,
                       folder.Write("c.jsonl", "{\"prompt\": \"a b \", \"answer\": \"b a\"}\n"));
  spec.validation_fraction = 0;
  CHECK(ReadTrainRow(*Dataset::Open(spec, 256), 0) ==
        std::vector<int32_t>{~'a', ~' ', ~'b', ~' ', 'b'});  // bytes
  spec.tokenizer_path = folder.Tokenizer();
  CHECK(ReadTrainRow(*Dataset::Open(spec, 4), 0) == std::vector<int32_t>{~0, ~1, 1, 0, 3});
}

TEST_CASE("a_line_that_is_no_conversation_is_named") {
  Folder folder;
  const auto why = [&](const std::string& line) {
    const DataSpec spec = Spec(DataFormat::kChat, folder.Write("c.jsonl", "\n" + line + "\n"));
    const absl::Status status = Dataset::Open(spec, 256).status();
    CHECK(InspectData(spec, 256).status() == status);
    return std::string(status.message());
  };
  CHECK_THAT(why("{"), Contains("c.jsonl:2") && Contains("JSON"));
  CHECK_THAT(why("{\"prompt\": \"x\"}"), Contains("answer"));
  CHECK_THAT(why("{\"text\": \"x\"}"), Contains("messages"));
  CHECK_THAT(why("{\"messages\": [{\"role\": \"user\"}]}"), Contains("message 1"));
  CHECK_THAT(why("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}"),
             Contains("assistant"));
}

TEST_CASE("the first m validation sequences are spread evenly over the held-out part, for any m") {
  Folder folder;
  std::string text;
  for (int i = 0; i < 256 * 16; ++i) text.push_back(static_cast<char>(i / 16));
  DataSpec spec = Spec(DataFormat::kText, folder.Write("t", text));
  spec.validation_path = spec.path;
  spec.sequence_length = 8;
  const Dataset dataset = *Dataset::Open(spec, 256);
  const int64_t all = dataset.validation_sequences();
  REQUIRE(all == 511);
  CHECK(dataset.SelectValidationPositions(0, 0).size() == all);
  CHECK(dataset.SelectValidationPositions(0, 1000).size() == all);
  std::set<std::vector<int32_t>> seen;
  for (const int64_t m : {8, 32, 128}) {
    std::set<int32_t> positions = {0, 256};
    for (int64_t i = 0; i < m; ++i) {
      std::vector<int32_t> row(9);
      REQUIRE(dataset.ReadValidation(i, row).ok());
      positions.insert(row[0]);
    }
    int32_t gap = 0;
    for (auto position = positions.begin(); std::next(position) != positions.end(); ++position) {
      gap = std::max(gap, *std::next(position) - *position);
    }
    CHECK(gap <= 3 * 256 / m);
  }
}

TEST_CASE("the heads of a job's data show the errors that a worker would report") {
  Folder folder;
  DataSpec spec = Spec(DataFormat::kText, folder.Write("t.txt", LongText(400)));
  spec.tokenizer_path = folder.Tokenizer();
  CHECK_THAT(InspectData(spec, 4)->text, Contains("1 file of ") && Contains("401 tokens, "));
  CHECK_FALSE(fs::exists(folder.at("cache")));
  CHECK_FALSE(InspectData(spec, 2).ok());
  spec.format = DataFormat::kJsonl;
  CHECK_THAT(std::string(InspectData(spec, 4).status().message()), Contains("t.txt:1"));
  spec.tokenizer_path = folder.at("none.json");
  CHECK_THAT(InspectData(spec, 4)->text, Contains("none.json"));
}

TEST_CASE("packed_data_is_looked_at_to_its_end") {
  Folder folder;
  const std::string packed = Gzipped(LongText(4 << 20));
  const auto problem = [&](const std::string& bytes) {
    const auto found = InspectData(Spec(DataFormat::kText, folder.Write("p.gz", bytes)), 256);
    return found.ok() ? "" : std::string(found.status().message());
  };
  CHECK(problem(packed) == "");
  CHECK(problem(packed + std::string(4096, '\0')) == "");
  CHECK_THAT(problem(packed + "garbage"), Contains("p.gz") && Contains("something else"));
  CHECK_THAT(problem(packed.substr(0, packed.size() - 5)), Contains("breaks off"));
}

TEST_CASE("what is held out must have a sequence, and data that are not here are left out alone") {
  Folder folder;
  DataSpec spec = Spec(DataFormat::kText, folder.Write("t", std::string(400, 'x')));
  spec.sequence_length = 256;
  spec.validation_fraction = 0.05;
  CHECK_FALSE(Dataset::Open(spec, 256).ok());
  CHECK(absl::IsInvalidArgument(InspectData(spec, 256).status()));
  spec.sequence_length = 16;
  CHECK(Dataset::Open(spec, 256).ok());
  CHECK(InspectData(spec, 256).ok());
  spec.validation_path = folder.at("elsewhere");
  CHECK_THAT(InspectData(spec, 256)->text, Contains("validation: not") && Contains("1 file of "));
  CHECK(InspectData(spec, 256)->unread == std::vector<std::string>{folder.at("elsewhere")});
  spec = Spec(DataFormat::kShards, folder.at("cut"));
  CHECK(InspectData(spec, 256)->unread == std::vector<std::string>{folder.at("cut")});
  fs::create_directory(folder.at("cut"));
  CHECK_FALSE(InspectData(spec, 256).ok());  // the folder is here: what it lacks is an error
}

TEST_CASE("sizes_of_data_are_those_that_a_worker_makes_of_them") {
  Folder folder;
  std::string jsonl, chat;
  for (int i = 0; i < 100; ++i) {
    jsonl += R"({"text": ")" + LongText(i % 9 + 1).substr(0, 2) + "\"}\n";
    chat += R"({"prompt": "a", "answer": "b )" + std::string(i % 7, 'a') + "\"}\n";
  }
  DataSpec spec = Spec(DataFormat::kJsonl, folder.Write("d", jsonl));
  const auto compare = [&](const std::string& text, double held_out) {
    folder.Write("d", text);
    spec.validation_fraction = held_out;
    const auto dataset = Dataset::Open(spec, 256);
    const auto stream = TokenStream::Open(spec, spec.path, 256);
    INFO(dataset.status().message());
    REQUIRE(dataset.ok());
    std::string expected =
        absl::StrCat(stream->tokens(), " tokens, ", dataset->train_sequences(), " sequences");
    if (held_out > 0) {
      absl::StrAppend(&expected, " and ", dataset->validation_sequences(), " held out");
    }
    const auto found = InspectData(spec, 256);
    INFO(found.status().message());
    REQUIRE(found.ok());
    CHECK_THAT(found->text, Contains(", " + expected + ","));
    CHECK(found->unread.empty());
  };
  for (const bool bytes : {true, false}) {
    spec.tokenizer_path = bytes ? "" : ChatTokenizer(folder);
    spec.format = DataFormat::kJsonl;
    spec.sequence_length = 7;
    compare(jsonl, 0.25);
    spec.format = DataFormat::kChat;
    spec.sequence_length = 23;  // conversations leave room at the ends of sequences
    compare(chat, 0);
    spec.format = DataFormat::kText;
    compare(LongText(3000), 0.1);
    compare(Gzipped(LongText(3000)), 0.1);
  }
}

TEST_CASE("what_is_not_looked_at_is_named") {
  Folder folder;
  const std::string long_text = LongText(700'000);  // more than a MiB
  DataSpec spec = Spec(DataFormat::kText, folder.Write("long", long_text));
  CHECK(InspectData(spec, 256)->unread.empty());  // bytes are tokens, whatever they are
  spec.tokenizer_path = folder.Tokenizer();
  const auto text = InspectData(spec, 4);
  INFO(text.status().message());
  REQUIRE(text->unread.size() == 1);
  CHECK_THAT(text->unread[0], Contains(folder.at("long") + " after its first 1.0 MiB"));
  CHECK_FALSE(absl::StrContains(text->text, "sequences"));

  constexpr size_t kFirst = 10'000;  // names of one length
  for (size_t i = 0; i < kHeadFiles + 2; ++i) {
    folder.Write("part" + std::to_string(kFirst + i), LongText(20));
  }
  spec.path = folder.at("part*");
  CHECK(InspectData(spec, 4)->unread ==
        std::vector<std::string>{"files after " +
                                 folder.at("part" + std::to_string(kFirst + kHeadFiles - 1))});

  spec = Spec(DataFormat::kTokens16, folder.Write("t.bin", std::string(5 << 20, '\0')));
  CHECK(InspectData(spec, 4)->unread ==
        std::vector<std::string>{spec.path + " after its first 1048576 tokens"});

  spec.path = "http://127.0.0.1:1/t.bin";  // where no server is
  const auto remote = InspectData(spec, 4);
  INFO(remote.status().message());
  REQUIRE(remote.ok());
  CHECK(remote->unread == std::vector<std::string>{spec.path});
}

TEST_CASE("tokenizer_without_a_chat_template_is_warned_of") {
  Folder folder;
  DataSpec spec =
      Spec(DataFormat::kChat, folder.Write("c.jsonl", R"({"prompt": "a b a", "answer": "b a"})"));
  spec.validation_fraction = 0;
  spec.sequence_length = 4;
  const auto warnings = [&] {
    const auto found = InspectData(spec, 8);
    INFO(found.status().message());
    REQUIRE(found.ok());
    return found->warnings;
  };
  CHECK(warnings().empty());  // bytes
  spec.tokenizer_path = folder.Tokenizer();
  REQUIRE(warnings().size() == 1);
  CHECK_THAT(warnings()[0], Contains(": has no chat_template"));
  spec.tokenizer_path = ChatTokenizer(folder);
  CHECK(warnings().empty());
}

TEST_CASE("conversations_that_cannot_be_framed_are_skipped_where_the_job_says_so") {
  Folder folder;
  const std::string good = R"({"prompt": "a b", "answer": "b"})"
                           "\n";
  DataSpec spec =
      Spec(DataFormat::kChat, folder.Write("c.jsonl", good +
                                                          R"({"messages": [{"role": "user"}]})"
                                                          "\n" +
                                                          R"({"conversations": []})"
                                                          "\n" +
                                                          good));
  spec.tokenizer_path = ChatTokenizer(folder);
  spec.validation_fraction = 0;
  spec.sequence_length = 9;
  CHECK_THAT(std::string(Dataset::Open(spec, 8).status().message()), Contains("c.jsonl:2"));
  spec.on_bad_document = OnBadDocument::kSkip;
  const auto dataset = Dataset::Open(spec, 8);
  INFO(dataset.status().message());
  REQUIRE(dataset.ok());
  const auto found = InspectData(spec, 8);
  REQUIRE(found.ok());
  REQUIRE(found->warnings.size() == 1);
  CHECK_THAT(found->warnings[0], Contains("2 documents are left out") && Contains("c.jsonl:2"));
}

TEST_CASE("a document begins with what its tokenizer puts before a text") {
  Folder folder;
  const std::string path = folder.Write("tokenizer.json", R"({
      "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2, "</s>": 3, "<s>": 4},
                "unk_token": "?"}, "pre_tokenizer": {"type": "WhitespaceSplit"},
      "post_processor": {"type": "TemplateProcessing", "special_tokens":
                         {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}},
          "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                     {"Sequence": {"id": "A", "type_id": 0}}],
          "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                   {"Sequence": {"id": "B", "type_id": 0}}]}})");
  const auto tokenizer = OpenTokenizer(path);
  INFO(tokenizer.status().message());
  REQUIRE(tokenizer.ok());
  TokenizeOptions options;
  options.tokenizer = tokenizer->get();
  options.end_of_text = 3;
  options.files = {folder.Write("t.txt", "a b"), folder.Write("u.txt", "b")};
  REQUIRE(Tokenize(options, folder.at("text")).ok());
  CHECK(AllTokens(folder.at("text")) == std::vector<int32_t>{4, 0, 1, 3, 4, 1, 3});
  options.files = {folder.Write("t.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b b\"}\n")};
  options.jsonl = true;
  options.field = "text";
  REQUIRE(Tokenize(options, folder.at("jsonl")).ok());
  CHECK(AllTokens(folder.at("jsonl")) == std::vector<int32_t>{4, 0, 3, 4, 1, 1, 3});

  options.files = {folder.Write("empty.jsonl", "{\"text\": \"\"}\n")};
  CHECK(absl::IsInvalidArgument(Tokenize(options, folder.at("none")).status()));
  CHECK_FALSE(fs::exists(folder.at("none")));

  DataSpec spec = Spec(DataFormat::kShards, folder.at("jsonl"));
  spec.validation_fraction = 0;
  spec.sequence_length = 2;
  spec.tokenizer_path = path;
  CHECK(Dataset::Open(spec, 5).ok());
  spec.tokenizer_path = folder.Tokenizer();  // another one
  CHECK(absl::IsInvalidArgument(Dataset::Open(spec, 5).status()));
}

}  // namespace
}  // namespace atl
