// Files of named tensors in the safetensors format:
// uint64 length of the header, a JSON header {"name": {"dtype", "shape", "data_offsets"}}, the
// data.
//
// Files are untrusted: the header's length, every dtype, shape and offset are checked
// against the file's size before memory is taken; tensors must cover the data without gaps or
// overlaps, as the format demands.

#ifndef ATOLL_WORKER_MODEL_SAFETENSORS_H_
#define ATOLL_WORKER_MODEL_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/files.h"
#include "common/status.h"

namespace atl {

// The type in which weights are written. They are fp32 in memory.
enum class WeightType : uint8_t { kFp32, kFp16, kBf16 };

struct WeightTypeInfo {
  WeightType type;
  const char* name;         // "fp32"
  const char* safetensors;  // "F32"
  const char* torch;        // "float32", in config.json
  int64_t bytes;            // of an element
};
const WeightTypeInfo& Describe(WeightType type);
std::optional<WeightType> FindWeightType(absl::string_view name);

struct TensorEntry {
  std::string dtype;  // "F32", "BF16", ...
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the data
  int64_t end = 0;

  int64_t size() const;  // elements
};

// "[2, 3]".
std::string ShapeText(std::span<const int64_t> shape);

class SafetensorsReader {
 public:
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path);

  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }

  // INVALID_ARGUMENT: Read does not understand the tensor's dtype. REQUIRES: the tensor exists.
  absl::Status CheckType(const std::string& name) const;

  // The whole tensor as fp32, from F32, F16 or BF16. INVALID_ARGUMENT for any other dtype.
  // REQUIRES: the tensor exists, out has its size.
  absl::Status Read(const std::string& name, std::span<float> out) const;
  // The same of elements from `first` on. REQUIRES: they lie within the tensor.
  absl::Status ReadPart(const std::string& name, int64_t first, std::span<float> out) const;

  // Returns a digest of the dtype and shape and of samples of the bytes, of a small tensor of all.
  // REQUIRES: one of tensors().
  absl::StatusOr<uint64_t> Digest(const TensorEntry& entry) const;

 private:
  explicit SafetensorsReader(InputFile file) : file_(std::move(file)) {}
  absl::Status ReadHeader();

  InputFile file_;
  int64_t data_begin_ = 0;
  std::map<std::string, TensorEntry> tensors_;
};

// Writes tensors one after the other, rounded to nearest even where `type` is narrower. The file
// appears under its name in Finish, once it is complete and on disk; a writer that dies before
// leaves at most PATH.tmp.
class SafetensorsWriter {
 public:
  struct Spec {
    std::string name;
    std::vector<int64_t> shape;
  };

  // All tensors, in the order of their Append calls.
  static absl::StatusOr<SafetensorsWriter> Create(const std::string& path,
                                                  std::span<const Spec> tensors,
                                                  WeightType type = WeightType::kFp32);
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&& other) noexcept = default;

  // INVALID_ARGUMENT: a number is beyond the type's range. REQUIRES: the next tensor's size.
  absl::Status Append(std::span<const float> tensor);
  // REQUIRES: every tensor was appended.
  absl::Status Finish();

 private:
  SafetensorsWriter(std::string path, std::span<const Spec> tensors, WeightType type)
      : path_(std::move(path)), type_(type), tensors_(tensors.begin(), tensors.end()) {}
  absl::Status Write(ByteSpan bytes) { return file_->Append({&bytes, 1}); }
  absl::Status AppendRounded(std::span<const float> tensor);

  std::string path_;
  WeightType type_;
  std::unique_ptr<AppendFile> file_;  // beside `path_`, until it is complete
  std::vector<Spec> tensors_;
  size_t next_ = 0;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_SAFETENSORS_H_
