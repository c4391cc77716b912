// Decoders of data files: packed text, lines of JSONL, Parquet, and the first bytes of anything.

#include <zlib.h>
#include <zstd.h>

#include "common/check.h"
#include "common/file_kind.h"
#include "tests/fuzz/decoder.h"
#include "worker/data/formats/decompressor.h"
#include "worker/data/formats/json_line.h"
#include "worker/data/formats/text_share.h"
#include "worker/data/formats/token_head.h"
#include "worker/data/parquet/rows.h"
#include "worker/data/parquet/testing/small_files.h"

namespace atl::fuzz {
namespace {

using namespace std::string_literals;

// --------------------------------------------------------------------------------- kinds

bool AcceptsKind(std::string_view bytes) {
  const FoundKind found = DetectFileKind(bytes);
  ATOLL_CHECK((found.kind == FileKind::kUnknown) == found.name.empty());
  TextShare share;
  share.Add(bytes, 7);
  ATOLL_CHECK(share.bad() >= 0 && share.bad() <= share.bytes());
  const auto head = ParseTokenHead(bytes, std::ssize(bytes));
  ATOLL_CHECK(!head.ok() || head->begin_bytes <= std::ssize(bytes));
  return found.kind != FileKind::kUnknown;
}

std::vector<std::string> KindSeeds() {
  return {"PAR1\0\1\2"s,
          "\x28\xb5\x2f\xfd"s,
          "\x50\x2a\x4d\x18\4\0\0\0abcd\x28\xb5\x2f\xfd"s,
          "<Error><Code>A</Code></Error>",
          "{\"error\": \"x\"}",
          "\xff\xfex\0"s,
          "\x80\4\x95\0"s,
          "\x40\0\0\0\0\0\0\0{\""s};
}

const Registration kKind({"file_kind", KindSeeds, AcceptsKind});

// ---------------------------------------------------------------------------- packed text

std::string Gzip(const std::string& text) {
  z_stream stream{};
  ATOLL_CHECK(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(text.size() + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  ATOLL_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

bool AcceptsPacked(std::string_view bytes) {
  constexpr size_t kTextBytesMax = 1 << 20;
  const auto decompressor = NewDecompressor(DetectFileKind(bytes).kind);
  if (decompressor == nullptr) return false;
  // A copy of its own size: what is read beyond it is seen.
  const std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  std::span<const uint8_t> in = copy;
  std::vector<uint8_t> text(4096);
  for (size_t unpacked = 0; unpacked < kTextBytesMax;) {
    std::span<uint8_t> room = text;
    const size_t given = in.size();
    if (!decompressor->Decompress(&in, &room).ok()) return false;
    unpacked += text.size() - room.size();
    if (room.size() == text.size() && in.size() == given) break;
  }
  return !decompressor->inside();
}

std::vector<std::string> PackedSeeds() {
  return {Gzip("a text") + Gzip("more") + "\0\0"s, Zstd("a text"),
          "\x50\x2a\x4d\x18\4\0\0\0abcd"s + Zstd("a text, a text") + Zstd("")};
}

const Registration kPacked({"packed_text", PackedSeeds, AcceptsPacked});

// ---------------------------------------------------------------------------------- JSONL

bool AcceptsLine(std::string_view bytes) {
  const std::vector<char> copy(bytes.begin(), bytes.end());
  const std::string_view line(copy.data(), copy.size());
  std::vector<JsonOddNumber> odd;
  const auto fault = FindJsonFault(line, &odd);
  ATOLL_CHECK(!fault.has_value() || fault->at <= line.size());
  // It and the parser agree, which takes a NUL for the end.
  const bool is_json =
      line.find('\0') == std::string_view::npos && nlohmann::json::accept(line.begin(), line.end());
  ATOLL_CHECK(is_json == (!fault.has_value() && odd.empty()), std::string(line));
  return JsonlText(line, "text", "f", 1).ok() && !line.empty();
}

std::vector<std::string> LineSeeds() {
  return {R"({"text": "a\u00e9\ud83d\ude00\n", "b": [1, -2.5e3, true, null, {"c": {}}]})",
          R"({"score": NaN, "x": [-Infinity, 1e400], "text": "a"})"};
}

const Registration kLine({"json_line", LineSeeds, AcceptsLine});

// -------------------------------------------------------------------------------- Parquet

bool AcceptsParquet(std::string_view bytes) {
  constexpr size_t kTextBytesMax = 1 << 20;
  auto rows = parquet::Rows::Open(
      [&](int64_t offset, char* out, int64_t count) -> absl::Status {
        ATOLL_CHECK(offset >= 0 && count >= 0 && offset <= std::ssize(bytes) - count);
        bytes.copy(out, static_cast<size_t>(count), static_cast<size_t>(offset));
        return absl::OkStatus();
      },
      std::ssize(bytes), {});
  if (!rows.ok()) return false;
  for (std::string lines; !(*rows)->ended() && lines.size() < kTextBytesMax;) {
    if (!(*rows)->AppendRow(&lines).ok()) return false;
  }
  return true;
}

std::vector<std::string> ParquetSeeds() {
  using namespace parquet;
  const std::vector<Thrift> chat = {Thrift().Int(3, 1).Text(4, "messages").Int(5, 1).Int(6, 3),
                                    Group("list", 2, 1), Group("element", 1, 2), Field("role", 0),
                                    Field("content", 1)};
  const std::string repetitions = Levels({0, 1, 0, 0});
  return {File({Field("text", 0)}, 2, {{Page(2, PlainText({"a", "b"}), 0, 1), 2, 1}}),
          File({Field("text", 1)}, 3,
               {{DictionaryPage({"a", "b"}) + Page(3, Levels({1, 0, 1}) + "\1"s + Runs({1, 0}), 8),
                 3}}),
          File(chat, 3,
               {{Page(4, repetitions + Levels({3, 3, 0, 1}) + PlainText({"u", "a"})), 4},
                {Page(4, repetitions + Levels({4, 3, 0, 1}) + PlainText({"hi"})), 4}})};
}

const Registration kParquet({"parquet", ParquetSeeds, AcceptsParquet});

}  // namespace
}  // namespace atl::fuzz
