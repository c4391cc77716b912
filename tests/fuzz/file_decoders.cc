// Files: data sets, weights, and what the daemons keep on their disks. Of a format with checksums,
// these are made right before it is read: a fuzzer does not guess them.

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/protocol/mark_file.h"
#include "common/testing/files_simulated.h"
#include "coordinator/history/history.h"
#include "coordinator/wire.h"
#include "paramserver/storage/codec.h"
#include "paramserver/storage/log.h"
#include "paramserver/storage/salvage.h"
#include "paramserver/storage/snapshot.h"
#include "proto/coordinator.pb.h"
#include "tests/fuzz/decoder.h"
#include "tests/fuzz/scratch.h"
#include "worker/data/images.h"
#include "worker/data/shards.h"
#include "worker/data/testing/image_encoders.h"
#include "worker/data/token_file.h"
#include "worker/model/safetensors.h"
#include "worker/model/weights.h"

namespace atl::fuzz {
namespace {

// Two files in one input: the first one's length, and both.
std::string Pair(const std::string& first, const std::string& second) {
  return ToBytes(static_cast<uint16_t>(first.size())) + first + second;
}
std::pair<std::string_view, std::string_view> Split(std::string_view bytes) {
  Input input(bytes);
  const size_t size = input.Take<uint16_t>();
  const std::string_view rest = input.Rest();
  return {rest.substr(0, std::min(size, rest.size())), rest.substr(std::min(size, rest.size()))};
}

// ----------------------------------------------------------------------------------- weights

bool AcceptsSafetensors(std::string_view bytes) {
  const auto reader = SafetensorsReader::Open(Folder().Write("model.safetensors", bytes));
  if (!reader.ok()) return false;
  for (const auto& [name, entry] : reader->tensors()) {
    std::vector<float> values(static_cast<size_t>(entry.size()));
    (void)reader->Read(name, values);
  }
  return true;
}

std::vector<std::string> SafetensorsSeeds() {
  const std::string header = R"({"a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
      "b": {"dtype": "BF16", "shape": [3], "data_offsets": [8, 14]}})";
  return {ToBytes(uint64_t{header.size()}) + header + std::string(14, '\1')};
}

const Registration kSafetensors({"safetensors", SafetensorsSeeds, AcceptsSafetensors});

// A model in several files, of which the input is the index.
struct TinyModel {
  TinyModel() : folder(Folder().folder() + "/tiny") {
    ModelConfig config;
    config.vocab = 5, config.d_model = 4, config.layers = 1, config.heads = 2;
    config.kv_heads = 2, config.ffn = 4, config.max_positions = 4;
    layouts = MakeLayouts(config);
    std::vector<float> layer;
    ATOLL_CHECK(WriteModelFolder(
                    folder, config, layouts,
                    [&](int number) -> absl::StatusOr<std::span<const float>> {
                      layer.assign(static_cast<size_t>(layouts[static_cast<size_t>(number)].size),
                                   1);
                      return layer;
                    },
                    /*max_shard_bytes=*/200)
                    .ok());
    std::ifstream file(folder + "/model.safetensors.index.json");
    index.assign(std::istreambuf_iterator<char>(file), {});
  }
  std::string folder, index;
  std::vector<LayerLayout> layouts;
};

const TinyModel& Tiny() {
  static const TinyModel model;
  return model;
}

bool AcceptsWeightIndex(std::string_view bytes) {
  const TinyModel& model = Tiny();
  Folder().Write("tiny/model.safetensors.index.json", bytes);
  return CheckWeights(model.folder, model.layouts).ok();
}

const Registration kWeightIndex({"weight_index",
                                 [] { return std::vector<std::string>{Tiny().index}; },
                                 AcceptsWeightIndex});

// ------------------------------------------------------------------------------------ tokens

bool ReadsTokens(DataFormat format, const std::string& path) {
  const auto file = TokenFile::Open(format, path);
  if (!file.ok()) return false;
  const auto content = file->Scan({});
  if (content.ok()) (void)file->CheckVocabulary(*content, 1000);
  std::vector<int32_t> tokens(static_cast<size_t>(std::min<int64_t>(file->tokens(), 64)));
  (void)file->Read(0, 1000, tokens);
  return true;
}

bool AcceptsTokens(std::string_view bytes) {
  constexpr DataFormat kFormats[] = {DataFormat::kTokens16, DataFormat::kTokens32,
                                     DataFormat::kChat};
  Input input(bytes);
  const DataFormat format = kFormats[input.Take<uint8_t>() % std::size(kFormats)];
  return ReadsTokens(format, Folder().Write("tokens.bin", input.Rest()));
}

std::vector<std::string> TokensSeeds() {
  const std::string header = ToBytes(int32_t{20240520}) + ToBytes(int32_t{1}) + ToBytes(int32_t{4});
  return {'\0' + header + std::string(1024 - header.size(), '\0') + std::string(8, '\1'),
          '\0' + std::string("\1\0\2\0", 4), '\1' + std::string(16, '\0'),
          '\2' + std::string(16, '\0')};
}

const Registration kTokens({"tokens", TokensSeeds, AcceptsTokens});

bool AcceptsMegatron(std::string_view bytes) {
  const auto [index, data] = Split(bytes);
  Folder().Write("m.idx", index);
  return ReadsTokens(DataFormat::kMegatron, Folder().Write("m.bin", data));
}

std::vector<std::string> MegatronSeeds() {
  const std::string head = std::string("MMIDIDX\0\0", 9) + ToBytes(uint64_t{1}) + '\10' +
                           ToBytes(uint64_t{2}) + ToBytes(uint64_t{3});
  const std::string sequences =
      ToBytes(int32_t{2}) + ToBytes(int32_t{1}) + ToBytes(int64_t{0}) + ToBytes(int64_t{4});
  const std::string documents = ToBytes(int64_t{0}) + ToBytes(int64_t{1}) + ToBytes(int64_t{2});
  return {Pair(head + sequences + documents, std::string("\1\0\2\0\3\0", 6))};
}

const Registration kMegatron({"megatron", MegatronSeeds, AcceptsMegatron});

bool AcceptsShardIndex(std::string_view bytes) {
  Folder().Write("index.json", bytes);
  return ReadShardIndex(Folder().folder()).ok();
}

std::vector<std::string> ShardIndexSeeds() {
  return {R"({"format": "atoll-tokens", "version": 1, "token_bits": 16, "vocabulary": 100,
              "tokenizer_digest": "0123456789abcdef", "documents": 1, "tokens": 5,
              "end_of_text": 7, "shards": [{"file": "tokens-00000.bin", "tokens": 5,
              "digest": "0123456789abcdef"}]})"};
}

const Registration kShardIndex({"shard_index", ShardIndexSeeds, AcceptsShardIndex});

// ------------------------------------------------------------------------------------ images

// How many it has; 0: refused.
int64_t ReadsImages(DataFormat format, const std::string& path) {
  DataSpec spec;
  spec.format = format;
  const auto set = ImageSet::Open(spec, path, 256);
  if (!set.ok()) return 0;
  std::vector<int32_t> out(static_cast<size_t>(set->shape().pixels()) + 1);
  for (const int64_t index : {int64_t{0}, set->images() - 1}) {
    set->Read(index, {.crop_padding = 2, .flip = true}, Rng(1), out);
  }
  set->Digest();
  return set->images();
}

bool AcceptsIdx(std::string_view bytes) {
  const auto [labels, images] = Split(bytes);
  Folder().Write("labels-idx1", labels);
  return ReadsImages(DataFormat::kIdx, Folder().Write("images-idx3", images)) > 0;
}

std::vector<std::string> IdxSeeds() {
  return {Pair(std::string("\0\0\10\1\0\0\0\2\3\4", 10),
               std::string("\0\0\10\3\0\0\0\2\0\0\0\2\0\0\0\3", 16) + std::string(12, 'p'))};
}

const Registration kIdx({"idx", IdxSeeds, AcceptsIdx});

bool AcceptsCifar(std::string_view bytes) {
  Input input(bytes);
  const bool fine = input.Take<uint8_t>() % 2 == 1;
  const int64_t images = ReadsImages(fine ? DataFormat::kCifar100 : DataFormat::kCifar10,
                                     Folder().Write("batch.bin", input.Rest()));
  if (images == 0) return false;
  ATOLL_CHECK(std::ssize(input.Rest()) == images * (fine ? 3074 : 3073), images);
  return true;
}

std::vector<std::string> CifarSeeds() {
  return {'\0' + std::string(2 * 3073, '\1'), '\1' + std::string(3074, '\1')};
}

const Registration kCifar({"cifar", CifarSeeds, AcceptsCifar});

bool AcceptsImageFile(std::string_view bytes) {
  const auto image = DecodeImage(bytes);
  if (!image.ok()) return false;
  std::vector<uint8_t> out(static_cast<size_t>(5 * 5 * kImageChannels));
  if (image->width * image->height < 1 << 20) ResizeToSquare(*image, 5, out);
  return true;
}

std::vector<std::string> ImageFileSeeds() {
  std::vector<std::string> seeds;
  for (const bool progressive : {false, true}) seeds.push_back(EncodeJpeg(19, 17, 3, progressive));
  for (const int channels : {1, 2, 3, 4}) seeds.push_back(EncodePng(7, 9, channels));
  return seeds;
}

const Registration kImageFile({"image_file", ImageFileSeeds, AcceptsImageFile});

// ---------------------------------------------------------------- disks of parameter servers

uint64_t NumberAt(const std::string& bytes, size_t at) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void Put(std::string& bytes, size_t at, uint64_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

uint64_t Sum(const std::string& bytes, size_t begin, size_t count) {
  return ps::Checksum(AsSpan(std::string_view(bytes).substr(begin, count)));
}

ps::SharedBytes SomeBytes(size_t count) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(count, std::byte{1});
  return {bytes, *bytes};
}

bool AcceptsLogRecord(std::string_view bytes) {
  Input input(bytes);
  const bool has_payload = input.Take<uint8_t>() % 2 == 1;
  return ps::DecodeRecord(AsSpan(input.Rest()), SomeBytes(has_payload ? 8 : 0)).ok();
}

std::vector<ps::LogRecord> Records() {
  AssignedRecord assigned;
  assigned.assignment.job = "j-1";
  assigned.assignment.shards = {{.shard = 0, .layer = 1, .elements = 2, .begin = 0}};
  CommittedRecord committed;
  committed.version = 1;
  committed.terms = {{{1, 2, 3, 0}, 0.5}};
  return {assigned,
          FencedRecord{{{1, 2, 3}}},
          ps::PushedRecord{{"j-1", 1, 2, 3, 0, 0, 0, 0}, Encoding::kFloat32, SomeBytes(8)},
          committed,
          DroppedRecord{{{1, 2, 3, 4}}},
          EndedRecord{},
          JoinedRecord{1, committed, {{1, 2, 3, 4}}},
          ps::ReceivedRecord{assigned.assignment.shards[0], 1, 1, ReceivedPart::kSlot, 0, 0,
                             SomeBytes(8)}};
}

std::vector<std::string> LogRecordSeeds() {
  std::vector<std::string> seeds;
  for (const ps::LogRecord& record : Records()) {
    const bool has_payload = record.index() == 2 || record.index() == 7;
    seeds.push_back((has_payload ? '\1' : '\0') + AsText(*ps::EncodeRecord(record)));
  }
  return seeds;
}

const Registration kLogRecord({"log_record", LogRecordSeeds, AcceptsLogRecord});

constexpr char kSegment[] = "d/log-00000000000000000001";

// Segment: the head's checksum lies at 24; a record's head of 64 bytes follows, and what it counts.
std::string WithLogChecksums(std::string bytes) {
  if (bytes.size() >= 32) Put(bytes, 24, Sum(bytes, 0, 24));
  for (size_t at = 32; at + 64 <= bytes.size();) {
    const uint64_t fields = NumberAt(bytes, at + 24), payload = NumberAt(bytes, at + 32);
    const size_t left = bytes.size() - at - 64;
    if (fields > left || payload > left - fields) break;
    Put(bytes, at + 40, Sum(bytes, at + 64, fields));
    Put(bytes, at + 48, Sum(bytes, at + 64 + fields, payload));
    Put(bytes, at + 56, Sum(bytes, at, 56));
    at += 64 + (fields + payload + 7) / 8 * 8;
  }
  return bytes;
}

bool AcceptsLog(std::string_view bytes) {
  SimulatedFiles disk(1);
  PutFile(disk, kSegment, WithLogChecksums(std::string(bytes)));
  ps::LogOptions options;
  options.read_bytes_max = 1 << 20;
  const auto end = ps::ReadLog(disk, "d", 1, /*covered=*/0, options,
                               [](ps::LogSequence, const ps::LogRecord& record) {
                                 // The record is written in the same way again.
                                 const auto again = *ps::EncodeRecord(record);
                                 ATOLL_CHECK(again.size() <= size_t{1} << 20, again.size());
                                 return absl::OkStatus();
                               });
  return end.ok() && end->next_sequence > 1;
}

std::vector<std::string> LogSeeds() {
  SimulatedFiles disk(1);
  ps::LogWriter writer(&disk, "d", {}, {});
  ps::LogSequence sequence = 1;
  for (const ps::LogRecord& record : Records()) {
    ATOLL_CHECK(writer.Append(sequence++, record).ok());
  }
  ATOLL_CHECK(writer.Sync().ok());
  return {AsText(disk.Bytes(disk.Paths().at(0)))};
}

const Registration kLog({"log", LogSeeds, AcceptsLog});

// The logs of two servers that have a layer of four elements between them.
std::string LogOfServer(ShardId shard) {
  AssignShards assign{"j-1", {{shard, 0, 2, 2 * shard}}, 1, 0, 0};
  assign.definition.facts.layers = {{"first", 4}};
  SimulatedFiles disk(1);
  ps::LogWriter writer(&disk, "d", {}, {});
  ps::LogSequence sequence = 1;
  const auto add = [&](const ps::LogRecord& record) {
    ATOLL_CHECK(writer.Append(sequence++, record).ok());
  };
  add(AssignedRecord{1, assign});
  for (const Version version : {kNoVersion, Version{0}}) {
    const ContributionId by{0, 1, 1, version};
    add(ps::PushedRecord{{"j-1", by.island, by.generation, by.incarnation, by.base_version, shard},
                         Encoding::kFloat32,
                         SomeBytes(8)});
    add(CommittedRecord{version + 1, {{by, 1}}, {}});
  }
  ATOLL_CHECK(writer.Sync().ok());
  return AsText(disk.Bytes(disk.Paths().at(0)));
}

bool AcceptsSalvage(std::string_view bytes) {
  static ThreadPool pool(1);
  const auto [first, second] = Split(bytes);
  SimulatedFiles disk(1);
  for (const auto& [folder, log] : {std::pair("a", first), std::pair("b", second)}) {
    PutFile(disk, absl::StrCat(folder, "/jobs/j-1/log-00000000000000000001"),
            WithLogChecksums(std::string(log)));
  }
  const auto job = ps::Salvage(disk, {"a", "b"}, "", &pool);
  if (!job.ok()) return false;
  ATOLL_CHECK(job->layers.size() == job->definition.facts.layers.size());
  return true;
}

std::vector<std::string> SalvageSeeds() { return {Pair(LogOfServer(0), LogOfServer(1))}; }

const Registration kSalvage({"salvage", SalvageSeeds, AcceptsSalvage});

// Snapshot: in its first 48 bytes lie, from 16 on, the head's bytes, the file's bytes, the head's
// checksum and that of the bytes before.
std::string WithSnapshotChecksums(std::string bytes) {
  if (bytes.size() < 48) return bytes;
  const uint64_t head = NumberAt(bytes, 16);
  if (head <= bytes.size() - 48) Put(bytes, 32, Sum(bytes, 48, head));
  Put(bytes, 24, bytes.size());
  Put(bytes, 40, Sum(bytes, 0, 40));
  return bytes;
}

bool AcceptsSnapshot(std::string_view bytes) {
  Input input(bytes);
  if (input.Take<uint8_t>() % 2 == 0) return ps::DecodeHead(AsSpan(input.Rest())).ok();
  SimulatedFiles disk(1);
  PutFile(disk, "d/snapshot-1", WithSnapshotChecksums(std::string(input.Rest())));
  return ps::ReadSnapshotFile(disk, "d/snapshot-1", 1 << 20).ok();
}

std::vector<std::string> SnapshotSeeds() {
  ps::Snapshot snapshot;
  snapshot.job = "j-1";
  snapshot.version = 1;
  snapshot.assignment.job = "j-1";
  snapshot.assignment.shards = {{.shard = 0, .layer = 1, .elements = 2, .begin = 0}};
  snapshot.fences = {{1, 2, 3}};
  snapshot.staged = {{"j-1", 1, 2, 3, 0, 0, 0, 0}};
  SimulatedFiles disk(1);
  ATOLL_CHECK(ps::WriteSnapshotFile(disk, "d", snapshot).ok());
  return {'\1' + AsText(disk.Bytes(disk.Paths().at(0))),
          '\0' + AsText(*ps::EncodeHead({snapshot, {1, 2}}))};
}

const Registration kSnapshot({"snapshot", SnapshotSeeds, AcceptsSnapshot});

// ---------------------------------------------------------------- the coordinator's, and marks

bool AcceptsRecord(std::string_view bytes) {
  const auto record = DecodeRecord({bytes.data(), bytes.size()});
  if (!record.ok()) return false;
  // The record is written, and read again, as the same.
  const auto again = DecodeRecord(*EncodeRecord(*record));
  ATOLL_CHECK(again.ok(), again.status().message());
  return true;
}

std::vector<std::string> RecordSeeds() {
  JobRecord job;
  job.job = "j-1";
  job.number = 1;
  job.spec.name = "j";
  MemberRecord member;
  member.name = "w";
  member.incarnation = 3;
  ProgressRecord progress;
  progress.job = "j-1";
  return {*EncodeRecord(EpochRecord{3, "0123456789abcdef", 7, false}), *EncodeRecord(member),
          *EncodeRecord(job), *EncodeRecord(progress)};
}

const Registration kRecord({"coordinator_record", RecordSeeds, AcceptsRecord});

bool AcceptsHistory(std::string_view bytes) {
  v1::JobHistory message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return false;
  JobHistory history = JobHistory::Decode(message);
  history.OnIslands(3);
  v1::JobHistory again;
  history.Encode(100, 2, &again);
  return true;
}

std::vector<std::string> HistorySeeds() {
  JobHistory history;
  history.NoteSubmitted(1000);
  history.OnIslands(2);
  DecisionRecord decision;
  decision.job = "j-1";
  decision.version = 1;
  history.OnDecision(2000, {&decision, {}});
  v1::JobHistory message;
  message.set_job("j-1");
  history.Encode(100, 2, &message);
  return {message.SerializeAsString()};
}

const Registration kHistory({"history", HistorySeeds, AcceptsHistory});

bool AcceptsMark(std::string_view bytes) {
  SimulatedFiles disk(1);
  PutFile(disk, "d/cluster", bytes);
  return ReadClusterMark(disk, "d").ok();
}

std::vector<std::string> MarkSeeds() {
  SimulatedFiles disk(1);
  ClusterMark mark;
  mark.cluster = "0123456789abcdef";
  mark.epoch = 3;
  ATOLL_CHECK(WriteClusterMark(disk, "d", mark).ok());
  return {AsText(disk.Bytes("d/cluster"))};
}

const Registration kMark({"cluster_mark", MarkSeeds, AcceptsMark});

}  // namespace
}  // namespace atl::fuzz
