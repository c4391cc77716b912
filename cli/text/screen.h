// Text on a terminal that replaces what was drawn before it.

#ifndef ATOLL_CLI_TEXT_SCREEN_H_
#define ATOLL_CLI_TEXT_SCREEN_H_

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <string>

#include "cli/text/output.h"
#include "cli/text/render.h"

namespace atl::cli {

class Screen {
 public:
  // Shows what is followed as it is now: as a document, else as `lines(columns)` (0: their number
  // is not known) on a terminal, in place of those before, or as `line()` in a file.
  void Show(bool structured, const google::protobuf::Message& message,
            const std::function<std::string(int columns)>& lines,
            const std::function<std::string()>& line) {
    if (!structured && isatty(STDOUT_FILENO) == 1) return Draw(lines);
    std::cout << (structured ? DocumentLine(message) : line()) << std::flush;
  }

  // Leaves on the screen what was drawn; other text follows it.
  void Keep() { lines_ = 0; }

 private:
  void Draw(const std::function<std::string(int columns)>& text) {
    if (lines_ > 0) std::cout << "\x1b[" << lines_ << "A\x1b[J";
    const TerminalSize size = OutputSize();
    const std::string shown = Clip(text(size.columns), size.columns, size.rows - 1);
    std::cout << shown << std::flush;
    lines_ = static_cast<int>(std::count(shown.begin(), shown.end(), '\n'));
  }

  int lines_ = 0;
};

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_SCREEN_H_
