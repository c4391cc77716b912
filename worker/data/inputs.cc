#include "worker/data/inputs.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "common/paths.h"
#include "common/status.h"
#include "worker/data/data_file.h"

namespace atl {
namespace {

constexpr size_t kBlockBytes = 1 << 16;

absl::Status InputError(const std::string& path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("data file ", path, ": ", problem));
}

using File = std::unique_ptr<DataFile>;

enum class Packing { kPlain, kGzip, kZstd };

absl::StatusOr<Packing> DetectCompression(const DataFile& file, const Cancelled& cancelled) {
  std::array<unsigned char, 4> head{};
  const auto got = static_cast<size_t>(std::min<int64_t>(file.bytes(), head.size()));
  ATOLL_RETURN_IF_ERROR(file.Read(0, head.data(), static_cast<int64_t>(got), cancelled));
  if (got >= 2 && head[0] == 0x1f && head[1] == 0x8b) return Packing::kGzip;
  if (got == 4 && head[0] == 0x28 && head[1] == 0xb5 && head[2] == 0x2f && head[3] == 0xfd) {
    return Packing::kZstd;
  }
  return Packing::kPlain;
}

class FileReader : public TextReader {
 public:
  FileReader(File file, Cancelled cancelled)
      : path_(file->path()), file_(std::move(file)), cancelled_(std::move(cancelled)) {}
  absl::Status Read(int64_t bytes_max, std::string* out) override {
    const size_t before = out->size();
    out->resize(before + static_cast<size_t>(bytes_max));
    ATOLL_ASSIGN_OR_RETURN(const size_t got,
                           Fill(out->data() + before, static_cast<size_t>(bytes_max)));
    out->resize(before + got);
    if (got == 0) ended_ = true;
    return absl::OkStatus();
  }
  bool ended() const override { return ended_; }
  int64_t file_bytes() const override { return file_->bytes(); }
  int64_t file_bytes_read() const override { return read_; }

 protected:
  // Bytes of the file as they are; 0: at its end.
  absl::StatusOr<size_t> Fill(void* to, size_t bytes) {
    const auto got =
        static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(bytes), file_->bytes() - read_));
    if (cancelled_ && cancelled_()) {
      return absl::AbortedError(absl::StrCat("data file ", path_, ": reading is interrupted"));
    }
    ATOLL_RETURN_IF_ERROR(file_->Read(read_, to, static_cast<int64_t>(got), cancelled_));
    read_ += static_cast<int64_t>(got);
    return got;
  }
  const std::string path_;
  bool ended_ = false;

 private:
  File file_;
  Cancelled cancelled_;
  int64_t read_ = 0;
};

class GzipReader : public FileReader {
 public:
  GzipReader(File file, Cancelled cancelled) : FileReader(std::move(file), std::move(cancelled)) {
    ready_ = inflateInit2(&stream_, 15 + 16) == Z_OK;
  }
  ~GzipReader() override { inflateEnd(&stream_); }

  absl::Status Read(int64_t bytes_max, std::string* out) override {
    const size_t before = out->size();
    out->resize(before + static_cast<size_t>(bytes_max));
    stream_.next_out = reinterpret_cast<Bytef*>(out->data() + before);
    stream_.avail_out = static_cast<uInt>(bytes_max);
    const absl::Status status = ready_ ? Inflate() : absl::ResourceExhaustedError("zlib");
    out->resize(out->size() - stream_.avail_out);
    if (status.ok() && out->size() == before) ended_ = true;
    return status;
  }

 private:
  absl::Status Inflate() {
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0) {
        ATOLL_ASSIGN_OR_RETURN(const size_t got, Fill(block_.data(), block_.size()));
        if (got == 0) {
          return inside_ ? InputError(path_, "its gzip data breaks off") : absl::OkStatus();
        }
        stream_.next_in = block_.data();
        stream_.avail_in = static_cast<uInt>(got);
      }
      inside_ = true;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {  // another member may follow
        inside_ = false;
        if (inflateReset(&stream_) != Z_OK) return InputError(path_, "zlib cannot go on");
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return InputError(path_, "its gzip data is damaged");
      }
    }
    return absl::OkStatus();
  }

  std::array<unsigned char, kBlockBytes> block_;
  z_stream stream_{};
  bool ready_ = false;
  bool inside_ = false;  // a member has begun
};

class ZstdReader : public FileReader {
 public:
  ZstdReader(File file, Cancelled cancelled)
      : FileReader(std::move(file), std::move(cancelled)), stream_(ZSTD_createDStream()) {
    // A frame may request a window of gigabytes; 128 MB is zstd's own default limit.
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, 27);
  }
  ~ZstdReader() override { ZSTD_freeDStream(stream_); }

  absl::Status Read(int64_t bytes_max, std::string* out) override {
    const size_t before = out->size();
    out->resize(before + static_cast<size_t>(bytes_max));
    ZSTD_outBuffer to{out->data() + before, static_cast<size_t>(bytes_max), 0};
    const absl::Status status = Decompress(&to);
    out->resize(before + to.pos);
    if (status.ok() && to.pos == 0) ended_ = true;
    return status;
  }

 private:
  absl::Status Decompress(ZSTD_outBuffer* to) {
    while (to->pos < to->size) {
      if (input_.pos == input_.size) {
        ATOLL_ASSIGN_OR_RETURN(const size_t got, Fill(block_.data(), block_.size()));
        if (got == 0) {
          return inside_ ? InputError(path_, "its zstd data breaks off") : absl::OkStatus();
        }
        input_ = {block_.data(), got, 0};
      }
      const size_t result = ZSTD_decompressStream(stream_, to, &input_);
      if (ZSTD_isError(result) != 0) {
        return InputError(path_, absl::StrCat("its zstd data: ", ZSTD_getErrorName(result)));
      }
      inside_ = result != 0;
    }
    return absl::OkStatus();
  }

  std::array<unsigned char, kBlockBytes> block_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  ZSTD_DStream* stream_;
  bool inside_ = false;  // a frame has begun
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandGlob(const std::string& path,
                                                    const Cancelled& cancelled) {
  const bool web = IsRemotePath(path) && absl::StartsWith(path, "http");
  if (path.find_first_of("*?[") == std::string::npos || web) return std::vector<std::string>{path};
  if (IsRemotePath(path)) return ExpandRemoteGlob(path, cancelled);
  const std::string what = absl::StrCat("data path ", path);
  const auto itself = FindPath(path);
  if (!itself.ok()) return Annotate(itself.status(), what);
  if (*itself && (*itself)->is_file) return std::vector<std::string>{path};
  const auto found = FindMatches(RealFiles(), path);
  if (!found.ok()) return Annotate(found.status(), what);
  std::vector<std::string> files;
  for (const std::string& file : *found) {
    ATOLL_ASSIGN_OR_RETURN(const auto info, FindPath(file));
    if (info && !info->is_folder) files.push_back(file);
  }
  if (files.empty()) return absl::NotFoundError(absl::StrCat(what, ": no file matches"));
  return files;
}

absl::StatusOr<bool> IsCompressed(const std::string& path, const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(const File file, OpenDataFile(path, cancelled));
  ATOLL_ASSIGN_OR_RETURN(const Packing packing, DetectCompression(*file, cancelled));
  return packing != Packing::kPlain;
}

absl::StatusOr<std::unique_ptr<TextReader>> TextReader::Open(const std::string& path,
                                                             const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(File file, OpenDataFile(path, cancelled));
  ATOLL_ASSIGN_OR_RETURN(const Packing packing, DetectCompression(*file, cancelled));
  switch (packing) {
    case Packing::kGzip:
      return std::make_unique<GzipReader>(std::move(file), cancelled);
    case Packing::kZstd:
      return std::make_unique<ZstdReader>(std::move(file), cancelled);
    case Packing::kPlain:
      break;
  }
  return std::make_unique<FileReader>(std::move(file), cancelled);
}

}  // namespace atl
