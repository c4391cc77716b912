#include "worker/data/formats/decompressor.h"

#include <bzlib.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <string>

namespace atl {
namespace {

using namespace std::string_literals;
using Catch::Matchers::Contains;

// ---- vocabulary of these tests ----

std::string Gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// `window_log` above 0: as from a pipe with --long, so that the frame has a window and no size.
std::string Zstd(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  if (window_log > 0) {
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 1);
  }
  std::string packed(ZSTD_compressBound(text.size()) + 100, '\0');
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  // Two calls: zstd then does not know how much there is when it writes the frame's head.
  REQUIRE(ZSTD_isError(ZSTD_compressStream2(context, &out, &in, ZSTD_e_continue)) == 0);
  REQUIRE(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end) == 0);
  ZSTD_freeCCtx(context);
  packed.resize(out.pos);
  return packed;
}

std::string Xz(const std::string& text, uint32_t dictionary = 1 << 20) {
  lzma_options_lzma options;
  REQUIRE(lzma_lzma_preset(&options, 1) == 0);
  options.dict_size = dictionary;
  const lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, nullptr}};
  std::string packed(text.size() + 1000, '\0');
  size_t bytes = 0;
  REQUIRE(lzma_stream_buffer_encode(const_cast<lzma_filter*>(filters), LZMA_CHECK_CRC64, nullptr,
                                    reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                                    reinterpret_cast<uint8_t*>(packed.data()), &bytes,
                                    packed.size()) == LZMA_OK);
  packed.resize(bytes);
  return packed;
}

std::string Bzip2(const std::string& text) {
  std::string packed(text.size() + 1000, '\0');
  auto bytes = static_cast<unsigned>(packed.size());
  REQUIRE(BZ2_bzBuffToBuffCompress(packed.data(), &bytes, const_cast<char*>(text.data()),
                                   static_cast<unsigned>(text.size()), 1, 0, 0) == BZ_OK);
  packed.resize(bytes);
  return packed;
}

// The text, unpacked `step` bytes at a time on both sides; an error's message.
std::string Unpack(const std::string& packed, size_t step = 1000) {
  const auto decompressor = NewDecompressor(DetectFileKind(packed).kind);
  REQUIRE(decompressor != nullptr);
  std::string text;
  for (size_t at = 0; at < packed.size();) {
    std::span<const uint8_t> in(reinterpret_cast<const uint8_t*>(packed.data()) + at,
                                std::min(step, packed.size() - at));
    const size_t given = in.size();
    std::string part(step, '\0');
    size_t got = 0;
    do {  // what is buffered inside comes without more input
      std::span<uint8_t> out(reinterpret_cast<uint8_t*>(part.data()), part.size());
      const absl::Status status = decompressor->Decompress(&in, &out);
      if (!status.ok()) return std::string(status.message());
      got = part.size() - out.size();
      text.append(part, 0, got);
    } while (got > 0);
    at += given - in.size();
    if (got == 0 && in.size() == given) return "no progress";
  }
  return decompressor->inside() ? "breaks off" : text;
}

std::string SomeText() {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += std::to_string(i * 7919 % 1000) + (i % 9 ? " " : "\n");
  return text;
}

std::string Skippable(char low, const std::string& content) {
  return std::string(1, static_cast<char>(0x50 + low)) + "\x2a\x4d\x18" +
         static_cast<char>(content.size()) + "\0\0\0"s + content;
}

// ---- tests ----

TEST_CASE("members_follow_each_other_in_every_format_at_any_cut") {
  const std::string text = SomeText();
  for (const auto pack : {Gzip, +[](const std::string& t) { return Zstd(t); },
                          +[](const std::string& t) { return Xz(t); }, Bzip2}) {
    const std::string packed = pack(text) + pack("") + pack("more");
    for (const size_t step : {size_t{1}, size_t{7}, size_t{100'000}}) {
      CHECK(Unpack(step == 1 ? pack("text") + pack("more") : packed, step) ==
            (step == 1 ? "text" : text) + "more");
    }
  }
}

TEST_CASE("skippable_frames_of_zstd_are_skipped_wherever_they_stand") {
  CHECK(Unpack(Skippable(0, "four") + Zstd("a") + Skippable(15, "") + Zstd("b") +
               Skippable(14, "seek table")) == "ab");
  CHECK(Unpack(Skippable(0, std::string(100, 'x')) + Zstd("a"), 3) == "a");
}

TEST_CASE("zeros_behind_packed_data_are_padding_and_other_bytes_are_refused") {
  const std::string zeros(4096, '\0');
  CHECK(Unpack(Gzip("a") + zeros) == "a");
  CHECK(Unpack(Xz("a") + zeros) == "a");
  CHECK_THAT(Unpack(Gzip("a") + "trailing"), Contains("followed by something else"));
  CHECK_THAT(Unpack(Bzip2("a") + "x"), Contains("followed by something else"));
}

TEST_CASE("a_window_or_dictionary_beyond_the_limit_is_refused_with_its_size_and_the_remedy") {
  CHECK(Unpack(Zstd(SomeText(), 27)) == SomeText());
  CHECK_THAT(Unpack(Zstd(SomeText(), 28)),
             Contains("a window of 256.0 MiB") && Contains("zstd -d --long=28"));
  CHECK_THAT(Unpack(Zstd(SomeText(), 31)), Contains("2.00 GiB") && Contains("--long=31"));
  CHECK_THAT(Unpack(Xz("a", 512 << 20)), Contains("needs 512") && Contains("repack"));
}

TEST_CASE("damaged_and_cut_data_are_refused") {
  const std::string text = SomeText();
  for (const auto pack : {Gzip, +[](const std::string& t) { return Zstd(t); },
                          +[](const std::string& t) { return Xz(t); }, Bzip2}) {
    std::string packed = pack(text);
    CHECK(Unpack(packed.substr(0, packed.size() / 2)) == "breaks off");
    for (size_t at = packed.size() / 3; at < packed.size() / 3 + 16; ++at) packed[at] ^= 0x55;
    CHECK(Unpack(packed) != text);
  }
}

TEST_CASE("kinds_that_are_not_packed_have_no_decompressor") {
  CHECK(NewDecompressor(FileKind::kUnknown) == nullptr);
  CHECK(NewDecompressor(FileKind::kParquet) == nullptr);
}

}  // namespace
}  // namespace atl
