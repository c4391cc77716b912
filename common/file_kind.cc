#include "common/file_kind.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace atl {
namespace {

using namespace std::string_view_literals;

struct Magic {
  size_t at;
  std::string_view bytes;
  FileKind kind;
  const char* name;
  const char* remedy;
  // Its first bytes could begin a text: what follows must be none.
  bool spells_text = false;
};

constexpr const char* kRewrite = "write its texts as JSONL";
constexpr const char* kSaveWeights = "save the weights as safetensors (save_pretrained does)";
constexpr const char* kToParquet =
    "convert it: pyarrow.parquet.write_table(pyarrow.ipc.open_file(F).read_all(), 'F.parquet')";

// In the order in which they are tried.
constexpr Magic kMagics[] = {
    {0, "BZh"sv, FileKind::kBzip2, "a bzip2 file", "bzip2 -dc", true},
    {0,
     "\xfd"
     "7zXZ\0"sv,
     FileKind::kXz, "an xz file", "xz -dc"},
    {0, "LZIP\1"sv, FileKind::kXz, "an lzip file", "lzip -dc"},
    {0, "\x04\x22\x4d\x18"sv, FileKind::kOther, "an lz4 file",
     "repack it: lz4 -dc F | zstd -o F.zst"},
    {0, "\x02\x21\x4c\x18"sv, FileKind::kOther, "an lz4 file (of before 1.4)",
     "repack it: lz4 -dc F | zstd -o F.zst"},
    {0, "\xff\x06\0\0sNaPpY"sv, FileKind::kOther, "a snappy file",
     "repack it: snzip -dc F | zstd -o F.zst"},
    {0, "\x89LZO\0\r\n\x1a\n"sv, FileKind::kOther, "an lzop file",
     "repack it: lzop -dc F | zstd -o F.zst"},
    {0, "7z\xbc\xaf\x27\x1c"sv, FileKind::kOther, "a 7z archive", "unpack it: 7z x"},
    {0, "Rar!\x1a\x07"sv, FileKind::kOther, "a RAR archive", "unpack it"},
    {257, "ustar"sv, FileKind::kOther, "a tar archive", "unpack it: tar -xf"},
    {0, "07070"sv, FileKind::kOther, "a cpio archive", "unpack it: cpio -i", true},
    {0, "!<arch>\n"sv, FileKind::kOther, "an ar archive", "unpack it"},
    {0, "\x37\xa4\x30\xec"sv, FileKind::kOther, "a zstd dictionary", ""},
    {0, "PAR1"sv, FileKind::kParquet, "a Parquet file",
     "set data.format = \"jsonl\" or \"chat\", whose lines its rows are then, and data.field to "
     "the column",
     true},
    {0, "PARE"sv, FileKind::kOther, "an encrypted Parquet file", "decrypt it", true},
    {0, "ARROW1\0\0"sv, FileKind::kOther, "an Arrow file", kToParquet},
    {0, "FEA1"sv, FileKind::kOther, "a Feather file", kToParquet, true},
    {0, "ORC"sv, FileKind::kOther, "an ORC file", kRewrite, true},
    {0, "Obj\1"sv, FileKind::kOther, "an Avro file", kRewrite},
    {0, "MMIDIDX\0\0"sv, FileKind::kMegatronIndex, "Megatron's index",
     "data.format = \"megatron\""},
    {0, "TNTIDX\0\0"sv, FileKind::kOther, "fairseq's index (TNTIDX)",
     "make the data again with Megatron's preprocess_data.py, or write the tokens alone"},
    {0, "\x93NUMPY"sv, FileKind::kOther, "a NumPy file",
     "write its numbers alone, as data.format = \"tokens32\" reads them: "
     "numpy.load('F').astype('uint32').tofile('F.bin')"},
    {0, "LITPKDS"sv, FileKind::kOther, "a packed data set of lit-gpt (LITPKDS)",
     "make it of the texts again, or write the tokens alone"},
    {0, "GGUF"sv, FileKind::kOther, "a GGUF file", kSaveWeights, true},
    {0, "lmgg"sv, FileKind::kOther, "a GGML file", kSaveWeights, true},
    {0, "tjgg"sv, FileKind::kOther, "a GGML file", kSaveWeights, true},
    {0, "\x89HDF\r\n\x1a\n"sv, FileKind::kOther, "an HDF5 file", ""},
    {0, "MATLAB 5.0 MAT-file"sv, FileKind::kOther, "a MATLAB file", "", true},
    {0, "SQLite format 3\0"sv, FileKind::kOther, "an SQLite database", kRewrite},
    {16, "\xde\xc0\xef\xbe"sv, FileKind::kOther, "an LMDB database", kRewrite},
    {0, "\xff\xd8\xff"sv, FileKind::kJpeg, "a JPEG image", "data.format = \"image_folder\""},
    {0, "\x89PNG\r\n\x1a\n"sv, FileKind::kPng, "a PNG image", "data.format = \"image_folder\""},
    {0, "GIF8"sv, FileKind::kOther, "a GIF image", "", true},
    {8, "WEBPVP8"sv, FileKind::kOther, "a WebP image", "convert it to PNG or JPEG", true},
    {0, "RIFF"sv, FileKind::kOther, "a RIFF file (sound or film)", "", true},
    {0, "II*\0"sv, FileKind::kOther, "a TIFF image", "", true},
    {0, "MM\0*"sv, FileKind::kOther, "a TIFF image", "", true},
    {4, "ftyp"sv, FileKind::kOther, "a film or HEIF image", "", true},
    {0, "\x1a\x45\xdf\xa3"sv, FileKind::kOther, "a film (Matroska, WebM)", ""},
    {0, "OggS\0"sv, FileKind::kOther, "an Ogg file (sound)", ""},
    {0, "fLaC\0"sv, FileKind::kOther, "a FLAC file (sound)", ""},
    {0, "ID3"sv, FileKind::kOther, "an MP3 file (sound)", "", true},
    {0, "%PDF-"sv, FileKind::kOther, "a PDF document", "take its text out: pdftotext"},
    {0, "age-encryption.org/v1\n"sv, FileKind::kOther, "a file encrypted by age", "decrypt it"},
    {0, "-----BEGIN PGP MESSAGE"sv, FileKind::kOther, "a file encrypted by PGP", "decrypt it"},
    {0, "-----BEGIN AGE ENCRYPTED"sv, FileKind::kOther, "a file encrypted by age", "decrypt it"},
    {0, "Salted__"sv, FileKind::kOther, "a file encrypted by openssl", "decrypt it", true},
    {0, "LUKS\xba\xbe"sv, FileKind::kOther, "an encrypted volume (LUKS)", "open it"},
    {0, "outs:\n- md5: "sv, FileKind::kOther, "a DVC pointer", "name the file itself: dvc pull"},
    {0, "%!PS-Adobe"sv, FileKind::kOther, "a PostScript document", "take its text out: ps2ascii"},
    {0, "{\\rtf1"sv, FileKind::kOther, "an RTF document", "take its text out"},
    {0, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"sv, FileKind::kOther, "an Office document",
     "take its text out"},
    {60, "BOOKMOBI"sv, FileKind::kOther, "a Mobipocket book", "take its text out", true},
    {0, "AT&TFORM"sv, FileKind::kOther, "a DjVu document", "take its text out: djvutxt", true},
    {0,
     "\x7f"
     "ELF"sv,
     FileKind::kOther, "a program (ELF)", ""},
    {0, "version https://git-lfs.github.com/spec/"sv, FileKind::kOther, "a Git LFS pointer",
     "the file itself is not here: git lfs pull"},
    {0, "version https://hawser.github.com/spec/"sv, FileKind::kOther, "a Git LFS pointer",
     "the file itself is not here: git lfs pull"},
    {0, "# xet version "sv, FileKind::kOther, "a Xet pointer",
     "the file itself is not here: git xet install, git lfs pull"},
    {0, "/annex/objects/"sv, FileKind::kOther, "a git-annex pointer",
     "the file itself is not here: git annex get"},
};

// Numbers of 16 bits may begin so, and text may not.
constexpr const char* kRepackZlib = "repack it: pigz -dc < F | zstd -o F.zst";
constexpr Magic kNoText[] = {
    {0, "\x1f\x9d"sv, FileKind::kOther, "a file of compress (.Z)",
     "repack it: zcat F | zstd -o F.zst", true},
    {0, "\x78\x01"sv, FileKind::kOther, "data packed by zlib", kRepackZlib, true},
    {0, "\x78\x9c"sv, FileKind::kOther, "data packed by zlib", kRepackZlib, true},
    {0, "\x78\xda"sv, FileKind::kOther, "data packed by zlib", kRepackZlib, true},
    {0, "MZ"sv, FileKind::kOther, "a program (Windows)", "", true},
    {0, "BM"sv, FileKind::kOther, "a BMP image", "", true},
};

// Ends of names of packed files.
constexpr std::string_view kPackedNames[] = {".gz",   ".tgz", ".zst",  ".xz",     ".bz2", ".lz4",
                                             ".lzma", ".lz",  ".zip",  ".7z",     ".rar", ".tar",
                                             ".z",    ".zz",  ".zlib", ".deflate"};

bool Begins(std::string_view text, std::string_view with, size_t at = 0) {
  return text.size() >= at && text.substr(at, with.size()) == with;
}

unsigned Byte(std::string_view head, size_t at) {
  return at < head.size() ? static_cast<unsigned char>(head[at]) : 0;
}

// A byte that no text has: a control character besides those of layout and of terminals.
bool HasControlBytes(std::string_view head) {
  return std::any_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 && (byte < 7 || byte > 13) && byte != 0x1b;
  });
}

uint64_t Little(std::string_view head, size_t at, size_t bytes) {
  uint64_t value = 0;
  if (head.size() >= at + bytes) std::memcpy(&value, head.data() + at, bytes);
  return value;
}

bool IsGzip(std::string_view head) {
  return Begins(head, "\x1f\x8b\x08"sv) && (Byte(head, 3) & 0xe0) == 0;
}

// Returns what stands behind frames that readers of zstd and lz4 skip, as far as the head goes.
std::string_view SkipFrames(std::string_view head) {
  while (head.size() >= 8 && (Little(head, 0, 4) & ~uint64_t{0xf}) == 0x184d2a50) {
    head.remove_prefix(std::min<uint64_t>(8 + Little(head, 4, 4), head.size()));
  }
  return head;
}

// .lzma: properties, a dictionary of a usual size, and the size of the text or all ones.
bool IsLzma(std::string_view head) {
  const uint64_t dictionary = Little(head, 1, 4), size = Little(head, 5, 8);
  const bool plausible = dictionary >= 4096 && (dictionary & (dictionary - 1)) == 0;
  return head.size() > 13 && head[0] == 0x5d && plausible && Byte(head, 13) == 0 &&
         (size == ~uint64_t{0} || size < (uint64_t{1} << 40));
}

FoundKind FindZip(std::string_view head) {
  if (!Begins(head, "PK\3\4"sv) && !Begins(head, "PK\5\6"sv) && !Begins(head, "PK\7\x8PK"sv)) {
    return {};
  }
  const auto has = [&](std::string_view text) {
    return head.substr(0, 600).find(text) != std::string_view::npos;
  };
  if (has("application/epub+zip")) return {FileKind::kOther, "an EPUB book", "take its text out"};
  if (has("[Content_Types].xml") || has("vnd.oasis.opendocument")) {
    return {FileKind::kOther, "an Office document", "take its text out"};
  }
  if (has("data.pkl")) return {FileKind::kOther, "a PyTorch checkpoint", kSaveWeights};
  if (has(".npy")) {
    return {FileKind::kOther, "a NumPy archive", "write the numbers of one array alone (tofile)"};
  }
  return {FileKind::kOther, "a zip archive", "repack it: unzip -p F | zstd -o F.zst"};
}

bool IsSafetensors(std::string_view head) {
  const uint64_t header = Little(head, 0, 8);
  return header >= 2 && header < (uint64_t{1} << 30) && Byte(head, 8) == '{' &&
         (Byte(head, 9) == '"' || Byte(head, 9) == '}' || Byte(head, 9) == ' ' ||
          Byte(head, 9) == '\n');
}

// Python's pickles begin with their protocol, and since 4 with a frame.
bool IsPickle(std::string_view head) {
  const unsigned version = Byte(head, 1), next = Byte(head, 2);
  if (Byte(head, 0) != 0x80) return false;
  if (version == 4 || version == 5) return next == 0x95;
  constexpr std::string_view kOpcodes = "}](cX\x8a";
  return (version == 2 || version == 3) &&
         kOpcodes.find(static_cast<char>(next)) != std::string_view::npos &&
         HasControlBytes(head.substr(2));
}

// An Arrow stream: a mark, the length of a flatbuffer, and its root, a multiple of 4.
bool IsArrowStream(std::string_view head) {
  const uint64_t bytes = Little(head, 4, 4), root = Little(head, 8, 4);
  return Begins(head, "\xff\xff\xff\xff"sv) && bytes >= 16 && bytes < (1 << 24) && bytes % 8 == 0 &&
         root >= 8 && root < bytes && root % 4 == 0 && root < 256;
}

// A message of protobuf: the version of the format, and the name of the program that wrote it.
bool IsOnnx(std::string_view head) {
  const unsigned version = Byte(head, 1), bytes = Byte(head, 3);
  const auto producer = head.substr(std::min<size_t>(4, head.size()), bytes);
  return Byte(head, 0) == 0x08 && version >= 1 && version < 32 && Byte(head, 2) == 0x12 &&
         bytes >= 4 && bytes < 64 && producer.size() == bytes &&
         std::all_of(producer.begin(), producer.end(),
                     [](char c) { return c >= 0x20 && c < 0x7f; });
}

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0);
  }
  return ~crc;
}

// TensorFlow's records: a length and its masked checksum.
bool IsTfRecord(std::string_view head) {
  if (head.size() < 16 || Little(head, 0, 8) == 0 || Little(head, 0, 8) > (uint64_t{1} << 32)) {
    return false;
  }
  const uint32_t crc = Crc32c(head.substr(0, 8));
  return Little(head, 8, 4) == static_cast<uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8U);
}

FoundKind FindWideText(const char* encoding) {
  return {FileKind::kWideText, absl::StrCat("text in ", encoding),
          absl::StrCat("convert it: iconv -f ", encoding, " -t UTF-8 F > F.utf8")};
}

// Text of 2 or 4 bytes a character: by its mark, else by the zeros of what is mostly ASCII.
FoundKind FindWideText(std::string_view head) {
  if (Begins(head, "\xff\xfe\0\0"sv)) return FindWideText("UTF-32LE");
  if (Begins(head, "\0\0\xfe\xff"sv)) return FindWideText("UTF-32BE");
  if (Begins(head, "\xff\xfe"sv)) return FindWideText("UTF-16LE");
  if (Begins(head, "\xfe\xff"sv)) return FindWideText("UTF-16BE");
  const size_t groups = head.size() / 4;
  if (groups < 8) return {};
  size_t zeros[4] = {}, printed[4] = {};
  for (size_t i = 0; i < 4 * groups; ++i) {
    const unsigned byte = Byte(head, i);
    if (byte == 0) ++zeros[i % 4];
    if ((byte >= 0x20 && byte < 0x7f) || (byte >= 9 && byte <= 13)) ++printed[i % 4];
  }
  const auto most = [&](size_t count) { return count * 10 >= groups * 7; };
  const auto ascii = [&](size_t a, size_t b, size_t c, size_t d) {
    return most(printed[a]) && most(b) && most(c) && most(d);
  };
  if (ascii(0, zeros[1], zeros[2], zeros[3])) return FindWideText("UTF-32LE");
  if (ascii(3, zeros[0], zeros[1], zeros[2])) return FindWideText("UTF-32BE");
  if (ascii(0, zeros[1], printed[2], zeros[3])) return FindWideText("UTF-16LE");
  if (ascii(1, zeros[0], printed[3], zeros[2])) return FindWideText("UTF-16BE");
  return {};
}

// The text behind <name>, at most 60 bytes of it.
std::string Element(std::string_view head, std::string_view name) {
  const size_t at = head.find(absl::StrCat("<", std::string(name), ">"));
  if (at == std::string_view::npos) return "";
  const auto text = head.substr(at + name.size() + 2, 60);
  return std::string(text.substr(0, text.find('<')));
}

FoundKind FindMarkup(std::string_view head) {
  if (Begins(head, "\xef\xbb\xbf")) head.remove_prefix(3);
  if (Begins(head, "WARC/1.")) {
    return {FileKind::kMarkup, "a WARC file (of Common Crawl)",
            "take its texts out of its records"};
  }
  const auto begin = std::find_if(head.begin(), head.end(), [](char c) {
    return std::isspace(static_cast<unsigned char>(c)) == 0;
  });
  head.remove_prefix(static_cast<size_t>(begin - head.begin()));
  if (Begins(head, "<!--")) {
    const size_t end = head.find("-->");
    return end == std::string_view::npos ? FoundKind{} : FindMarkup(head.substr(end + 3));
  }
  if (!Begins(head, "<")) return {};
  const auto begins = [&](std::string_view with) {
    return absl::StartsWithIgnoreCase({head.data(), head.size()}, {with.data(), with.size()});
  };
  const bool declared = Begins(head, "<?xml");
  const size_t root = declared ? head.find("<", 2) : 0;
  const auto body = root == std::string_view::npos ? std::string_view() : head.substr(root);
  if (Begins(body, "<Error>") || Begins(body, "<Error ")) {
    return {FileKind::kOther,
            absl::StrCat("an error answer of an object store (", Element(body, "Code"), ")"),
            "fetch the object again"};
  }
  for (const std::string_view tag : {"<!doctype html", "<html", "<head>", "<body", "<title>"}) {
    if (!begins(tag)) continue;
    return {FileKind::kMarkup, "an HTML page",
            "is it the page of a login, or one about the file (of a hub: its address has /resolve/ "
            "or /raw/ in place of /blob/)?"};
  }
  const bool has_names = head.substr(0, head.find('>')).find(" xmlns") != std::string_view::npos;
  if (declared || has_names || begins("<!doctype ") || begins("<rss ") || begins("<svg ")) {
    return {FileKind::kMarkup, "an XML file", ""};
  }
  return {};
}

// One object that begins with an error, as the APIs of hubs answer.
FoundKind FindJsonError(std::string_view head) {
  const auto end = head.find_last_not_of(" \r\n");
  const bool whole = head.size() < kFileKindBytes && end != std::string_view::npos;
  if (!whole || head[0] != '{' || head[end] != '}' || head.find("\n{") != std::string_view::npos) {
    return {};
  }
  const size_t name = head.find('"');
  for (const std::string_view field : {"\"error\"", "\"errors\"", "\"message\"", "\"detail\"",
                                       "\"code\"", "\"Code\"", "\"status\""}) {
    if (!Begins(head, field, name)) continue;
    if (head.find("\"text\"") != std::string_view::npos) return {};
    return {FileKind::kOther, "an error answer of a server in JSON", "fetch the file again"};
  }
  return {};
}

bool Matches(const Magic& magic, std::string_view head) {
  if (!Begins(head, magic.bytes, magic.at)) return false;
  if (magic.kind == FileKind::kBzip2) {
    return Byte(head, 3) >= '1' && Byte(head, 3) <= '9' &&
           (Begins(head, "1AY&SY", 4) || Begins(head, "\x17\x72\x45\x38\x50\x90", 4));
  }
  if (magic.kind == FileKind::kJpeg) {
    const unsigned marker = Byte(head, 3);
    return marker == 0xdb || marker == 0xc4 || marker == 0xfe || (marker & 0xf0) == 0xe0 ||
           (marker & 0xfc) == 0xc0;
  }
  return !magic.spells_text || HasControlBytes(head.substr(magic.at + magic.bytes.size()));
}

}  // namespace

FoundKind DetectFileKind(std::string_view head) {
  head = head.substr(0, kFileKindBytes);
  if (IsGzip(head)) return {FileKind::kGzip, "a gzip file", "gzip -dc"};
  const std::string_view frames = SkipFrames(head);
  if (Little(frames, 0, 4) >= 0xfd2fb51e && Little(frames, 0, 4) < 0xfd2fb528) {
    return {FileKind::kOther, "a zstd file of before 0.8", "repack it: zstd -dc F | zstd -o F.zst"};
  }
  for (const Magic& magic : kMagics) {
    if (Matches(magic, frames)) return {magic.kind, magic.name, magic.remedy};
  }
  if (Little(frames, 0, 4) == 0xfd2fb528 || frames.size() < head.size()) {
    return {FileKind::kZstd, "a zstd file", "zstd -dc"};
  }
  if (FoundKind zip = FindZip(head); zip.kind != FileKind::kUnknown) return zip;
  if (IsSafetensors(head)) {
    return {FileKind::kSafetensors, "a safetensors file", "such files hold a model's weights"};
  }
  if (IsLzma(head)) return {FileKind::kXz, "an .lzma file", "xz -dc"};
  if (IsPickle(head)) {
    return {FileKind::kOther, "a Python pickle", "pickles run code; write the data otherwise"};
  }
  if (IsOnnx(head)) return {FileKind::kOther, "an ONNX model", kSaveWeights};
  if (IsArrowStream(head)) return {FileKind::kOther, "an Arrow stream", kToParquet};
  if (IsTfRecord(head)) return {FileKind::kOther, "a TFRecord file", kRewrite};
  if (FoundKind wide = FindWideText(head); wide.kind != FileKind::kUnknown) return wide;
  if (FoundKind markup = FindMarkup(head); markup.kind != FileKind::kUnknown) return markup;
  return FindJsonError(head);
}

FoundKind FindNoText(std::string_view path, std::string_view head) {
  if (path.find("://") != std::string_view::npos) path = path.substr(0, path.find_first_of("?#"));
  const auto ends = [&](std::string_view with) {
    return absl::EndsWithIgnoreCase({path.data(), path.size()}, {with.data(), with.size()});
  };
  if (ends(".br")) {
    return {FileKind::kOther, "a brotli file by its name",
            "repack it: brotli -dc F | zstd -o F.zst"};
  }
  if (ends(".snappy") || ends(".sz")) {
    return {FileKind::kOther, "a snappy file by its name", "repack it with zstd or gzip"};
  }
  if (ends(".lzo") || ends(".lzo_deflate")) {
    return {FileKind::kOther, "an LZO file by its name", "repack it with zstd or gzip"};
  }
  for (const Magic& magic : kNoText) {
    if (Matches(magic, head)) return {magic.kind, magic.name, magic.remedy};
  }
  if (!HasControlBytes(head)) return {};
  for (const std::string_view name : kPackedNames) {
    if (!ends(name)) continue;
    return {FileKind::kOther, absl::StrCat("packed by its name (", std::string(name), ")"),
            "its first bytes are those of no such file; is it damaged?"};
  }
  return {};
}

absl::Status WrongKindError(std::string_view file, const FoundKind& found,
                            std::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(absl::string_view(file.data(), file.size()),
                                                 ": is ", found.name, ", not ",
                                                 absl::string_view(wanted.data(), wanted.size()),
                                                 found.remedy.empty() ? "" : ": ", found.remedy));
}

absl::Status CheckFileKind(std::string_view file, std::string_view head, std::string_view wanted,
                           std::initializer_list<FileKind> accepted) {
  const FoundKind found = DetectFileKind(head);
  if (found.kind == FileKind::kUnknown ||
      std::find(accepted.begin(), accepted.end(), found.kind) != accepted.end()) {
    return absl::OkStatus();
  }
  return WrongKindError(file, found, wanted);
}

}  // namespace atl
