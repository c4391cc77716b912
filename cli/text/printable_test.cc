#include "cli/text/printable.h"

#include <catch2/catch.hpp>
#include <sstream>

namespace atl::cli {
namespace {

std::string Printed(const std::string& text) {
  std::ostringstream stream;
  {
    const PrintableOutput output(stream);
    for (const char c : text) stream << c;  // whatever the parts that it comes in
  }
  std::ostringstream whole;
  {
    const PrintableOutput output(whole);
    whole << text << std::flush;
  }
  CHECK(stream.str() == whole.str());
  return whole.str();
}

TEST_CASE("control_characters_are_printed_by_their_numbers") {
  CHECK(Printed("a\tb\nc d") == "a\tb\nc d");
  CHECK(Printed("a\x1b[2Jb") == "a\\x1b[2Jb");
  CHECK(Printed("a\x1b]0;title\x07") == "a\\x1b]0;title\\x07");
  CHECK(Printed("\x1b\x1b[1A") == "\\x1b\\x1b[1A");
  CHECK(Printed("over\rwritten\x7f\x08") == "over\\x0dwritten\\x7f\\x08");
  CHECK(Printed("\xc2\x9b"
                "31m") == "\\xc2\\x9b31m");  // the same as ESC [
  CHECK(Printed("ends\x1b[3") == "ends\\x1b\\x5b\\x33");
}

TEST_CASE("letters_of_every_alphabet_and_tables_colours_pass") {
  for (const std::string text :
       {"Zürich £ © 東京", "\x1b[32mrunning\x1b[0m", "\x1b[31mfailed\x1b[0m\n"}) {
    CHECK(Printed(text) == text);
  }
}

TEST_CASE("the_programs_own_sequences_go_past_the_filter") {
  std::ostringstream stream;
  const PrintableOutput output(stream);
  WriteControl(stream, "\x1b[2A\x1b[J");
  stream << "x";
  CHECK(stream.str() == "\x1b[2A\x1b[Jx");
}

TEST_CASE("a_stream_that_cannot_be_written_stays_failed") {
  std::ostringstream stream;
  {
    const PrintableOutput output(stream);
    stream.setstate(std::ios::badbit);
  }
  CHECK(stream.bad());
}

}  // namespace
}  // namespace atl::cli
