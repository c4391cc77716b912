// How much of a file's bytes is no text in UTF-8.

#ifndef ATOLL_WORKER_DATA_FORMATS_TEXT_SHARE_H_
#define ATOLL_WORKER_DATA_FORMATS_TEXT_SHARE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace atl {

class TextShare {
 public:
  // A block of the file, from byte `at` on. What may be a part of a character that is cut at either
  // end of the block counts as text.
  void Add(std::string_view block, int64_t at);

  int64_t bytes() const { return bytes_; }
  // Bytes of no character, and control characters that no text has.
  int64_t bad() const { return bad_; }

  // More than one of 10,000 bytes is bad: other data, or text in another encoding.
  bool IsSuspicious() const { return bad_ > 0 && bad_ * 10'000 > bytes_; }
  // "45.0% of 262144 bytes are no UTF-8 text, the first at byte 17". REQUIRES: bad() > 0.
  std::string Text() const;

 private:
  int64_t bytes_ = 0, bad_ = 0, first_bad_ = -1;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_FORMATS_TEXT_SHARE_H_
