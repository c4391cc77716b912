// encode_lines TOKENIZER FILE [--time|--text]: the ids of each line of a file, one line of numbers
// each; with --time, how long it took instead; with --text, what the ids decode to. What the tests
// against peers and the benchmark compare with.

#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: encode_lines TOKENIZER FILE [--time|--text]\n";
    return 2;
  }
  const auto tokenizer = atl::OpenTokenizer(argv[1]);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  std::ifstream file(argv[2], std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  atl::Encoder encoder(**tokenizer);
  const auto encode = [&](const std::string& line, std::vector<int32_t>* ids) {
    ids->clear();
    const absl::Status status = encoder.EncodeFramed(line, ids);
    if (!status.ok()) std::cerr << status.message() << "\n";
    return status.ok();
  };
  std::vector<int32_t> ids;
  const std::string option = argc > 3 ? argv[3] : "";
  if (option == "--time") {
    size_t tokens = 0, bytes = 0;
    const auto start = std::chrono::steady_clock::now();
    for (const std::string& line : lines) {
      if (!encode(line, &ids)) return 1;
      tokens += ids.size();
      bytes += line.size() + 1;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::cout << bytes << " " << tokens << " " << took.count() << "\n";
    return 0;
  }
  for (const std::string& line : lines) {
    if (!encode(line, &ids)) return 1;
    std::string text;
    if (option == "--text") {
      const auto decoded = (*tokenizer)->Decode(ids, /*skip_special=*/true);
      if (!decoded.ok()) return 1;
      std::cout << *decoded << "\n";
      continue;
    }
    for (const int32_t id : ids) absl::StrAppend(&text, text.empty() ? "" : " ", id);
    std::cout << text << "\n";
  }
}
