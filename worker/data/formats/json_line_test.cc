#include "worker/data/formats/json_line.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

using namespace std::string_literals;

// ---- vocabulary of these tests ----

// Where and why a line is refused: "COLUMN: PROBLEM"; "": it is not.
std::string Refusal(const std::string& line) {
  const auto text = JsonlText(line, "text", "f", 7);
  if (text.ok()) return "";
  const std::string message(text.status().message());
  const std::string place = "data file f:7:";
  REQUIRE(message.substr(0, place.size()) == place);
  return message.substr(place.size());
}

bool Says(const std::string& line, int column, const std::string& word) {
  const std::string refusal = Refusal(line);
  INFO(refusal);
  return refusal.find(std::to_string(column) + ": ") == 0 &&
         refusal.find(word) != std::string::npos;
}

// ---- tests ----

TEST_CASE("numbers_that_json_has_not_are_accepted_in_unused_fields") {
  for (const char* odd :
       {"NaN", "Infinity", "-Infinity", "1e400", "-1e999", "123456789012345678901234567890"}) {
    const auto text =
        JsonlText("{\"a\": "s + odd + ", \"text\": \"b\", \"c\": [" + odd + "]}", "text", "f", 1);
    REQUIRE(text.ok());
    CHECK(**text == "b");
  }
  CHECK(Refusal(R"({"text": NaN})") == " its field \"text\" is NaN, which JSON has not, not text");
  CHECK(Refusal(R"({"text": -Infinity})").find("-Infinity") != std::string::npos);
  CHECK(Refusal(R"({"text": 1e400})").find("too large a number") != std::string::npos);
}

TEST_CASE("a_line_that_is_not_json_is_refused_with_its_column_and_the_cause") {
  CHECK(Says("{\"text\": \"a\tb\"}", 12, "raw tab"));
  CHECK(Says("{\"text\": \"a\0b\"}"s, 12, "raw NUL"));
  CHECK(Says("{\"text\": \"\xc3\xa9 caf\xe9\"}", 16, "0xe9"));  // the column counts characters
  CHECK(Says(R"({"text": "cut \ud83d here"})", 15, "lone surrogate"));
  CHECK(Says(R"({"text": "cut \ude00"})", 15, "lone surrogate"));
  CHECK(Says(R"({"text": "a)", 12, "breaks off"));
  CHECK(Says(R"({"text": "a")", 13, "breaks off"));
  CHECK(Says(R"({"text": "a"} {"text": "b"})", 15, "more follows"));
  CHECK(Says("{\"text\": \"a\"}\r{\"text\": \"b\"}", 14, "carriage return"));
  CHECK(Says(R"({"text": True})", 14, "Python"));
  CHECK(Says(R"({'text': 'a'})", 2, "double quotes"));
  CHECK(Says("plain text", 1, "is this plain text?"));
  CHECK(Says(R"([{"text": "a"}])", 1, "a list"));
  CHECK(Says(R"({"text": "\x"})", 11, "escape"));
  CHECK(Says(R"({"text": 01})", 10, "begins with 0"));
  CHECK(Says("{\"text\": \"a\"}\0\0"s, 14, "a NUL"));
  CHECK(Says("\0\0"s, 1, "a NUL"));
}

TEST_CASE("a_mark_of_utf8_and_lists_over_several_lines_are_recognised") {
  CHECK(JsonlText("\xef\xbb\xbf{\"a\": NaN, \"text\": \"b\"}", "text", "f", 1).ok());
  CHECK(std::string(JsonlText("[", "text", "f", 1).status().message()).find("jq -c") !=
        std::string::npos);
  CHECK(std::string(JsonlText("{", "text", "f", 1).status().message()).find("jq -c .") !=
        std::string::npos);
}

TEST_CASE("what_is_no_text_is_refused_by_what_it_is") {
  for (const auto& [line, word] :
       {std::pair(R"({"text": null})", "null"),
        {R"({"text": 3})", "a number"},
        {R"({"text": []})", "a list"},
        {R"({"title": "a"})", "no field \"text\" (data.field), but title"},
        {R"({"messages": []})", "data.format = \"chat\""}}) {
    INFO(line);
    CHECK(Refusal(line).find(word) != std::string::npos);
  }
}

TEST_CASE("the_scanner_finds_a_fault_exactly_where_the_parser_refuses") {
  const char* const texts[] = {"{}",
                               "[]",
                               "[1, -2.5e+3, 0.1E-2, true, false, null]",
                               "{\"a\": {\"b\": [[], {}]}}",
                               "\"a\"",
                               "{\"a\"}",
                               "{\"a\":}",
                               "{\"a\": 1,}",
                               "[1,]",
                               "[1 2]",
                               "{1: 2}",
                               "-",
                               "1.",
                               "1e",
                               "+1",
                               ".5",
                               "[",
                               "]",
                               "{\"a\": 1]",
                               "tru",
                               "\"\\u12\"",
                               "\"\\ud83d\\ude00\"",
                               "\"\\ud83d\\u0041\"",
                               "00"};
  for (const std::string text : texts) {
    INFO(text);
    std::vector<JsonOddNumber> odd;
    CHECK(FindJsonFault(text, &odd).has_value() != nlohmann::json::accept(text));
  }
}

TEST_CASE("deep_nesting_is_read") {
  const std::string deep = "{\"text\": \"a\", \"x\": NaN, \"deep\": " + std::string(20000, '[') +
                           std::string(20000, ']') + "}";
  CHECK(Refusal(deep).empty());
}

}  // namespace
}  // namespace atl
