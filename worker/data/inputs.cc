#include "worker/data/inputs.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "common/logging.h"
#include "common/paths.h"
#include "common/status.h"
#include "worker/data/formats/decompressor.h"
#include "worker/data/parquet/rows.h"

namespace atl {
namespace {

constexpr size_t kBlockBytes = 1 << 16;
constexpr int64_t kEntriesMax = 1 << 20;  // that a pattern looks at

absl::Status InputError(const std::string& path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("data file ", path, ": ", problem));
}

// Pages are text, but no lines of JSON and no images.
bool IsTextKind(const FoundKind& found, std::string_view wanted) {
  return found.kind == FileKind::kUnknown ||
         (found.kind == FileKind::kMarkup && wanted == TextOptions().wanted);
}

using File = std::unique_ptr<DataFile>;

class PlainReader : public TextReader {
 public:
  PlainReader(File file, FoundKind kind, Cancelled cancelled)
      : TextReader(std::move(kind)),
        path_(file->path()),
        file_(std::move(file)),
        cancelled_(std::move(cancelled)) {}
  absl::Status Read(int64_t bytes_max, std::string* out) override {
    const size_t before = out->size();
    out->resize(before + static_cast<size_t>(bytes_max));
    ATOLL_ASSIGN_OR_RETURN(const size_t got,
                           Fill(out->data() + before, static_cast<size_t>(bytes_max)));
    out->resize(before + got);
    if (got == 0) ended_ = true;
    return absl::OkStatus();
  }
  bool is_plain() const override { return true; }
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

class PackedReader : public PlainReader {
 public:
  PackedReader(File file, const FoundKind& packing, Cancelled cancelled)
      : PlainReader(std::move(file), {}, std::move(cancelled)),
        packing_(packing.name),
        decompressor_(NewDecompressor(packing.kind)) {}

  // Reads the head of what is inside, which must not be packed again or of another kind.
  absl::Status Begin(std::string_view wanted) {
    while (front_.size() < kFileKindBytes && !ended_) {
      ATOLL_RETURN_IF_ERROR(Unpack(kFileKindBytes - front_.size(), &front_));
    }
    ended_ = false;  // `front_` is still to be read
    kind_ = DetectFileKind(front_);
    if (IsTextKind(kind_, wanted)) return absl::OkStatus();
    return WrongKindError(absl::StrCat("data file ", path_, " (", packing_, "): what is inside"),
                          kind_, wanted);
  }

  bool is_plain() const override { return false; }
  absl::Status Read(int64_t bytes_max, std::string* out) override {
    if (front_.empty()) return Unpack(static_cast<size_t>(bytes_max), out);
    const size_t bytes = std::min(front_.size(), static_cast<size_t>(bytes_max));
    out->append(front_, 0, bytes);
    front_.erase(0, bytes);
    return absl::OkStatus();
  }

 private:
  absl::Status Unpack(size_t bytes_max, std::string* out) {
    const size_t before = out->size();
    out->resize(before + bytes_max);
    std::span<uint8_t> room(reinterpret_cast<uint8_t*>(out->data()) + before, bytes_max);
    const absl::Status status = Fill(&room);
    out->resize(out->size() - room.size());
    if (status.ok() && out->size() == before) ended_ = true;
    return status;
  }
  absl::Status Fill(std::span<uint8_t>* room) {
    while (!room->empty()) {
      const size_t free = room->size();
      if (const absl::Status status = decompressor_->Decompress(&input_, room); !status.ok()) {
        return Annotate(status, absl::StrCat("data file ", path_));
      }
      if (room->empty() || (!input_.empty() && room->size() < free)) continue;
      if (!input_.empty()) return InputError(path_, "its compressed data is damaged");
      ATOLL_ASSIGN_OR_RETURN(const size_t got, PlainReader::Fill(block_.data(), block_.size()));
      input_ = std::span(block_).first(got);
      if (got > 0) continue;
      if (room->size() < free) continue;  // the last of it
      return decompressor_->inside() ? InputError(path_, "its compressed data breaks off")
                                     : absl::OkStatus();
    }
    return absl::OkStatus();
  }

  const std::string packing_;
  const std::unique_ptr<Decompressor> decompressor_;
  std::vector<uint8_t> block_ = std::vector<uint8_t>(kBlockBytes);
  std::span<const uint8_t> input_;  // of block_, what is left
  std::string front_;               // unpacked, and still to be read
};

// Rows of a Parquet file as lines.
class ParquetReader : public TextReader {
 public:
  static absl::StatusOr<std::unique_ptr<TextReader>> Open(File file, const TextOptions& options) {
    auto reader = std::make_unique<ParquetReader>(std::move(file), options.cancelled);
    DataFile* const data = reader->file_.get();
    auto rows = parquet::Rows::Open(
        [data, cancelled = options.cancelled](int64_t offset, char* out, int64_t bytes) {
          return data->Read(offset, out, bytes, cancelled);
        },
        data->bytes(), options.columns, options.used_columns);
    ATOLL_RETURN_IF_ERROR(reader->Named(rows.status()));
    reader->rows_ = *std::move(rows);
    return reader;
  }
  ParquetReader(File file, Cancelled cancelled)
      : TextReader({}), file_(std::move(file)), cancelled_(std::move(cancelled)) {}

  absl::Status Read(int64_t bytes_max, std::string* out) override {
    if (cancelled_ && cancelled_()) {
      return absl::AbortedError(
          absl::StrCat("data file ", file_->path(), ": reading is interrupted"));
    }
    while (std::ssize(lines_) - at_ < bytes_max && !rows_->ended()) {
      ATOLL_RETURN_IF_ERROR(Named(rows_->AppendRow(&lines_)));
    }
    const int64_t bytes = std::min(bytes_max, std::ssize(lines_) - at_);
    out->append(lines_, static_cast<size_t>(at_), static_cast<size_t>(bytes));
    at_ += bytes;
    if (at_ < std::ssize(lines_)) return absl::OkStatus();
    lines_.clear();
    at_ = 0;
    return absl::OkStatus();
  }
  bool is_plain() const override { return false; }
  bool ended() const override { return rows_->ended() && lines_.empty(); }
  int64_t file_bytes() const override { return file_->bytes(); }
  int64_t file_bytes_read() const override {
    const double share =
        rows_->rows() == 0 ? 1
                           : static_cast<double>(rows_->row()) / static_cast<double>(rows_->rows());
    return static_cast<int64_t>(share * static_cast<double>(file_->bytes()));
  }

 private:
  // The file's own errors name it.
  absl::Status Named(const absl::Status& status) const {
    if (status.ok() || absl::StrContains(status.message(), file_->path())) return status;
    return Annotate(status, absl::StrCat("data file ", file_->path()));
  }

  const File file_;
  const Cancelled cancelled_;
  std::unique_ptr<parquet::Rows> rows_;
  std::string lines_;
  int64_t at_ = 0;  // in lines_, which were read so far
};

struct OpenedText {
  File file;
  FoundKind kind;
};

// INVALID_ARGUMENT: it is of a kind that is neither text nor packed text.
absl::StatusOr<OpenedText> OpenText(const std::string& path, std::string_view wanted, bool parquet,
                                    const Cancelled& cancelled) {
  const std::string name = absl::StrCat("data file ", path);
  OpenedText text;
  ATOLL_ASSIGN_OR_RETURN(text.file, OpenDataFile(path, cancelled));
  ATOLL_ASSIGN_OR_RETURN(const std::string head, ReadFileHead(*text.file, cancelled));
  text.kind = DetectFileKind(head);
  if (text.kind.kind == FileKind::kUnknown) text.kind = FindNoText(path, head);
  const bool reads = IsTextKind(text.kind, wanted) ||
                     (parquet && text.kind.kind == FileKind::kParquet) ||
                     NewDecompressor(text.kind.kind) != nullptr;
  if (!reads) return WrongKindError(name, text.kind, wanted);
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadFileHead(const DataFile& file, const Cancelled& cancelled) {
  std::string head(static_cast<size_t>(std::min<int64_t>(file.bytes(), kFileKindBytes)), '\0');
  ATOLL_RETURN_IF_ERROR(file.Read(0, head.data(), std::ssize(head), cancelled));
  return head;
}

absl::StatusOr<std::vector<std::string>> ExpandGlob(const std::string& path,
                                                    const Cancelled& cancelled, LeftOut* left_out) {
  if (absl::StartsWith(path, "http://") || absl::StartsWith(path, "https://")) {
    // The part behind the first '?' may be anything.
    const size_t star = path.find_first_of("*?");
    if (star == std::string::npos || path[star] == '?') return std::vector<std::string>{path};
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", path,
        ": a web server lists no files, so that \"*\" names none; name each (data.sources)"));
  }
  if (FindPattern(path) == std::string::npos) return std::vector<std::string>{path};
  if (IsRemotePath(path)) return ExpandRemoteGlob(path, cancelled, left_out);
  const std::string what = absl::StrCat("data path ", path);
  const auto itself = FindPath(path);
  if (!itself.ok()) return Annotate(itself.status(), what);
  if (*itself && (*itself)->is_file) return std::vector<std::string>{path};
  LeftOut all;
  if (left_out == nullptr) left_out = &all;
  auto found = ExpandPattern(RealFiles(), path, kEntriesMax, left_out);
  if (!found.ok()) return Annotate(found.status(), what);
  const bool reads_below = absl::StrContains(path, "**");
  std::string folder;
  std::erase_if(*found, [&](const std::string& file) {
    if (file.back() != '/') return false;
    folder = file;
    if (!reads_below) left_out->Add(file, "a folder");
    return true;
  });
  if (!found->empty()) return *std::move(found);
  if (folder.empty()) return absl::NotFoundError(absl::StrCat(what, ": no file matches"));
  return absl::FailedPreconditionError(absl::StrCat(what, ": folders alone match, as ", folder,
                                                    ": name the files in them (", folder,
                                                    "*), or all below (", folder, "**)"));
}

void LogLeftOut(const std::string& path, const LeftOut& left_out) {
  if (const std::string text = left_out.Text(); !text.empty()) {
    LogWarning("data", "data path ", path, ": ", text);
  }
}

absl::Status Problems::Take(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  const std::string message(status.message());
  if (std::find(messages_.begin(), messages_.end(), message) == messages_.end()) {
    messages_.push_back(message);
  }
  return absl::OkStatus();
}

absl::Status Problems::Status(int64_t files) const {
  if (messages_.empty()) return absl::OkStatus();
  if (messages_.size() == 1) return absl::InvalidArgumentError(messages_[0]);
  std::string text =
      absl::StrCat(messages_.size(), " of ", files, " files are not what they should be:");
  for (const std::string& message : messages_) absl::StrAppend(&text, "\n  ", message);
  return absl::InvalidArgumentError(text);
}

absl::StatusOr<bool> IsCompressed(const std::string& path, const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(const OpenedText text,
                         OpenText(path, "text", /*parquet=*/false, cancelled));
  return NewDecompressor(text.kind.kind) != nullptr;
}

absl::StatusOr<std::unique_ptr<TextReader>> TextReader::Open(const std::string& path,
                                                             const TextOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(OpenedText text,
                         OpenText(path, options.wanted, options.jsonl, options.cancelled));
  if (text.kind.kind == FileKind::kParquet) {
    return ParquetReader::Open(std::move(text.file), options);
  }
  if (NewDecompressor(text.kind.kind) == nullptr) {
    return std::make_unique<PlainReader>(std::move(text.file), std::move(text.kind),
                                         options.cancelled);
  }
  auto reader = std::make_unique<PackedReader>(std::move(text.file), text.kind, options.cancelled);
  ATOLL_RETURN_IF_ERROR(reader->Begin(options.wanted));
  return reader;
}

}  // namespace atl
