// Tables as the command line prints them.

#ifndef ATOLL_CLI_TEXT_TABLE_H_
#define ATOLL_CLI_TEXT_TABLE_H_

#include <string>
#include <utility>
#include <vector>

namespace atl::cli {

// Columns are as wide as their widest cell; numbers are aligned by their last digit. A table that
// is wider than the terminal is cut into parts of its columns, each of which begins with the
// columns that name a row; a text in the last column continues on further lines.
class Table {
 public:
  // `keys`: number of columns at the beginning that name a row.
  explicit Table(std::vector<std::string> header, size_t keys = 1) : keys_(keys) {
    rows_.push_back(std::move(header));
  }
  // REQUIRES: as many cells as the header has.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }
  std::string Text() const;

 private:
  struct Column {
    size_t index;
    size_t width;
  };
  using Part = std::vector<Column>;
  std::vector<Part> Parts() const;
  void AppendRow(const Part& part, const std::vector<std::string>& row, bool header,
                 std::string* text) const;

  const size_t keys_;
  std::vector<std::vector<std::string>> rows_;  // the header first
};

// Colours states in tables and on log lines; off at first.
void SetColour(bool on);
// The word, coloured if it is a state that has a colour.
std::string Coloured(const std::string& word);

// The size of the terminal that is standard output; 0: not known. $COLUMNS is the width where it is
// set.
struct TerminalSize {
  int columns = 0;
  int rows = 0;
};
TerminalSize OutputSize();

// Columns of the terminal that tables are printed on; 0, as at first: there is no limit.
void SetTerminalWidth(int columns);

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_TABLE_H_
