#include "kernels/testing/case_run.h"

#include <bit>
#include <cstring>

#include "common/rng.h"

namespace atl::testing {
namespace {

// Fills what no operation should read or write.
double Guard(DType dtype) { return dtype == DType::kInt32 ? -77'777'777 : -1.2345e30; }

bool Written(Role role) { return role != Role::kInput; }

DType DTypeOfArg(const Arg& arg, DType compute) {
  switch (arg.type) {
    case Type::kAct:
      return compute;
    case Type::kF32:
      return StateType(compute);
    case Type::kOnlyF32:
      return DType::kFloat32;
    case Type::kBf16:
      return DType::kBfloat16;
    case Type::kInt32:
      return DType::kInt32;
  }
  ATOLL_CHECK(false, "no such type");
}

// The bits of a number in a type, in the low bytes.
uint64_t Encode(double value, DType dtype) {
  if (dtype == DType::kInt32) return static_cast<uint32_t>(static_cast<int32_t>(value));
  if (dtype == DType::kFloat64) return std::bit_cast<uint64_t>(value);
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (dtype == DType::kFloat32) return bits;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

double Decode(uint64_t bits, DType dtype) {
  const auto low = static_cast<uint32_t>(bits);
  if (dtype == DType::kFloat64) return std::bit_cast<double>(bits);
  if (dtype == DType::kInt32) return static_cast<int32_t>(low);
  return std::bit_cast<float>(dtype == DType::kFloat32 ? low : low << 16);
}

uint64_t GetBits(const std::vector<char>& bytes, int64_t i, DType dtype) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + i * GetElementSize(dtype), GetElementSize(dtype));
  return bits;
}

void SetBits(std::vector<char>& bytes, int64_t i, DType dtype, uint64_t bits) {
  std::memcpy(bytes.data() + i * GetElementSize(dtype), &bits, GetElementSize(dtype));
}

std::unique_ptr<Stream> MakeStream(Backend& backend) {
  auto stream = backend.NewStream();
  ATOLL_CHECK(stream.ok(), stream.status().message());
  return std::move(*stream);
}

}  // namespace

Contents InitialContents(const OpCase& op_case, uint64_t seed) {
  Contents contents;
  Rng rng(seed);
  for (const Arg& arg : op_case.args) {
    Numbers& numbers = contents[arg.name];
    numbers.resize(arg.rows * arg.cols);
    for (size_t i = 0; i < numbers.size(); ++i) {
      // Rounded to bf16, so that a backend of that type starts from the same numbers.
      numbers[i] = arg.value ? arg.value(i)
                             : Decode(Encode(rng.Normal(), DType::kBfloat16), DType::kBfloat16);
    }
  }
  return contents;
}

CaseRun::CaseRun(Backend& backend, const OpCase& op_case, Gaps gaps, DType compute)
    : backend_(backend), op_case_(op_case), stream_(MakeStream(backend)), call_(backend, *stream_) {
  for (const Arg& arg : op_case.args) {
    Placed placed;
    placed.arg = &arg;
    placed.dtype = DTypeOfArg(arg, compute);
    placed.offset = 0;
    placed.stride = arg.cols;
    if (gaps == Gaps::kOdd && !arg.flat) {
      placed.offset = 3;
      placed.stride = arg.cols + 5 + arg.gap;
    } else if (gaps == Gaps::kAligned && !arg.flat) {
      placed.offset = 16;
      placed.stride = (arg.cols + 7) / 8 * 8 + 8 + arg.gap;
    }
    placed.elements = placed.offset + arg.rows * placed.stride;
    auto buffer = backend.Allocate(placed.elements * GetElementSize(placed.dtype));
    ATOLL_CHECK(buffer.ok(), buffer.status().message());
    placed.buffer = std::move(*buffer);
    call_.Bind(arg.name, Tensor(static_cast<char*>(placed.buffer.data()) +
                                    placed.offset * GetElementSize(placed.dtype),
                                placed.dtype, arg.rows, arg.cols, placed.stride));
    placed_[arg.name] = std::move(placed);
  }
}

void CaseRun::Fill(const Contents& contents) {
  for (auto& [name, placed] : placed_) {
    const Arg& arg = *placed.arg;
    const Numbers& numbers = contents.at(name);
    std::vector<char> bytes(placed.elements * GetElementSize(placed.dtype));
    for (int64_t i = 0; i < placed.elements; ++i) {
      SetBits(bytes, i, placed.dtype, Encode(Guard(placed.dtype), placed.dtype));
    }
    for (int64_t row = 0; row < arg.rows; ++row) {
      for (int64_t col = 0; col < arg.cols; ++col) {
        SetBits(bytes, placed.offset + row * placed.stride + col, placed.dtype,
                Encode(numbers[row * arg.cols + col], placed.dtype));
      }
    }
    backend_.CopyToDevice(*stream_, WholeBuffer(placed), bytes.data());
    Synchronize();  // the bytes die with this iteration
  }
}

void CaseRun::Synchronize() {
  const absl::Status status = backend_.Synchronize(*stream_);
  ATOLL_CHECK(status.ok(), op_case_.name, ": ", status.message());
}

Numbers CaseRun::Read(const std::string& name) {
  const Placed& placed = placed_.at(name);
  const Arg& arg = *placed.arg;
  std::vector<char> bytes(placed.elements * GetElementSize(placed.dtype));
  backend_.CopyToHost(*stream_, bytes.data(), WholeBuffer(placed));
  Synchronize();
  Numbers numbers;
  numbers.reserve(arg.rows * arg.cols);
  for (int64_t i = 0; i < placed.elements; ++i) {
    const int64_t in_rows = i - placed.offset;
    const uint64_t bits = GetBits(bytes, i, placed.dtype);
    if (in_rows >= 0 && in_rows % placed.stride < arg.cols) {
      numbers.push_back(Decode(bits, placed.dtype));
    } else if (trouble_.empty() && bits != Encode(Guard(placed.dtype), placed.dtype)) {
      trouble_ = absl::StrCat(op_case_.name, " wrote beyond a row of ", name, ", at element ", i);
    }
  }
  return numbers;
}

Contents CaseRun::Results() {
  Contents results;
  for (const Arg& arg : op_case_.args) {
    if (Written(arg.role)) results[arg.name] = Read(arg.name);
  }
  return results;
}

}  // namespace atl::testing
