// encode_chats FOLDER CASES: the ids of each conversation of CASES, framed by the folder's
// template, as training has them, one line of numbers each; "refused" where they are not framed.

#include <fstream>
#include <iostream>

#include "common/masked_tokens.h"
#include "worker/data/chat/frame.h"

namespace atl {
namespace {

std::string Ids(const ChatFrame& frame, const std::string& line) {
  const auto chat = ParseChat(line, "cases", 1);
  std::vector<int32_t> ids;
  if (!chat.ok() || !ChatEncoder(frame).Encode(*chat, &ids).ok()) return "refused";
  std::string text;
  for (const int32_t id : ids) {
    absl::StrAppend(&text, text.empty() ? "" : " ", id < 0 ? MaskToken(id) : id);
  }
  return text;
}

int Run(const std::string& folder, const char* cases) {
  const auto tokenizer = OpenTokenizer(folder);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  const auto frame = ChatFrame::Open({tokenizer->get(), folder, std::nullopt, "2026-03-04"});
  if (!frame.ok()) {
    std::cerr << frame.status().message() << "\n";
    return 1;
  }
  std::ifstream lines(cases);
  for (std::string line; std::getline(lines, line);) std::cout << Ids(**frame, line) << "\n";
  return 0;
}

}  // namespace
}  // namespace atl

int main(int argc, char** argv) { return argc == 3 ? atl::Run(argv[1], argv[2]) : 2; }
