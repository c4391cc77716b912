#include "cli/text/table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace atl::cli {
namespace {

constexpr int kSpacesOfNumber = 3;  // "2 min 30 s"; what has more is a sentence
constexpr size_t kGap = 2;
constexpr size_t kNarrowestText = 30;  // of a text that continues on further lines

bool colour = false;
size_t terminal_width = 0;

bool LooksNumeric(const std::string& cell) {
  if (std::count(cell.begin(), cell.end(), ' ') > kSpacesOfNumber) return false;
  return cell == "-" ||
         (!cell.empty() && (absl::ascii_isdigit(cell[0]) ||
                            (cell.size() > 1 && cell[0] == '-' && absl::ascii_isdigit(cell[1]))));
}

// Characters of UTF-8: bytes that do not continue one.
size_t CountCharacters(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

// Lines of whole words, at most so wide unless a word is wider.
std::vector<std::string> Wrap(const std::string& text, size_t width) {
  if (CountCharacters(text) <= width) return {text};
  std::vector<std::string> lines;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!lines.empty() && CountCharacters(lines.back()) + 1 + CountCharacters(word) <= width) {
      absl::StrAppend(&lines.back(), " ", word);
    } else {
      lines.emplace_back(word);
    }
  }
  return lines;
}

}  // namespace

void SetColour(bool on) { colour = on; }

std::string Coloured(const std::string& word) {
  if (!colour) return word;
  constexpr std::pair<const char*, const char*> kColours[] = {
      {"running", "32"},  {"done", "32"},     {"accepted", "32"},    {"attached", "32"},
      {"failed", "31"},   {"REJECTED", "31"}, {"unavailable", "31"}, {"SATURATED", "31"},
      {"error", "31"},    {"STALLED", "31"},  {"paused", "33"},      {"warning", "33"},
      {"cancelled", "33"}};
  for (const auto& [name, code] : kColours) {
    if (word == name) return absl::StrCat("\x1b[", code, "m", word, "\x1b[0m");
  }
  return word;
}

TerminalSize OutputSize() {
  winsize size{};
  ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);  // all zero where it cannot say
  int columns = 0;
  const char* variable = std::getenv("COLUMNS");
  const bool given = variable != nullptr && absl::SimpleAtoi(variable, &columns) && columns > 0;
  return {given ? columns : size.ws_col, size.ws_row};
}

void SetTerminalWidth(int columns) { terminal_width = static_cast<size_t>(std::max(columns, 0)); }

std::vector<Table::Part> Table::Parts() const {
  const size_t columns = rows_[0].size();
  Part all;
  for (size_t c = 0; c < columns; ++c) {
    all.push_back({c, 0});
    for (const auto& row : rows_) all[c].width = std::max(all[c].width, CountCharacters(row[c]));
  }
  if (terminal_width == 0) return {all};
  const Part keys(all.begin(), all.begin() + static_cast<int64_t>(std::min(keys_, columns)));
  std::vector<Part> parts;
  size_t used = 0;
  const auto begin = [&] {
    parts.push_back(keys);
    used = 0;
    for (const Column& key : keys) used += key.width + kGap;
  };
  begin();
  for (size_t c = keys.size(); c < columns; ++c) {
    const size_t left = terminal_width > used ? terminal_width - used : 0;
    const bool text = c + 1 == columns && all[c].width > kNarrowestText;
    if (all[c].width > left && !(text && left >= kNarrowestText) &&
        parts.back().size() > keys.size()) {
      begin();
    }
    const size_t room = terminal_width > used ? terminal_width - used : 0;
    parts.back().push_back(
        {c, text ? std::min(all[c].width, std::max(room, kNarrowestText)) : all[c].width});
    used += parts.back().back().width + kGap;
  }
  return parts;
}

void Table::AppendRow(const Part& part, const std::vector<std::string>& row, bool header,
                      std::string* text) const {
  std::vector<std::vector<std::string>> cells;
  size_t lines = 1;
  for (const Column& column : part) {
    cells.push_back(Wrap(row[column.index], column.width));
    lines = std::max(lines, cells.back().size());
  }
  for (size_t l = 0; l < lines; ++l) {
    std::string line;
    for (size_t c = 0; c < part.size(); ++c) {
      const bool right = LooksNumeric(rows_[rows_.size() > 1 ? 1 : 0][part[c].index]);
      const std::string cell = l < cells[c].size() ? cells[c][l] : "";
      const size_t width = std::min(CountCharacters(cell), part[c].width);
      const std::string space(part[c].width - width, ' ');
      const std::string shown = header ? cell : Coloured(cell);
      if (c > 0) line += std::string(kGap, ' ');
      line += right ? space + shown : shown + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(text, line, "\n");
  }
}

std::string Table::Text() const {
  std::string text;
  for (const Part& part : Parts()) {
    // A row that has nothing in the columns of a further part is left out of it.
    const auto says_something = [&](const std::vector<std::string>& row) {
      return std::any_of(part.begin(), part.end(), [&](const Column& column) {
        return column.index >= keys_ && !row[column.index].empty();
      });
    };
    const bool first = text.empty();
    if (!first && std::none_of(rows_.begin() + 1, rows_.end(), says_something)) continue;
    if (!first) absl::StrAppend(&text, "\n");
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (first || r == 0 || says_something(rows_[r])) AppendRow(part, rows_[r], r == 0, &text);
    }
  }
  return text;
}

}  // namespace atl::cli
