#include "paramserver/storage/log.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/status.h"
#include "paramserver/storage/codec.h"

namespace atl::ps {
namespace {

constexpr char kLogMagic[9] = "ATOLLLOG";
constexpr uint32_t kRecordMagic = 0x52474f4c;  // "LOGR"
constexpr size_t kAlign = 8;

struct SegmentHead {
  char magic[8];
  uint32_t format;
  uint32_t zero;
  uint64_t first;
  uint64_t checksum;  // of all before it
};
static_assert(sizeof(SegmentHead) == 32);

struct RecordHead {
  uint32_t magic;
  uint32_t zero;
  uint64_t sequence;
  uint64_t synced;
  uint64_t field_bytes;
  uint64_t payload_bytes;
  uint64_t fields_checksum;
  uint64_t payload_checksum;
  uint64_t checksum;  // of all before it
};
static_assert(sizeof(RecordHead) == 64);

template <class Head>
uint64_t HeadChecksum(const Head& head) {
  return Checksum(std::as_bytes(std::span(&head, 1)).first(sizeof(Head) - sizeof(uint64_t)));
}

std::string SegmentName(LogSequence first) { return absl::StrFormat("log-%020d", first); }

// The sequence in a segment's name, or nothing if it is another file.
std::optional<LogSequence> SegmentFirst(const std::string& name) {
  LogSequence first = 0;
  if (name.size() != 24 || name.compare(0, 4, "log-") != 0) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), first);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return first;
}

size_t Padding(size_t bytes) { return (kAlign - bytes % kAlign) % kAlign; }

// One record of a segment in memory.
struct RecordView {
  RecordHead head;
  std::span<const std::byte> fields, payload;
  size_t end = 0;  // offset of what follows
};

// The record at `offset`, if there is a whole and undamaged one.
std::optional<RecordView> RecordAt(std::span<const std::byte> segment, size_t offset) {
  RecordView view;
  if (segment.size() - offset < sizeof(RecordHead)) return std::nullopt;
  std::memcpy(&view.head, segment.data() + offset, sizeof(RecordHead));
  const RecordHead& head = view.head;
  if (head.magic != kRecordMagic || head.checksum != HeadChecksum(head)) return std::nullopt;
  const size_t left = segment.size() - offset - sizeof(RecordHead);
  if (head.field_bytes > left || head.payload_bytes > left - head.field_bytes) return std::nullopt;
  view.fields = segment.subspan(offset + sizeof(RecordHead), head.field_bytes);
  view.payload =
      segment.subspan(offset + sizeof(RecordHead) + head.field_bytes, head.payload_bytes);
  const size_t body = head.field_bytes + head.payload_bytes;
  view.end = offset + sizeof(RecordHead) + body + Padding(body);
  if (view.end > segment.size()) return std::nullopt;
  const auto padding = segment.subspan(view.end - Padding(body), Padding(body));
  if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte(0); }) ||
      Checksum(view.fields) != head.fields_checksum ||
      Checksum(view.payload) != head.payload_checksum) {
    return std::nullopt;
  }
  return view;
}

// Returns whether a record behind `offset` shows that `sequence` had been durable.
bool LaterRecordVouches(std::span<const std::byte> segment, size_t offset, LogSequence sequence) {
  for (size_t at = offset; at + sizeof(RecordHead) <= segment.size(); at += kAlign) {
    RecordHead head;
    std::memcpy(&head, segment.data() + at, sizeof(head));
    if (head.magic == kRecordMagic && head.checksum == HeadChecksum(head) &&
        head.sequence > sequence && head.synced >= sequence) {
      return true;
    }
  }
  return false;
}

// Where the record behind the damaged one of this sequence begins, if it can be determined.
std::optional<size_t> AfterDamaged(std::span<const std::byte> segment, size_t offset,
                                   LogSequence sequence) {
  RecordHead head;
  if (segment.size() - offset >= sizeof(head)) {
    std::memcpy(&head, segment.data() + offset, sizeof(head));
    const size_t left = segment.size() - offset - sizeof(head);
    if (head.magic == kRecordMagic && head.checksum == HeadChecksum(head) &&
        head.sequence == sequence && head.field_bytes <= left &&
        head.payload_bytes <= left - head.field_bytes) {
      const size_t body = head.field_bytes + head.payload_bytes;
      const size_t end = offset + sizeof(head) + body + Padding(body);
      if (end <= segment.size()) return end;
    }
  }
  for (size_t at = offset + kAlign; at + sizeof(head) <= segment.size(); at += kAlign) {
    const auto record = RecordAt(segment, at);
    if (record && record->head.sequence == sequence + 1) return at;
  }
  return std::nullopt;
}

absl::Status Damaged(const std::string& path, size_t offset, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": damaged at offset ", offset, ": ", what,
                                          "; restore the file, or remove the job's folder to "
                                          "discard what this server holds of the job"));
}

class LogReader {
 public:
  LogReader(Files& files, std::string folder, LogSequence from, LogSequence covered,
            const LogOptions& options)
      : files_(files),
        folder_(std::move(folder)),
        from_(from),
        covered_(covered),
        options_(options) {}

  using Each = std::function<absl::Status(LogSequence, const LogRecord&)>;

  absl::StatusOr<LogEnd> Read(const Each& each) {
    ATOLL_ASSIGN_OR_RETURN(const auto names, files_.List(folder_));
    std::vector<LogSequence> firsts;
    for (const std::string& name : names) {
      if (const auto first = SegmentFirst(name)) firsts.push_back(*first);
    }
    end_.next_sequence = from_;
    for (size_t i = 0; i < firsts.size(); ++i) {
      const bool last = i + 1 == firsts.size();
      end_.segments[firsts[i]] = 0;
      if (!last && firsts[i + 1] <= from_) continue;  // not needed any more
      // Damage in a segment of which the snapshot contains everything does not matter.
      covered_whole_ = !last && firsts[i + 1] <= covered_ + 1;
      ATOLL_RETURN_IF_ERROR(ReadSegment(firsts[i], last, each));
      if (covered_whole_ && next_ < firsts[i + 1]) continue;
      if (!last && next_ != firsts[i + 1]) {
        return Damaged(Path(firsts[i]), 0,
                       absl::StrCat("it ends with record ", next_ - 1,
                                    ", the next segment begins "
                                    "with ",
                                    firsts[i + 1]));
      }
      end_.next_sequence = std::max(end_.next_sequence, next_);
    }
    return end_;
  }

 private:
  std::string Path(LogSequence first) const { return folder_ + "/" + SegmentName(first); }

  absl::Status ReadSegment(LogSequence first, bool last, const Each& each) {
    const std::string path = Path(first);
    ATOLL_ASSIGN_OR_RETURN(const auto bytes, files_.Read(path, options_.read_bytes_max));
    next_ = first;
    end_.segments[first] = static_cast<int64_t>(bytes.size());
    SegmentHead head{};
    if (bytes.size() >= sizeof(head)) std::memcpy(&head, bytes.data(), sizeof(head));
    const bool known = head.format == kStorageFormat;
    if (std::memcmp(head.magic, kLogMagic, sizeof(head.magic)) != 0 ||
        head.checksum != HeadChecksum(head) || !known || head.first != first) {
      const auto begin = RecordAt(bytes, std::min(sizeof(head), bytes.size()));
      if (begin && begin->head.sequence == first && first <= covered_) {
        ATOLL_RETURN_IF_ERROR(Skip(path, 0));
        return ReadRecords(path, bytes, last, each);
      }
      if (covered_whole_) return Skip(path, 0);
      if (!last || LaterRecordVouches(bytes, 0, first) ||
          (head.checksum == HeadChecksum(head) && !known)) {
        return Damaged(path, 0, "its head is not that of a log of this format");
      }
      return Cut(path, bytes.size(), 0);
    }
    return ReadRecords(path, bytes, last, each);
  }

  absl::Status ReadRecords(const std::string& path, std::span<const std::byte> bytes, bool last,
                           const Each& each) {
    size_t offset = sizeof(SegmentHead);
    while (offset < bytes.size()) {
      const auto record = RecordAt(bytes, offset);
      if (!record || record->head.sequence != next_) {
        if (const auto after =
                next_ <= covered_ ? AfterDamaged(bytes, offset, next_) : std::optional<size_t>()) {
          ATOLL_RETURN_IF_ERROR(Skip(path, offset));
          ++next_;
          offset = *after;
          continue;
        }
        if (covered_whole_) return Skip(path, offset);
        if (last && next_ <= covered_ && !LaterRecordVouches(bytes, offset, next_)) {
          next_ = covered_ + 1;
          return Skip(path, offset);
        }
        if (!last || LaterRecordVouches(bytes, offset, next_)) {
          return Damaged(path, offset, absl::StrCat("record ", next_, " is not readable"));
        }
        return Cut(path, bytes.size(), offset);
      }
      if (next_ >= from_) {
        ATOLL_RETURN_IF_ERROR(
            Annotate(Deliver(*record, each), absl::StrCat(path, ": at offset ", offset)));
      }
      ++next_;
      offset = record->end;
    }
    return absl::OkStatus();
  }

  // Only the first is reported.
  absl::Status Skip(const std::string& path, size_t offset) {
    if (end_.skipped.empty()) {
      end_.skipped = absl::StrCat(path, ": damaged at offset ", offset,
                                  ", in what the snapshot contains: left out");
    }
    return absl::OkStatus();
  }

  absl::Status Deliver(const RecordView& view, const Each& each) {
    SharedBytes payload;
    if (!view.payload.empty()) {
      auto copy =
          std::make_shared<std::vector<std::byte>>(view.payload.begin(), view.payload.end());
      payload.bytes = *copy;
      payload.owner = std::move(copy);
    }
    ATOLL_ASSIGN_OR_RETURN(const LogRecord record, DecodeRecord(view.fields, std::move(payload)));
    return each(view.head.sequence, record);
  }

  // A segment of which nothing is left is removed: its name is needed for the next record.
  absl::Status Cut(const std::string& path, size_t size, size_t offset) {
    end_.cut = absl::StrCat(path, ": cut ", size - offset, " bytes at offset ", offset,
                            ", which a crash left half written (record ", next_, ")");
    if (offset <= sizeof(SegmentHead)) {
      end_.segments.erase(next_);
      ATOLL_RETURN_IF_ERROR(files_.Remove(path));
      return files_.SyncFolder(folder_);
    }
    end_.segments.rbegin()->second = static_cast<int64_t>(offset);
    ATOLL_ASSIGN_OR_RETURN(const auto file, files_.OpenAppend(path));
    ATOLL_RETURN_IF_ERROR(file->Truncate(static_cast<int64_t>(offset)));
    return file->Sync();
  }

  Files& files_;
  const std::string folder_;
  const LogSequence from_;
  const LogSequence covered_;
  const LogOptions options_;
  bool covered_whole_ = false;  // the segment being read
  LogSequence next_ = 1;        // record of the segment being read
  LogEnd end_;
};

}  // namespace

absl::StatusOr<LogEnd> ReadLog(
    Files& files, const std::string& folder, LogSequence from, LogSequence covered,
    const LogOptions& options,
    const std::function<absl::Status(LogSequence, const LogRecord&)>& each) {
  return LogReader(files, folder, from, covered, options).Read(each);
}

LogWriter::LogWriter(Files* files, std::string folder, const LogEnd& end, LogOptions options)
    : files_(files),
      folder_(std::move(folder)),
      options_(options),
      segments_(end.segments),
      appended_(end.next_sequence - 1),
      synced_(appended_) {}

absl::Status LogWriter::BeginSegment() {
  ATOLL_RETURN_IF_ERROR(files_->MakeFolder(folder_));
  file_first_ = appended_ + 1;
  synced_bytes_ = 0;
  segments_.erase(file_first_);
  ATOLL_ASSIGN_OR_RETURN(file_, files_->OpenAppend(folder_ + "/" + SegmentName(file_first_)));
  // An earlier attempt may have left something.
  ATOLL_RETURN_IF_ERROR(file_->Truncate(0));
  SegmentHead head{{}, kStorageFormat, 0, file_first_, 0};
  std::memcpy(head.magic, kLogMagic, sizeof(head.magic));
  head.checksum = HeadChecksum(head);
  const ByteSpan buffer = std::as_bytes(std::span(&head, 1));
  ATOLL_RETURN_IF_ERROR(file_->Append(std::span(&buffer, 1)));
  return files_->SyncFolder(folder_);
}

absl::Status LogWriter::Append(LogSequence sequence, const LogRecord& record) {
  ATOLL_CHECK(sequence == appended_ + 1, "record ", sequence, " after ", appended_);
  if (file_ == nullptr) ATOLL_RETURN_IF_ERROR(BeginSegment());
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::byte> fields, EncodeRecord(record));
  const ByteSpan payload = GetPayload(record);
  RecordHead head{
      kRecordMagic,      0, sequence, synced_, fields.size(), payload.size(), Checksum(fields),
      Checksum(payload), 0};
  head.checksum = HeadChecksum(head);
  static constexpr std::array<std::byte, kAlign> kZeros{};
  const ByteSpan buffers[] = {std::as_bytes(std::span(&head, 1)), fields, payload,
                              ByteSpan(kZeros).first(Padding(fields.size() + payload.size()))};
  ATOLL_RETURN_IF_ERROR(file_->Append(buffers));
  appended_ = sequence;
  return absl::OkStatus();
}

absl::Status LogWriter::Sync() {
  if (file_ == nullptr) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(file_->Sync());
  synced_ = appended_;
  synced_bytes_ = file_->size();
  if (synced_bytes_ >= options_.segment_bytes) EndSegment();
  return absl::OkStatus();
}

void LogWriter::EndSegment() {
  segments_[file_first_] = synced_bytes_;
  file_.reset();
}

absl::Status LogWriter::Rollback() {
  appended_ = synced_;
  if (file_ == nullptr) return absl::OkStatus();
  if (synced_bytes_ == 0) {  // nothing of this segment is durable: begin it again
    file_.reset();
    return absl::OkStatus();
  }
  ATOLL_RETURN_IF_ERROR(file_->Truncate(synced_bytes_));
  return file_->Sync();
}

absl::Status LogWriter::Truncate(LogSequence keep_from) {
  const bool durable = file_ != nullptr && appended_ == synced_ && synced_bytes_ == file_->size();
  if (durable && file_first_ < keep_from && synced_bytes_ >= options_.rotate_bytes) EndSegment();
  bool removed = false;
  while (!segments_.empty()) {
    const auto oldest = segments_.begin();
    const auto next = std::next(oldest);
    const LogSequence next_first = next != segments_.end() ? next->first
                                   : file_ != nullptr      ? file_first_
                                                           : synced_ + 1;
    // The last segment on the disk stays even if it is empty of use: it holds the numbering.
    const bool newest = next == segments_.end() && file_ == nullptr;
    if (newest || next_first > keep_from) break;
    ATOLL_RETURN_IF_ERROR(files_->Remove(folder_ + "/" + SegmentName(oldest->first)));
    segments_.erase(oldest);
    removed = true;
  }
  return removed ? files_->SyncFolder(folder_) : absl::OkStatus();
}

int64_t LogWriter::bytes() const {
  int64_t bytes = file_ == nullptr ? 0 : file_->size();
  for (const auto& [first, size] : segments_) bytes += size;
  return bytes;
}

}  // namespace atl::ps
