// Makes texts from elsewhere (files, members, coordinators) printable: they must not command the
// terminal.

#ifndef ATOLL_CLI_TEXT_PRINTABLE_H_
#define ATOLL_CLI_TEXT_PRINTABLE_H_

#include <ostream>
#include <streambuf>
#include <string>

namespace atl::cli {

// While it exists, control characters that are written to the stream become "\x1b" and the like,
// but for ends of lines, tabs and the colours of tables.
class PrintableOutput : private std::streambuf {
 public:
  explicit PrintableOutput(std::ostream& stream);
  ~PrintableOutput() override;
  PrintableOutput(const PrintableOutput&) = delete;
  PrintableOutput& operator=(const PrintableOutput&) = delete;

 private:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* text, std::streamsize count) override;
  int sync() override;
  bool Put(const char* text, size_t count);

  std::ostream& stream_;
  std::streambuf* const raw_;
  std::string held_;  // the beginning of a colour or of a two-byte control character
};

// Writes this program's own control sequences, which PrintableOutput would not pass on.
void WriteControl(std::ostream& stream, const std::string& sequence);

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_PRINTABLE_H_
