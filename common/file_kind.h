// Recognises a file's format by its first bytes: no format is read as another.

#ifndef ATOLL_COMMON_FILE_KIND_H_
#define ATOLL_COMMON_FILE_KIND_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace atl {

enum class FileKind : uint8_t {
  kUnknown,  // text, or binary data of no known kind
  kGzip,
  kZstd,
  kXz,  // and .lzma, lzip: what liblzma reads
  kBzip2,
  kParquet,
  kSafetensors,
  kMegatronIndex,
  kMarkup,    // HTML, XML or WARC
  kWideText,  // text in UTF-16 or UTF-32
  kJpeg,
  kPng,
  kOther,  // one that nothing here reads
};

// Bytes of a file's beginning that are enough to recognise it.
inline constexpr size_t kFileKindBytes = 4096;

struct FoundKind {
  FileKind kind = FileKind::kUnknown;
  std::string name;    // "a Parquet file"
  std::string remedy;  // what to do where another kind is wanted; may be empty
};

// `head`: the first kFileKindBytes, or all of a shorter file. A Git LFS pointer and what a store
// answers in place of an object are kOther. Other text, and data of numbers, is of no kind but by a
// chance below 1 in 2^24; numbers of 16 bits that are all printable bytes are as wide text is.
FoundKind DetectFileKind(std::string_view head);

// FindNoText says of a file of no kind, where text is wanted, that it is none: by first bytes that
// other data may have, too, or by its name (.br, .snappy, .lzo; others where its bytes are no
// text). `path` may be an address with a query.
FoundKind FindNoText(std::string_view path, std::string_view head);

// "FILE: is a Parquet file, not text: REMEDY"; `file` names it, as errors of its reader do.
absl::Status WrongKindError(std::string_view file, const FoundKind& found, std::string_view wanted);

// OK where the kind is unknown or one of `accepted`; else INVALID_ARGUMENT.
absl::Status CheckFileKind(std::string_view file, std::string_view head, std::string_view wanted,
                           std::initializer_list<FileKind> accepted = {});

}  // namespace atl

#endif  // ATOLL_COMMON_FILE_KIND_H_
