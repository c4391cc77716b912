#include "worker/data/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/check.h"

namespace atl {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are little endian");

constexpr int64_t kBlockBytes = 1 << 16;

absl::Status FileError(const std::string& path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("data file ", path, ": ", problem));
}

absl::StatusOr<int> OpenFile(const std::string& path, int64_t* bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return absl::NotFoundError(
        absl::StrCat("data file ", path, ": cannot open: ", std::strerror(errno)));
  }
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return FileError(path, "not a regular file");
  }
  *bytes = info.st_size;
  return fd;
}

absl::Status ReadFully(int fd, const std::string& path, int64_t offset, void* out, int64_t bytes) {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd, to, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::UnavailableError(absl::StrCat("data file ", path, ": reading at byte ", offset,
                                                 ": ", std::strerror(errno)));
    }
    if (got == 0) return FileError(path, absl::StrCat("ends at byte ", offset, "; did it shrink?"));
    to += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

template <typename T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Widens and checks; returns the index of the first token outside the vocabulary, or -1.
template <typename T>
int64_t Widen(const char* from, int64_t vocabulary, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto token = static_cast<int64_t>(Load<T>(from + i * sizeof(T)));
    if (token < 0 || token >= vocabulary) return static_cast<int64_t>(i);
    out[i] = static_cast<int32_t>(token);
  }
  return -1;
}

// The header of a Megatron index, 34 bytes.
struct MegatronIndex {
  static constexpr int64_t kBytes = 34;
  uint64_t version, sequences, documents;
  uint8_t type;
};

class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() { close(fd_); }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::StatusOr<MegatronIndex> ReadIndexHeader(int fd, const std::string& path, int64_t bytes) {
  std::array<char, MegatronIndex::kBytes> raw;
  if (bytes < MegatronIndex::kBytes) return FileError(path, "too short for a Megatron index");
  ATOLL_RETURN_IF_ERROR(ReadFully(fd, path, 0, raw.data(), raw.size()));
  if (std::memcmp(raw.data(), "MMIDIDX\0\0", 9) != 0) {
    return FileError(path, "does not start with \"MMIDIDX\"; not a Megatron index");
  }
  MegatronIndex index{Load<uint64_t>(&raw[9]), Load<uint64_t>(&raw[18]), Load<uint64_t>(&raw[26]),
                      Load<uint8_t>(&raw[17])};
  if (index.version != 1)
    return FileError(path, absl::StrCat("version ", index.version, ", not 1"));
  // Per sequence a size (int32), a pointer (int64) and perhaps a mode (int8); per document an
  // int64.
  const auto rest = static_cast<uint64_t>(bytes - MegatronIndex::kBytes);
  if (index.sequences == 0 || index.sequences > rest / 12 || index.documents > rest / 8) {
    return FileError(path, absl::StrCat(index.sequences, " sequences and ", index.documents,
                                        " documents do not fit into ", bytes, " bytes"));
  }
  const uint64_t needed = 12 * index.sequences + 8 * index.documents;
  if (rest != needed && rest != needed + index.sequences) {
    return FileError(
        path, absl::StrCat(bytes, " bytes, but its header says ", needed + MegatronIndex::kBytes));
  }
  return index;
}

// Checks that sequences follow each other without gaps and returns the bytes of all of them.
absl::StatusOr<int64_t> SumSequences(int fd, const std::string& path, const MegatronIndex& index,
                                     int64_t token_bytes, int64_t data_bytes) {
  constexpr int64_t kBlock = 4096;
  std::vector<int32_t> sizes(kBlock);
  std::vector<int64_t> pointers(kBlock);
  const auto sequences = static_cast<int64_t>(index.sequences);
  int64_t end = 0;
  for (int64_t first = 0; first < sequences; first += kBlock) {
    const int64_t count = std::min(kBlock, sequences - first);
    ATOLL_RETURN_IF_ERROR(
        ReadFully(fd, path, MegatronIndex::kBytes + 4 * first, sizes.data(), 4 * count));
    ATOLL_RETURN_IF_ERROR(ReadFully(fd, path, MegatronIndex::kBytes + 4 * sequences + 8 * first,
                                    pointers.data(), 8 * count));
    for (int64_t i = 0; i < count; ++i) {
      if (sizes[i] < 0 || pointers[i] != end || sizes[i] > (data_bytes - end) / token_bytes) {
        return FileError(
            path, absl::StrCat("sequence ", first + i, " has size ", sizes[i], " at byte ",
                               pointers[i], "; expected it at byte ", end, " of ", data_bytes));
      }
      end += sizes[i] * token_bytes;
    }
  }
  return end;
}

}  // namespace

TokenFile::~TokenFile() {
  if (fd_ >= 0) close(fd_);
}

TokenFile::TokenFile(TokenFile&& other) noexcept { *this = std::move(other); }

TokenFile& TokenFile::operator=(TokenFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(file_bytes_, other.file_bytes_);
  std::swap(type_, other.type_);
  std::swap(begin_bytes_, other.begin_bytes_);
  std::swap(tokens_, other.tokens_);
  return *this;
}

absl::StatusOr<TokenFile> TokenFile::Open(DataFormat format, const std::string& path) {
  std::string data_path = path, index_path;
  if (format == DataFormat::kMegatron) {
    absl::string_view stem = path;
    if (!absl::ConsumeSuffix(&stem, ".bin")) absl::ConsumeSuffix(&stem, ".idx");
    data_path = absl::StrCat(stem, ".bin");
    index_path = absl::StrCat(stem, ".idx");
  }
  TokenFile file(data_path);
  ATOLL_ASSIGN_OR_RETURN(file.fd_, OpenFile(data_path, &file.file_bytes_));
  switch (format) {
    case DataFormat::kText:
    case DataFormat::kJsonl:
    case DataFormat::kShards:
      ATOLL_RETURN_IF_ERROR(file.SetTokens(Type::kUint8, 0, file.file_bytes_));
      break;
    case DataFormat::kTokens16:
      ATOLL_RETURN_IF_ERROR(file.OpenTokens16());
      break;
    case DataFormat::kTokens32:
      ATOLL_RETURN_IF_ERROR(file.SetTokens(Type::kUint32, 0, file.file_bytes_));
      break;
    case DataFormat::kMegatron:
      ATOLL_RETURN_IF_ERROR(file.OpenMegatron(index_path));
      break;
  }
  return file;
}

absl::Status TokenFile::OpenTokens16() {
  constexpr int64_t kHeaderBytes = 256 * 4;
  constexpr int32_t kMagic = 20240520;
  std::array<int32_t, 3> header{};
  if (file_bytes_ >= kHeaderBytes) {
    ATOLL_RETURN_IF_ERROR(ReadBytes(0, header.data(), sizeof header));
  }
  if (header[0] != kMagic) return SetTokens(Type::kUint16, 0, file_bytes_);
  if (header[1] != 1) {
    return FileError(path_, absl::StrCat("llm.c header of version ", header[1], ", not 1"));
  }
  if (header[2] < 0 || file_bytes_ != kHeaderBytes + int64_t{2} * header[2]) {
    return FileError(
        path_, absl::StrCat("its header says ", header[2], " tokens, its size of ", file_bytes_,
                            " bytes says ", (file_bytes_ - kHeaderBytes) / 2));
  }
  return SetTokens(Type::kUint16, kHeaderBytes, file_bytes_);
}

absl::Status TokenFile::OpenMegatron(const std::string& index_path) {
  int64_t index_bytes = 0;
  ATOLL_ASSIGN_OR_RETURN(const int fd, OpenFile(index_path, &index_bytes));
  const OwnedFd owned(fd);
  ATOLL_ASSIGN_OR_RETURN(const MegatronIndex index, ReadIndexHeader(fd, index_path, index_bytes));
  struct Code {
    uint8_t code;
    Type type;
    int64_t bytes;
  };
  constexpr Code kCodes[] = {{1, Type::kUint8, 1}, {2, Type::kInt8, 1},  {3, Type::kInt16, 2},
                             {4, Type::kInt32, 4}, {5, Type::kInt64, 8}, {8, Type::kUint16, 2}};
  const auto* code = std::find_if(std::begin(kCodes), std::end(kCodes),
                                  [&](const Code& c) { return c.code == index.type; });
  if (code == std::end(kCodes)) {
    return FileError(index_path, absl::StrCat("dtype code ", index.type,
                                              " is not one of whole numbers (1, 2, 3, 4, 5, 8)"));
  }
  ATOLL_ASSIGN_OR_RETURN(const int64_t end,
                         SumSequences(fd, index_path, index, code->bytes, file_bytes_));
  if (end != file_bytes_) {
    return FileError(path_, absl::StrCat(file_bytes_, " bytes, but its index says ", end));
  }
  return SetTokens(code->type, 0, end);
}

absl::Status TokenFile::SetTokens(Type type, int64_t begin_bytes, int64_t end_bytes) {
  type_ = type;
  begin_bytes_ = begin_bytes;
  constexpr int64_t kWidths[] = {1, 1, 2, 2, 4, 4, 8};
  const int64_t width = kWidths[static_cast<int>(type)];
  if ((end_bytes - begin_bytes) % width != 0) {
    return FileError(path_, absl::StrCat(end_bytes, " bytes are not whole tokens of ", width,
                                         " bytes; is data.format right?"));
  }
  tokens_ = (end_bytes - begin_bytes) / width;
  return absl::OkStatus();
}

absl::Status TokenFile::ReadBytes(int64_t offset, void* out, int64_t bytes) const {
  return ReadFully(fd_, path_, offset, out, bytes);
}

absl::Status TokenFile::Read(int64_t begin, int64_t vocabulary, std::span<int32_t> out) const {
  ATOLL_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tokens_);
  constexpr int64_t kWidths[] = {1, 1, 2, 2, 4, 4, 8};
  const int64_t width = kWidths[static_cast<int>(type_)];
  std::array<char, kBlockBytes> block;
  const auto size = static_cast<int64_t>(out.size());
  for (int64_t done = 0; done < size;) {
    const int64_t count = std::min(kBlockBytes / width, size - done);
    ATOLL_RETURN_IF_ERROR(
        ReadBytes(begin_bytes_ + (begin + done) * width, block.data(), count * width));
    const auto part = out.subspan(done, count);
    int64_t bad = -1;
    switch (type_) {
      case Type::kUint8:
        bad = Widen<uint8_t>(block.data(), vocabulary, part);
        break;
      case Type::kInt8:
        bad = Widen<int8_t>(block.data(), vocabulary, part);
        break;
      case Type::kUint16:
        bad = Widen<uint16_t>(block.data(), vocabulary, part);
        break;
      case Type::kInt16:
        bad = Widen<int16_t>(block.data(), vocabulary, part);
        break;
      case Type::kUint32:
        bad = Widen<uint32_t>(block.data(), vocabulary, part);
        break;
      case Type::kInt32:
        bad = Widen<int32_t>(block.data(), vocabulary, part);
        break;
      case Type::kInt64:
        bad = Widen<int64_t>(block.data(), vocabulary, part);
        break;
    }
    if (bad >= 0) {
      return FileError(path_, absl::StrCat("token ", begin + done + bad,
                                           " is outside the model's vocabulary of ", vocabulary,
                                           "; is data.format right?"));
    }
    done += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TokenFile::Digest() const {
  constexpr int64_t kSamples = 64, kSampleBytes = 4096;
  const int64_t facts[] = {tokens_, static_cast<int64_t>(type_)};
  uint64_t digest = XXH3_64bits(facts, sizeof facts);
  std::array<char, kSampleBytes> sample;
  const int64_t bytes = file_bytes_ - begin_bytes_;
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t count = std::min(bytes, kSampleBytes);
    const int64_t offset = (bytes - count) / (kSamples - 1) * i;
    ATOLL_RETURN_IF_ERROR(ReadBytes(begin_bytes_ + offset, sample.data(), count));
    digest = XXH3_64bits_withSeed(sample.data(), static_cast<size_t>(count), digest);
  }
  return digest;
}

}  // namespace atl
