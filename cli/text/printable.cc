#include "cli/text/printable.h"

#include "absl/strings/str_format.h"

namespace atl::cli {
namespace {

// Where a stream keeps the buffer beneath a PrintableOutput.
int RawIndex() {
  static const int index = std::ios_base::xalloc();
  return index;
}

// Returns whether the sequence is a colour of tables (table.cc).
bool IsColour(const std::string& sequence) {
  for (const char* code : {"0", "31", "32", "33"}) {
    if (sequence == absl::StrFormat("\x1b[%sm", code)) return true;
  }
  return false;
}

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
}

void AppendEscaped(const std::string& bytes, std::string* out) {
  for (const char c : bytes) absl::StrAppendFormat(out, "\\x%02x", static_cast<unsigned char>(c));
}

// Adds `next` to what is held. Appends what is decided; what may still become a colour or a control
// character stays.
void Filter(char next, std::string* held, std::string* out) {
  if (*held == "\xc2") {  // of U+0080 to U+00BF, the first 32 of which are control characters
    const bool control =
        static_cast<unsigned char>(next) >= 0x80 && static_cast<unsigned char>(next) < 0xa0;
    const std::string pair = *held + next;
    held->clear();
    if (control) return AppendEscaped(pair, out);
    *out += pair.front();
  } else if (!held->empty()) {
    held->push_back(next);
    if (held->size() < 6 && next != 'm') {
      const bool begins = held->size() == 2 ? next == '[' : next >= '0' && next <= '9';
      if (begins) return;
    } else if (IsColour(*held)) {
      *out += *held;
      return held->clear();
    }
    AppendEscaped("\x1b", out);
    const std::string rest = held->substr(1);
    held->clear();
    for (const char c : rest) Filter(c, held, out);
    return;
  }
  if (next == '\x1b' || next == '\xc2') {
    held->push_back(next);
  } else if (IsControl(next)) {
    AppendEscaped(std::string(1, next), out);
  } else {
    *out += next;
  }
}

}  // namespace

PrintableOutput::PrintableOutput(std::ostream& stream) : stream_(stream), raw_(stream.rdbuf(this)) {
  stream_.pword(RawIndex()) = raw_;
}

PrintableOutput::~PrintableOutput() {
  std::string rest;
  AppendEscaped(held_, &rest);
  raw_->sputn(rest.data(), static_cast<std::streamsize>(rest.size()));
  const auto state = stream_.rdstate();
  stream_.rdbuf(raw_);  // forgets that a write has failed
  stream_.setstate(state);
  stream_.pword(RawIndex()) = nullptr;
}

bool PrintableOutput::Put(const char* text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) Filter(text[i], &held_, &out);
  const auto size = static_cast<std::streamsize>(out.size());
  return raw_->sputn(out.data(), size) == size;
}

PrintableOutput::int_type PrintableOutput::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char letter = traits_type::to_char_type(c);
  return Put(&letter, 1) ? c : traits_type::eof();
}

std::streamsize PrintableOutput::xsputn(const char* text, std::streamsize count) {
  return Put(text, static_cast<size_t>(count)) ? count : 0;
}

int PrintableOutput::sync() { return raw_->pubsync(); }

void WriteControl(std::ostream& stream, const std::string& sequence) {
  auto* const raw = static_cast<std::streambuf*>(stream.pword(RawIndex()));
  std::streambuf* const to = raw == nullptr ? stream.rdbuf() : raw;
  to->sputn(sequence.data(), static_cast<std::streamsize>(sequence.size()));
}

}  // namespace atl::cli
