#include "cli/text/text_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/status.h"

namespace atl::cli {
namespace {

constexpr size_t kPromptTokens = 5;
constexpr const char* kReplacement = "\xef\xbf\xbd";

// How many bytes at the end of `text` may be the beginning of `stop`.
size_t Overlap(const std::string& text, const std::string& stop) {
  for (size_t bytes = std::min(text.size(), stop.size() - 1); bytes > 0; --bytes) {
    if (text.compare(text.size() - bytes, bytes, stop, 0, bytes) == 0) return bytes;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(const Tokenizer* tokenizer, std::span<const int32_t> prompt,
                       std::vector<std::string> stops,
                       std::function<void(const std::string&)> write)
    : tokenizer_(tokenizer), stops_(std::move(stops)), write_(std::move(write)) {
  std::erase(stops_, "");
  const auto last = prompt.last(std::min(prompt.size(), kPromptTokens));
  ids_.assign(last.begin(), last.end());
  shown_ = ids_.size();
}

absl::Status TextStream::Decode(bool all) {
  ATOLL_ASSIGN_OR_RETURN(const std::string before,
                         tokenizer_->Decode(std::span(ids_).first(shown_), true));
  ATOLL_ASSIGN_OR_RETURN(const std::string text, tokenizer_->Decode(ids_, true));
  const bool broken = absl::EndsWith(text, kReplacement);  // a character may be under way
  if ((broken && !all) || text.size() <= before.size()) return absl::OkStatus();
  pending_ += text.substr(before.size());
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(shown_));
  shown_ = ids_.size();
  return absl::OkStatus();
}

bool TextStream::Emit(bool all) {
  size_t end = std::string::npos, held = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, pending_.find(stop));
    held = std::max(held, Overlap(pending_, stop));
  }
  stopped_ = end != std::string::npos;
  const size_t bytes = stopped_ ? end : all ? pending_.size() : pending_.size() - held;
  if (bytes > 0) write_(pending_.substr(0, bytes));
  pending_.erase(0, bytes);
  return !stopped_;
}

absl::StatusOr<bool> TextStream::Add(int32_t token) {
  if (stopped_) return false;
  if (tokenizer_ == nullptr) {
    if (token <= 0xff) pending_ += static_cast<char>(token);  // others are no text
  } else {
    ids_.push_back(token);
    ATOLL_RETURN_IF_ERROR(Decode(false));
  }
  return Emit(false);
}

absl::Status TextStream::Finish() {
  if (stopped_) return absl::OkStatus();
  if (tokenizer_ != nullptr) ATOLL_RETURN_IF_ERROR(Decode(true));
  Emit(true);
  return absl::OkStatus();
}

}  // namespace atl::cli
