#include "worker/data/token_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/strip.h"
#include "common/bytes_text.h"
#include "common/check.h"
#include "common/file_kind.h"
#include "common/masked_tokens.h"
#include "worker/data/formats/token_head.h"
#include "worker/data/inputs.h"

namespace atl {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are little endian");

constexpr int64_t kBlockBytes = 1 << 16;
constexpr auto kSayAfter = std::chrono::seconds(5);

absl::Status FileError(const std::string& path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("data file ", path, ": ", problem));
}

// A token of kChat on the disk.
struct Masked32 {
  int32_t value = 0;
};

template <typename T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// The token itself, whether it is masked or not.
template <typename T>
auto LoadToken(const char* from) {
  if constexpr (std::is_same_v<T, Masked32>) {
    return UnmaskToken(Load<Masked32>(from).value);
  } else {
    return Load<T>(from);
  }
}

// Widens and checks; returns the index of the first token outside the vocabulary, or -1.
template <typename T>
int64_t Widen(const char* from, int64_t vocabulary, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto token = static_cast<int64_t>(LoadToken<T>(from + i * sizeof(T)));
    if (token < 0 || token >= vocabulary) return static_cast<int64_t>(i);
    if constexpr (std::is_same_v<T, Masked32>) {
      out[i] = Load<Masked32>(from + i * sizeof(T)).value;
    } else {
      out[i] = static_cast<int32_t>(token);
    }
  }
  return -1;
}

// Adds to `content` what `count` more tokens, from token `first` on, show of the file.
template <typename T>
void Extend(const char* from, int64_t first, int64_t count, TokenFileContent* content) {
  const auto at = [from](int64_t i) {
    return LoadToken<T>(from + i * static_cast<int64_t>(sizeof(T)));
  };
  using Value = decltype(at(0));
  Value least = std::numeric_limits<Value>::max(), greatest = std::numeric_limits<Value>::min();
  for (int64_t i = 0; i < count; ++i) {
    const Value token = at(i);
    least = std::min(least, token);
    greatest = std::max(greatest, token);
  }
  const auto find = [&](Value wanted) {
    int64_t i = 0;
    while (at(i) != wanted) ++i;
    return first + i;
  };
  if (static_cast<int64_t>(least) < content->least) {
    content->least = static_cast<int64_t>(least);
    content->least_at = find(least);
  }
  if (static_cast<int64_t>(greatest) > content->greatest) {
    content->greatest = static_cast<int64_t>(greatest);
    content->greatest_at = find(greatest);
  }
}

// The header of a Megatron index, 34 bytes.
struct MegatronIndex {
  static constexpr int64_t kBytes = 34;
  uint64_t version, sequences, documents;
  uint8_t type;
};

absl::StatusOr<MegatronIndex> ReadIndexHeader(const DataFile& file, const Cancelled& cancelled) {
  const std::string& path = file.path();
  const int64_t bytes = file.bytes();
  std::array<char, MegatronIndex::kBytes> raw;
  ATOLL_ASSIGN_OR_RETURN(const std::string head, ReadFileHead(file, cancelled));
  ATOLL_RETURN_IF_ERROR(CheckFileKind(absl::StrCat("data file ", path), head, "Megatron's index",
                                      {FileKind::kMegatronIndex}));
  if (bytes < MegatronIndex::kBytes) return FileError(path, "too short for a Megatron index");
  std::memcpy(raw.data(), head.data(), raw.size());
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
absl::StatusOr<int64_t> SumSequences(const DataFile& file, const MegatronIndex& index,
                                     int64_t token_bytes, int64_t data_bytes,
                                     const Cancelled& cancelled) {
  constexpr int64_t kBlock = 4096;
  std::vector<int32_t> sizes(kBlock);
  std::vector<int64_t> pointers(kBlock);
  const auto sequences = static_cast<int64_t>(index.sequences);
  int64_t end = 0;
  for (int64_t first = 0; first < sequences; first += kBlock) {
    const int64_t count = std::min(kBlock, sequences - first);
    ATOLL_RETURN_IF_ERROR(
        file.Read(MegatronIndex::kBytes + 4 * first, sizes.data(), 4 * count, cancelled));
    ATOLL_RETURN_IF_ERROR(file.Read(MegatronIndex::kBytes + 4 * sequences + 8 * first,
                                    pointers.data(), 8 * count, cancelled));
    for (int64_t i = 0; i < count; ++i) {
      if (sizes[i] < 0 || pointers[i] != end || sizes[i] > (data_bytes - end) / token_bytes) {
        return FileError(
            file.path(),
            absl::StrCat("sequence ", first + i, " has size ", sizes[i], " at byte ", pointers[i],
                         "; expected it at byte ", end, " of ", data_bytes));
      }
      end += sizes[i] * token_bytes;
    }
  }
  return end;
}

// Megatron's code of a type of whole numbers, in the order of TokenFile::Type from kUint8 on.
struct MegatronCode {
  uint8_t code;
  int type;
  int64_t bytes;
};
constexpr MegatronCode kMegatronCodes[] = {{1, 0, 1}, {2, 1, 1}, {8, 2, 2},
                                           {3, 3, 2}, {4, 5, 4}, {5, 6, 8}};

const MegatronCode* FindCode(uint8_t code) {
  const auto* const found =
      std::find_if(std::begin(kMegatronCodes), std::end(kMegatronCodes),
                   [&](const MegatronCode& known) { return known.code == code; });
  return found == std::end(kMegatronCodes) ? nullptr : found;
}

}  // namespace

// Calls `work` with a number of the type's own.
template <typename Work>
void TokenFile::OfType(Type type, const Work& work) {
  switch (type) {
    case Type::kUint8:
      return work(uint8_t{});
    case Type::kInt8:
      return work(int8_t{});
    case Type::kUint16:
      return work(uint16_t{});
    case Type::kInt16:
      return work(int16_t{});
    case Type::kUint32:
      return work(uint32_t{});
    case Type::kInt32:
      return work(int32_t{});
    case Type::kInt64:
      return work(int64_t{});
    case Type::kMasked32:
      return work(Masked32{});
  }
}

absl::StatusOr<TokenFile> TokenFile::Open(DataFormat format, const std::string& path,
                                          const Cancelled& cancelled) {
  std::string data_path = path, index_path;
  if (format == DataFormat::kMegatron) {
    absl::string_view stem = path;
    if (!absl::ConsumeSuffix(&stem, ".bin")) absl::ConsumeSuffix(&stem, ".idx");
    data_path = absl::StrCat(stem, ".bin");
    index_path = absl::StrCat(stem, ".idx");
  }
  auto opened = OpenDataFile(data_path, cancelled);
  if (absl::IsNotFound(opened.status()) && OpenDataFile(index_path, cancelled).ok()) {
    return FileError(index_path, absl::StrCat("is here, but ", data_path, " is not"));
  }
  ATOLL_RETURN_IF_ERROR(opened.status());
  TokenFile file(*std::move(opened));
  ATOLL_CHECK(!IsImages(format), "images are no tokens");
  switch (format) {
    case DataFormat::kText:
    case DataFormat::kJsonl:
    case DataFormat::kShards:
      ATOLL_RETURN_IF_ERROR(file.SetTokens(Type::kUint8, 0, file.file_->bytes()));
      break;
    case DataFormat::kTokens16:
      ATOLL_RETURN_IF_ERROR(file.OpenTokens(Type::kUint16, cancelled));
      break;
    case DataFormat::kTokens32:
      ATOLL_RETURN_IF_ERROR(file.OpenTokens(Type::kUint32, cancelled));
      break;
    case DataFormat::kChat:
      ATOLL_RETURN_IF_ERROR(file.SetTokens(Type::kMasked32, 0, file.file_->bytes()));
      break;
    case DataFormat::kMegatron:
      ATOLL_RETURN_IF_ERROR(file.OpenMegatron(index_path, cancelled));
      break;
    case DataFormat::kCifar10:
    case DataFormat::kCifar100:
    case DataFormat::kIdx:
    case DataFormat::kImageFolder:
      break;
  }
  return file;
}

absl::Status TokenFile::OpenTokens(Type type, const Cancelled& cancelled) {
  raw_ = true;
  ATOLL_ASSIGN_OR_RETURN(const std::string head, ReadFileHead(*file_, cancelled));
  const auto found = ParseTokenHead(head, file_->bytes());
  if (!found.ok()) return FileError(path(), absl::StripPrefix(found.status().message(), ": "));
  type_ = type;
  if (found->token_bytes != 0 && found->token_bytes != Width()) {
    return FileError(path(), absl::StrCat("its header of llm.c says ", 8 * found->token_bytes,
                                          " bits a token: data.format = \"tokens",
                                          8 * found->token_bytes, "\""));
  }
  ATOLL_RETURN_IF_ERROR(SetTokens(type, found->begin_bytes, file_->bytes()));
  return CheckIndexBeside(cancelled);
}

// NAME.idx of Megatron beside NAME.bin says how wide its tokens are.
absl::Status TokenFile::CheckIndexBeside(const Cancelled& cancelled) const {
  absl::string_view stem = path();
  if (IsRemotePath(path()) || !absl::ConsumeSuffix(&stem, ".bin")) return absl::OkStatus();
  const auto index_file = OpenDataFile(absl::StrCat(stem, ".idx"), cancelled);
  if (!index_file.ok()) return absl::OkStatus();
  const auto index = ReadIndexHeader(**index_file, cancelled);
  const auto* code = index.ok() ? FindCode(index->type) : nullptr;
  if (code == nullptr || code->bytes == Width()) return absl::OkStatus();
  return FileError(path(),
                   absl::StrCat("its index ", (*index_file)->path(), " says ", 8 * code->bytes,
                                " bits a token: data.format = \"megatron\""));
}

absl::Status TokenFile::OpenMegatron(const std::string& index_path, const Cancelled& cancelled) {
  const auto opened = OpenDataFile(index_path, cancelled);
  if (absl::IsNotFound(opened.status())) {
    return FileError(path(), absl::StrCat("is here, but ", index_path, " is not"));
  }
  ATOLL_RETURN_IF_ERROR(opened.status());
  const auto& index_file = *opened;
  ATOLL_ASSIGN_OR_RETURN(const MegatronIndex index, ReadIndexHeader(*index_file, cancelled));
  const auto* const code = FindCode(index.type);
  if (code == nullptr) {
    const bool is_real = index.type == 6 || index.type == 7;
    return FileError(index_path, absl::StrCat("dtype code ", index.type,
                                              is_real ? " (numbers with fractions)" : "",
                                              " is not one of whole numbers (1, 2, 3, 4, 5, 8)"));
  }
  raw_ = true;
  const auto end = SumSequences(*index_file, index, code->bytes, file_->bytes(), cancelled);
  if (end.ok() && *end == file_->bytes()) return SetTokens(static_cast<Type>(code->type), 0, *end);
  ATOLL_ASSIGN_OR_RETURN(const std::string head, ReadFileHead(*file_, cancelled));
  ATOLL_RETURN_IF_ERROR(
      CheckFileKind(absl::StrCat("data file ", path()), head, "tokens", {FileKind::kWideText}));
  ATOLL_RETURN_IF_ERROR(end.status());
  return FileError(path(), absl::StrCat(file_->bytes(), " bytes, but its index says ", *end));
}

int64_t TokenFile::Width() const {
  constexpr int64_t kWidths[] = {1, 1, 2, 2, 4, 4, 8, 4};
  return kWidths[static_cast<int>(type_)];
}

absl::Status TokenFile::SetTokens(Type type, int64_t begin_bytes, int64_t end_bytes) {
  type_ = type;
  begin_bytes_ = begin_bytes;
  const int64_t width = Width();
  if ((end_bytes - begin_bytes) % width != 0) {
    return FileError(path(), absl::StrCat(end_bytes, " bytes are not whole tokens of ", width,
                                          " bytes; is data.format right?"));
  }
  tokens_ = (end_bytes - begin_bytes) / width;
  return absl::OkStatus();
}

absl::Status TokenFile::Read(int64_t begin, int64_t vocabulary, std::span<int32_t> out,
                             const Cancelled& cancelled) const {
  ATOLL_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tokens_);
  const int64_t width = Width();
  std::array<char, kBlockBytes> block;
  const auto size = static_cast<int64_t>(out.size());
  for (int64_t done = 0; done < size;) {
    const int64_t count = std::min(kBlockBytes / width, size - done);
    ATOLL_RETURN_IF_ERROR(
        file_->Read(begin_bytes_ + (begin + done) * width, block.data(), count * width, cancelled));
    const auto part = out.subspan(done, count);
    int64_t bad = -1;
    OfType(type_, [&]<typename T>(T) { bad = Widen<T>(block.data(), vocabulary, part); });
    // Scan has seen that every token of a local file is one of the vocabulary.
    if (bad >= 0) {
      return absl::DataLossError(OutsideVocabulary(begin + done + bad, vocabulary).message());
    }
    done += count;
  }
  return absl::OkStatus();
}

absl::Status TokenFile::Prefetch(std::span<const Range> ranges, const Cancelled& cancelled) const {
  std::vector<ByteRange> bytes;
  for (const Range& range : ranges) {
    bytes.push_back({begin_bytes_ + range.begin * Width(), range.count * Width()});
  }
  return file_->Prefetch(bytes, cancelled);
}

absl::Status TokenFile::OutsideVocabulary(int64_t token, int64_t vocabulary) const {
  return FileError(path(), absl::StrCat("token ", token, " is outside the model's vocabulary of ",
                                        vocabulary, "; is data.format right?"));
}

absl::Status TokenFile::CheckSamples(int64_t vocabulary, int64_t samples,
                                     const Cancelled& cancelled,
                                     std::vector<std::string>* warnings) const {
  constexpr int64_t kSampleTokens = 4096;
  constexpr int64_t kNarrowTokensMax = 1 << 16, kVocabularyMax = 1 << 24;
  if (!raw_ || tokens_ == 0) return absl::OkStatus();
  if (Width() == 2 && vocabulary > kNarrowTokensMax && vocabulary <= kVocabularyMax) {
    return FileError(path(), absl::StrCat("its tokens have 16 bits, which do not hold the model's "
                                          "vocabulary of ",
                                          vocabulary, "; were they made with another tokenizer?"));
  }
  const int64_t count = std::min(kSampleTokens, tokens_);
  samples = std::min(samples, (tokens_ + count - 1) / count);
  std::vector<int32_t> all;
  bool constant = false;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t room = tokens_ - count;
    const int64_t begin = i + 1 == samples ? room
                          : samples == 1   ? 0
                                           : room / (samples - 1) * i / 2 * 2;
    std::vector<int32_t> block(static_cast<size_t>(count));
    const absl::Status status = Read(begin, vocabulary, block, cancelled);
    if (absl::IsDataLoss(status)) return absl::InvalidArgumentError(status.message());
    ATOLL_RETURN_IF_ERROR(status);
    const bool same =
        count == kSampleTokens &&
        std::adjacent_find(block.begin(), block.end(), std::not_equal_to<>()) == block.end();
    if (same && !constant && warnings != nullptr) {
      warnings->push_back(absl::StrCat("data file ", path(), ": ", count, " tokens from token ",
                                       begin, " on are all ", block[0],
                                       "; was the file written to its end?"));
    }
    constant = constant || same;
    if (i + 1 == samples && room % 2 != 0) block.erase(block.begin());
    block.resize(block.size() / 2 * 2);
    all.insert(all.end(), block.begin(), block.end());
  }
  const absl::Status width = CheckTokenWidth(all, Width());
  return width.ok() ? width : FileError(path(), width.message());
}

absl::Status TokenFile::CheckVocabulary(const TokenFileContent& content, int64_t vocabulary) const {
  if (content.least < 0) return OutsideVocabulary(content.least_at, vocabulary);
  if (content.greatest >= vocabulary) return OutsideVocabulary(content.greatest_at, vocabulary);
  return absl::OkStatus();
}

absl::StatusOr<TokenFileContent> TokenFile::Scan(const ReadWatch& watch) const {
  constexpr int64_t kScanBytes = 1 << 20;  // a multiple of every width
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  ATOLL_CHECK(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK);
  const int64_t facts[] = {tokens_, static_cast<int64_t>(type_)};
  XXH3_64bits_update(state.get(), facts, sizeof facts);
  TokenFileContent content;
  if (const auto tag = file_->tag(); tag.has_value()) {
    XXH3_64bits_update(state.get(), &*tag, sizeof *tag);
    content.digest = XXH3_64bits_digest(state.get());
    return content;
  }
  content.least = std::numeric_limits<int64_t>::max();
  content.greatest = std::numeric_limits<int64_t>::min();
  std::vector<char> block(kScanBytes);
  const int64_t bytes = tokens_ * Width();
  auto said_at = std::chrono::steady_clock::now();
  const auto done_saying = absl::MakeCleanup([&, said = said_at] {
    if (watch.progress && said_at != said) watch.progress("");
  });
  for (int64_t done = 0; done < bytes;) {
    if (watch.cancelled && watch.cancelled()) {
      return absl::AbortedError(absl::StrCat("data file ", path(), ": reading is interrupted"));
    }
    const int64_t count = std::min(kScanBytes, bytes - done);
    ATOLL_RETURN_IF_ERROR(file_->Read(begin_bytes_ + done, block.data(), count, watch.cancelled));
    XXH3_64bits_update(state.get(), block.data(), static_cast<size_t>(count));
    OfType(type_, [&]<typename T>(T) {
      Extend<T>(block.data(), done / Width(), count / Width(), &content);
    });
    done += count;
    if (watch.progress && std::chrono::steady_clock::now() - said_at >= kSayAfter) {
      said_at = std::chrono::steady_clock::now();
      watch.progress(absl::StrCat("reads data file ", path(), ": ", 100 * done / bytes, "% of ",
                                  BytesText(bytes)));
    }
  }
  content.digest = XXH3_64bits_digest(state.get());
  return content;
}

}  // namespace atl
