#include "worker/data/formats/decompressor.h"

#include <bzlib.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes_text.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr int kZstdWindowLogMax = 27;
static_assert(int64_t{1} << kZstdWindowLogMax == kDecompressorBytesMax);

// The libraries count in 32 bits.
template <typename Span>
auto Counted(const Span& span) {
  return static_cast<unsigned>(
      std::min<size_t>(span.size(), std::numeric_limits<unsigned>::max() / 2));
}

class GzipDecompressor : public Decompressor {
 public:
  GzipDecompressor() : Decompressor("gzip") {}
  ~GzipDecompressor() override { inflateEnd(&stream_); }

 protected:
  bool MayBegin(uint8_t first) const override { return first == 0x1f; }
  absl::Status Begin() override {
    const int result = made_ ? inflateReset(&stream_) : inflateInit2(&stream_, 15 + 16);
    made_ = true;
    return result == Z_OK ? absl::OkStatus() : absl::ResourceExhaustedError("zlib has no memory");
  }
  absl::StatusOr<bool> Continue(Input* in, Output* out) override {
    const unsigned given = Counted(*in), room = Counted(*out);
    stream_.next_in = const_cast<Bytef*>(in->data());
    stream_.avail_in = given;
    stream_.next_out = out->data();
    stream_.avail_out = room;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    *in = in->subspan(given - stream_.avail_in);
    *out = out->subspan(room - stream_.avail_out);
    if (result == Z_STREAM_END) return true;
    if (result == Z_OK || result == Z_BUF_ERROR) return false;
    return Error(stream_.msg == nullptr ? "is damaged" : absl::StrCat("is damaged: ", stream_.msg));
  }

 private:
  z_stream stream_{};
  bool made_ = false;
};

class ZstdDecompressor : public Decompressor {
 public:
  ZstdDecompressor() : Decompressor("zstd"), context_(ZSTD_createDCtx()) {
    if (context_ != nullptr) {
      ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kZstdWindowLogMax);
    }
  }
  ~ZstdDecompressor() override { ZSTD_freeDCtx(context_); }

 protected:
  bool MayBegin(uint8_t first) const override { return first == 0x28 || (first & 0xf0) == 0x50; }
  absl::Status Begin() override {
    head_.clear();
    return context_ != nullptr ? absl::OkStatus()
                               : absl::ResourceExhaustedError("zstd has no memory");
  }
  absl::StatusOr<bool> Continue(Input* in, Output* out) override {
    const auto wanted = kHeadBytes - std::min(head_.size(), kHeadBytes);
    head_.append(reinterpret_cast<const char*>(in->data()), std::min(wanted, in->size()));
    ZSTD_inBuffer from{in->data(), in->size(), 0};
    ZSTD_outBuffer to{out->data(), out->size(), 0};
    const size_t result = ZSTD_decompressStream(context_, &to, &from);
    *in = in->subspan(from.pos);
    *out = out->subspan(to.pos);
    if (ZSTD_isError(result) == 0) return result == 0;
    const ZSTD_ErrorCode code = ZSTD_getErrorCode(result);
    if (code == ZSTD_error_frameParameter_windowTooLarge) return WindowError();
    if (code == ZSTD_error_dictionary_wrong) {
      return Error("was made with a dictionary, which is missing here: zstd -d -D DICTIONARY");
    }
    return Error(absl::StrCat("is damaged: ", ZSTD_getErrorName(result)));
  }

 private:
  static constexpr size_t kHeadBytes = 6;  // of a frame, up to its window

  absl::Status WindowError() const {
    const auto descriptor = static_cast<unsigned char>(head_.size() < kHeadBytes ? 0 : head_[5]);
    const int log = 10 + (descriptor >> 3);
    const int64_t window = (int64_t{1} << log) + (int64_t{1} << log) / 8 * (descriptor & 7);
    const int needed = log + ((descriptor & 7) != 0 ? 1 : 0);
    return Error(absl::StrCat("has a window of ", BytesText(window),
                              " (--long or --ultra), more than ", BytesText(kDecompressorBytesMax),
                              ": repack it by zstd -d --long=", needed, " -c F | zstd -o G"));
  }

  ZSTD_DCtx* const context_;
  std::string head_;
};

class XzDecompressor : public Decompressor {
 public:
  XzDecompressor() : Decompressor("xz") {}
  ~XzDecompressor() override { lzma_end(&stream_); }

 protected:
  bool MayBegin(uint8_t first) const override {
    return first == 0xfd || first == 0x5d || first == 'L';
  }
  absl::Status Begin() override {
    const lzma_ret result =
        lzma_auto_decoder(&stream_, static_cast<uint64_t>(kDecompressorBytesMax), 0);
    return result == LZMA_OK ? absl::OkStatus() : absl::ResourceExhaustedError("lzma: no memory");
  }
  absl::StatusOr<bool> Continue(Input* in, Output* out) override {
    stream_.next_in = in->data();
    stream_.avail_in = in->size();
    stream_.next_out = out->data();
    stream_.avail_out = out->size();
    const lzma_ret result = lzma_code(&stream_, LZMA_RUN);
    *in = in->subspan(in->size() - stream_.avail_in);
    *out = out->subspan(out->size() - stream_.avail_out);
    switch (result) {
      case LZMA_STREAM_END:
        return true;
      case LZMA_OK:
      case LZMA_BUF_ERROR:
      case LZMA_UNSUPPORTED_CHECK:
        return false;
      case LZMA_MEMLIMIT_ERROR:
        return Error(absl::StrCat("needs ",
                                  BytesText(static_cast<int64_t>(lzma_memusage(&stream_))),
                                  " of memory, more than ", BytesText(kDecompressorBytesMax),
                                  ": repack it by xz -dc F | zstd -o F.zst"));
      default:
        return Error(absl::StrCat("is damaged (liblzma: ", static_cast<int>(result), ")"));
    }
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
};

class Bzip2Decompressor : public Decompressor {
 public:
  Bzip2Decompressor() : Decompressor("bzip2") {}
  ~Bzip2Decompressor() override { BZ2_bzDecompressEnd(&stream_); }

 protected:
  bool MayBegin(uint8_t first) const override { return first == 'B'; }
  absl::Status Begin() override {
    BZ2_bzDecompressEnd(&stream_);
    stream_ = {};
    return BZ2_bzDecompressInit(&stream_, 0, 0) == BZ_OK
               ? absl::OkStatus()
               : absl::ResourceExhaustedError("bzip2 has no memory");
  }
  absl::StatusOr<bool> Continue(Input* in, Output* out) override {
    const unsigned given = Counted(*in), room = Counted(*out);
    stream_.next_in = const_cast<char*>(reinterpret_cast<const char*>(in->data()));
    stream_.avail_in = given;
    stream_.next_out = reinterpret_cast<char*>(out->data());
    stream_.avail_out = room;
    const int result = BZ2_bzDecompress(&stream_);
    *in = in->subspan(given - stream_.avail_in);
    *out = out->subspan(room - stream_.avail_out);
    if (result == BZ_STREAM_END) return true;
    return result == BZ_OK ? absl::StatusOr<bool>(false) : Error("is damaged");
  }

 private:
  bz_stream stream_{};
};

}  // namespace

absl::Status Decompressor::Error(absl::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat("its ", format_, " data ", problem));
}

absl::Status Decompressor::Decompress(std::span<const uint8_t>* in, std::span<uint8_t>* out) {
  while (!out->empty()) {
    if (!inside_) {
      if (members_ > 0) {
        while (!in->empty() && in->front() == 0) *in = in->subspan(1);
      }
      if (in->empty()) return absl::OkStatus();
      if (!MayBegin(in->front())) {
        return Error(absl::StrFormat("is followed by something else (byte 0x%02x)", in->front()));
      }
      ATOLL_RETURN_IF_ERROR(Begin());
      inside_ = true;
    }
    const size_t given = in->size(), room = out->size();
    ATOLL_ASSIGN_OR_RETURN(const bool ended, Continue(in, out));
    if (ended) {
      inside_ = false;
      ++members_;
    } else if (in->size() == given && out->size() == room) {
      break;  // wants more input
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<Decompressor> NewDecompressor(FileKind kind) {
  switch (kind) {
    case FileKind::kGzip:
      return std::make_unique<GzipDecompressor>();
    case FileKind::kZstd:
      return std::make_unique<ZstdDecompressor>();
    case FileKind::kXz:
      return std::make_unique<XzDecompressor>();
    case FileKind::kBzip2:
      return std::make_unique<Bzip2Decompressor>();
    default:
      return nullptr;
  }
}

}  // namespace atl
