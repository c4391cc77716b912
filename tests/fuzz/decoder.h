// Decoders of bytes that come from the network, the disk or a user, each with valid inputs to begin
// from. libFuzzer runs them with changed inputs (`./dev fuzz`); corpus_test.cc runs them with the
// seeds and a few changes of each in every `./dev test`.

#ifndef ATOLL_TESTS_FUZZ_DECODER_H_
#define ATOLL_TESTS_FUZZ_DECODER_H_

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace atl::fuzz {

struct Decoder {
  std::string name;
  // Inputs that `accepts` takes.
  std::vector<std::string> (*seeds)();
  // Decodes, and uses what was decoded as the product does. Whether the input was taken.
  bool (*accepts)(std::string_view bytes);
  // Set for a decoder that takes bytes as choices: inputs of random bytes that `./dev test` runs.
  int random_inputs = 0;
};

std::vector<Decoder>& Decoders();

struct Registration {
  explicit Registration(Decoder decoder) { Decoders().push_back(std::move(decoder)); }
};

// Reads numbers off the front of an input; zeros where it has ended.
class Input {
 public:
  explicit Input(std::string_view bytes) : left_(bytes) {}
  template <class T>
  T Take() {
    T value{};
    const size_t size = std::min(sizeof value, left_.size());
    std::memcpy(&value, left_.data(), size);
    left_.remove_prefix(size);
    return value;
  }
  // At most so many bytes.
  std::string TakeText(size_t size) {
    const std::string text(left_.substr(0, size));
    left_.remove_prefix(text.size());
    return text;
  }
  std::string_view Rest() const { return left_; }

 private:
  std::string_view left_;
};

template <class T>
std::string ToBytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace atl::fuzz

#endif  // ATOLL_TESTS_FUZZ_DECODER_H_
