#include "worker/model/safetensors.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/file_kind.h"
#include "common/model/json.h"
#include "kernels/bfloat16.h"

namespace atl {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors are little endian");

constexpr int64_t kMaxHeaderBytes = 16 << 20;

absl::Status Bad(const std::string& path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", problem));
}

// Bytes of one element, 0 for a dtype the format does not know.
int64_t ElementBytes(absl::string_view dtype) {
  constexpr std::pair<absl::string_view, int64_t> kTypes[] = {
      {"F64", 8}, {"I64", 8}, {"U64", 8},  {"F32", 4},     {"I32", 4},
      {"U32", 4}, {"F16", 2}, {"BF16", 2}, {"I16", 2},     {"U16", 2},
      {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, bytes] : kTypes) {
    if (dtype == name) return bytes;
  }
  return 0;
}

absl::StatusOr<TensorEntry> ParseEntry(const nlohmann::json& value, int64_t data_bytes) {
  const auto bad = [](absl::string_view problem) { return absl::InvalidArgumentError(problem); };
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets") || !value["dtype"].is_string() ||
      !value["shape"].is_array() || !value["data_offsets"].is_array() ||
      value["data_offsets"].size() != 2) {
    return bad("is not {dtype, shape, data_offsets}");
  }
  TensorEntry entry;
  entry.dtype = value["dtype"].get<std::string>();
  const int64_t element_bytes = ElementBytes(entry.dtype);
  if (element_bytes == 0) {
    return bad(
        absl::StrCat("has the dtype \"", entry.dtype.substr(0, 40), "\", which is not known"));
  }
  if (value["shape"].size() > 8) return bad("has more than 8 dimensions");
  int64_t elements = 1;
  for (const auto& extent : value["shape"]) {
    auto size = JsonInteger(extent, 0, data_bytes);
    if (!size.ok()) return Annotate(size.status(), "shape");
    if (*size != 0 && elements > data_bytes / *size) return bad("has a shape larger than the file");
    elements *= *size;
    entry.shape.push_back(*size);
  }
  for (int i = 0; i < 2; ++i) {
    auto offset = JsonInteger(value["data_offsets"][i], 0, INT64_MAX);
    if (!offset.ok()) return Annotate(offset.status(), "data_offsets");
    if (*offset > data_bytes) {
      return bad(absl::StrCat("has data_offsets up to byte ", *offset,
                              ", and the file ends at byte ", data_bytes,
                              " of its data: it is cut off; copy it again"));
    }
    (i == 0 ? entry.begin : entry.end) = *offset;
  }
  if (elements > data_bytes / element_bytes ||
      entry.end - entry.begin != elements * element_bytes) {
    return bad(absl::StrCat("has shape ", ShapeText(entry.shape), " of ", entry.dtype,
                            " but data from byte ", entry.begin, " to ", entry.end));
  }
  return entry;
}

float FromHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent == 0) {  // zero and subnormal numbers: exact in fp32
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// To nearest, ties to even; infinite beyond 65504.
uint16_t RoundToHalf(float x) {
  constexpr uint32_t kInfinity = 0x7f800000, kOverflow = 0x477ff000, kSmallestNormal = 0x38800000;
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t size = bits & 0x7fffffff;
  if (size > kInfinity) return sign | 0x7e00;
  if (size >= kOverflow) return sign | 0x7c00;
  if (size < kSmallestNormal) {  // in units of the smallest number, which is exact in fp32
    return sign | static_cast<uint16_t>(std::nearbyint(std::abs(x) * 0x1p24f));
  }
  const uint32_t rounded = size + 0xfff + (size >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112 << 10));
}

float Widen(uint16_t value, bool half) { return half ? FromHalf(value) : WidenBfloat16(value); }

constexpr WeightTypeInfo kWeightTypes[] = {{WeightType::kFp32, "fp32", "F32", "float32", 4},
                                           {WeightType::kFp16, "fp16", "F16", "float16", 2},
                                           {WeightType::kBf16, "bf16", "BF16", "bfloat16", 2}};

}  // namespace

const WeightTypeInfo& Describe(WeightType type) { return kWeightTypes[static_cast<size_t>(type)]; }

std::optional<WeightType> FindWeightType(absl::string_view name) {
  for (const WeightTypeInfo& info : kWeightTypes) {
    if (name == info.name) return info.type;
  }
  return std::nullopt;
}

int64_t TensorEntry::size() const {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape.begin(), shape.end(), ", "), "]");
}

// ---------------------------------------------------------------------------------- reading ----

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  std::string head(static_cast<size_t>(std::min<int64_t>(file.bytes(), kFileKindBytes)), '\0');
  ATOLL_RETURN_IF_ERROR(file.Read(0, head.data(), std::ssize(head)));
  ATOLL_RETURN_IF_ERROR(CheckFileKind(path, head, "safetensors", {FileKind::kSafetensors}));
  SafetensorsReader reader(std::move(file));
  ATOLL_RETURN_IF_ERROR(reader.ReadHeader());
  return reader;
}

absl::Status SafetensorsReader::ReadHeader() {
  const int64_t file_bytes = file_.bytes();
  uint64_t header_bytes = 0;
  if (file_bytes < 8) return Bad(file_.path(), "too short for a safetensors file");
  ATOLL_RETURN_IF_ERROR(file_.Read(0, &header_bytes, 8));
  if (header_bytes > static_cast<uint64_t>(std::min(file_bytes - 8, kMaxHeaderBytes))) {
    return Bad(file_.path(),
               absl::StrCat("says that its header has ", header_bytes, " bytes; the file has ",
                            file_bytes, ", a header at most ", kMaxHeaderBytes));
  }
  data_begin_ = 8 + static_cast<int64_t>(header_bytes);
  const int64_t data_bytes = file_bytes - data_begin_;
  std::string text(header_bytes, '\0');
  ATOLL_RETURN_IF_ERROR(file_.Read(8, text.data(), static_cast<int64_t>(header_bytes)));
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json header, ParseJsonObject(text, file_.path(), 4));
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    auto entry = ParseEntry(value, data_bytes);
    if (!entry.ok()) {
      return Bad(file_.path(), absl::StrCat("tensor \"", name, "\" ", entry.status().message()));
    }
    ranges.emplace_back(entry->begin, entry->end);
    tensors_[name] = *std::move(entry);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t end = 0;
  for (const auto& range : ranges) {
    if (range.first != end) {
      return Bad(file_.path(), absl::StrCat("tensors overlap or leave a gap at byte ",
                                            std::min(end, range.first), " of the data"));
    }
    end = range.second;
  }
  if (end != data_bytes) {
    return Bad(file_.path(),
               absl::StrCat("has ", data_bytes, " bytes of data, its header says ", end));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsReader::CheckType(const std::string& name) const {
  const std::string& dtype = tensors_.at(name).dtype;
  for (const WeightTypeInfo& info : kWeightTypes) {
    if (dtype == info.safetensors) return absl::OkStatus();
  }
  return Bad(file_.path(),
             absl::StrCat("tensor \"", name, "\" is ", dtype, "; expected F32, F16 or BF16"));
}

absl::Status SafetensorsReader::Read(const std::string& name, std::span<float> out) const {
  ATOLL_CHECK(static_cast<int64_t>(out.size()) == tensors_.at(name).size());
  return ReadPart(name, 0, out);
}

absl::Status SafetensorsReader::ReadPart(const std::string& name, int64_t first,
                                         std::span<float> out) const {
  const TensorEntry& entry = tensors_.at(name);
  const auto size = static_cast<int64_t>(out.size());
  ATOLL_CHECK(first >= 0 && size <= entry.size() - first);
  ATOLL_RETURN_IF_ERROR(CheckType(name));
  const int64_t begin = data_begin_ + entry.begin;
  if (entry.dtype == "F32") return file_.Read(begin + 4 * first, out.data(), 4 * size);
  const int64_t offset = begin + 2 * first;
  const bool half = entry.dtype == "F16";
  constexpr int64_t kBlock = 32768;
  std::vector<uint16_t> block(static_cast<size_t>(std::min(kBlock, size)));
  for (int64_t done = 0; done < size; done += kBlock) {
    const int64_t count = std::min(kBlock, size - done);
    ATOLL_RETURN_IF_ERROR(file_.Read(offset + 2 * done, block.data(), 2 * count));
    for (int64_t i = 0; i < count; ++i) out[done + i] = Widen(block[i], half);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SafetensorsReader::Digest(const TensorEntry& entry) const {
  constexpr int64_t kSamples = 4, kSampleBytes = 4096;
  const int64_t bytes = entry.end - entry.begin;
  const bool all = bytes <= kSamples * kSampleBytes;
  std::vector<char> sampled(static_cast<size_t>(all ? bytes : kSamples * kSampleBytes));
  const int64_t each = all ? bytes : kSampleBytes;
  // The first one begins the tensor, and the last one ends it.
  for (int64_t i = 0; i < (all ? 1 : kSamples); ++i) {
    const int64_t at = i * (bytes - each) / (kSamples - 1);
    ATOLL_RETURN_IF_ERROR(
        file_.Read(data_begin_ + entry.begin + at, sampled.data() + i * each, each));
  }
  const std::string kind = absl::StrCat(entry.dtype, ShapeText(entry.shape));
  return XXH3_64bits_withSeed(sampled.data(), sampled.size(),
                              XXH3_64bits(kind.data(), kind.size()));
}

// ---------------------------------------------------------------------------------- writing ----

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ != nullptr) (void)RealFiles().Remove(path_ + ".tmp");
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path,
                                                            std::span<const Spec> tensors,
                                                            WeightType type) {
  SafetensorsWriter writer(path, tensors, type);
  const WeightTypeInfo& info = Describe(type);
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t offset = 0;
  for (const Spec& spec : tensors) {
    const TensorEntry entry{info.safetensors, spec.shape};
    const int64_t end = offset + info.bytes * entry.size();
    header[spec.name] = {
        {"dtype", entry.dtype}, {"shape", spec.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data is aligned
  ATOLL_ASSIGN_OR_RETURN(writer.file_, RealFiles().OpenAppend(path + ".tmp"));
  ATOLL_RETURN_IF_ERROR(writer.file_->Truncate(0));
  const uint64_t header_bytes = text.size();
  const ByteSpan parts[] = {std::as_bytes(std::span(&header_bytes, 1)), AsBytes(text)};
  ATOLL_RETURN_IF_ERROR(writer.file_->Append(parts));
  return writer;
}

absl::Status SafetensorsWriter::Append(std::span<const float> tensor) {
  ATOLL_CHECK(next_ < tensors_.size());
  const TensorEntry entry{"", tensors_[next_].shape};
  ATOLL_CHECK(static_cast<int64_t>(tensor.size()) == entry.size());
  const absl::Status written =
      type_ == WeightType::kFp32 ? Write(std::as_bytes(tensor)) : AppendRounded(tensor);
  ++next_;
  return written;
}

absl::Status SafetensorsWriter::AppendRounded(std::span<const float> tensor) {
  constexpr size_t kBlock = 32768;
  const bool half = type_ == WeightType::kFp16;
  std::vector<uint16_t> block(std::min(kBlock, tensor.size()));
  for (; !tensor.empty(); tensor = tensor.subspan(std::min(kBlock, tensor.size()))) {
    const size_t count = std::min(kBlock, tensor.size());
    for (size_t i = 0; i < count; ++i) {
      block[i] = half ? RoundToHalf(tensor[i]) : RoundToBfloat16(tensor[i]);
      if (std::isfinite(tensor[i]) && !std::isfinite(Widen(block[i], half))) {
        return Bad(path_, absl::StrCat("tensor \"", tensors_[next_].name, "\" has the value ",
                                       tensor[i], ", beyond what ", Describe(type_).name,
                                       " holds; write it as fp32"));
      }
    }
    ATOLL_RETURN_IF_ERROR(Write(std::as_bytes(std::span(block).first(count))));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  ATOLL_CHECK(next_ == tensors_.size(), "only ", next_, " of ", tensors_.size(),
              " tensors written");
  ATOLL_RETURN_IF_ERROR(file_->Sync());
  ATOLL_RETURN_IF_ERROR(RealFiles().Rename(path_ + ".tmp", path_));
  file_ = nullptr;
  return RealFiles().SyncFolder(GetParentFolder(path_));
}

}  // namespace atl
