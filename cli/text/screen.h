// Text on a terminal that replaces what was drawn before it.

#ifndef ATOLL_CLI_TEXT_SCREEN_H_
#define ATOLL_CLI_TEXT_SCREEN_H_

#include <algorithm>
#include <functional>
#include <iostream>
#include <string>

#include "cli/text/render.h"

namespace atl::cli {

class Screen {
 public:
  // `text(columns)`; 0: their number is not known.
  void Draw(const std::function<std::string(int columns)>& text) {
    if (lines_ > 0) std::cout << "\x1b[" << lines_ << "A\x1b[J";
    const TerminalSize size = OutputSize();
    const std::string shown = Clip(text(size.columns), size.columns, size.rows - 1);
    std::cout << shown << std::flush;
    lines_ = static_cast<int>(std::count(shown.begin(), shown.end(), '\n'));
  }

  // Leaves on the screen what was drawn; other text follows it.
  void Keep() { lines_ = 0; }

 private:
  int lines_ = 0;
};

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_SCREEN_H_
