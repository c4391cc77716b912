#include "worker/data/shards.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/file_kind.h"
#include "common/files.h"
#include "common/paths.h"
#include "common/plural.h"
#include "common/status.h"
#include "common/utf8.h"
#include "worker/data/data_file.h"

namespace atl {
namespace {

using Json = nlohmann::json;
constexpr const char* kIndexName = "index.json";
constexpr const char* kFormat = "atoll-tokens";
constexpr int64_t kIndexBytesMax = 64 << 20;
constexpr size_t kReasonBytesMax = 1000;
constexpr int64_t kVocabularyMax = int64_t{1} << 31;

std::string Hex(uint64_t value) { return absl::StrFormat("%016x", value); }

absl::Status Bad(const std::string& path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("token shards ", path, ": ", problem));
}

absl::StatusOr<int64_t> Whole(const Json& json, const char* name, const std::string& path,
                              int64_t most) {
  const auto field = json.find(name);
  if (field == json.end() || !field->is_number_unsigned() || field->get<uint64_t>() > INT64_MAX ||
      field->get<int64_t>() > most) {
    return Bad(path, absl::StrCat(name, " is not a whole number up to ", most));
  }
  return field->get<int64_t>();
}

absl::StatusOr<uint64_t> Digest(const Json& json, const char* name, const std::string& path) {
  const auto field = json.find(name);
  uint64_t value = 0;
  if (field == json.end() || !field->is_string() ||
      !absl::SimpleHexAtoi(field->get<std::string>(), &value)) {
    return Bad(path, absl::StrCat(name, " is not a hexadecimal number"));
  }
  return value;
}

absl::StatusOr<ShardIndex::Shard> ParseShard(const Json& json, const std::string& path) {
  if (!json.is_object()) return Bad(path, "shards must be a list of objects");
  ShardIndex::Shard shard;
  const auto file = json.find("file");
  if (file == json.end() || !file->is_string()) return Bad(path, "a shard has no file");
  shard.file = file->get<std::string>();
  if (shard.file.empty() || shard.file == "." || shard.file == ".." ||
      shard.file.find('/') != std::string::npos) {
    return Bad(path, absl::StrCat("\"", shard.file, "\" is not a file's name in the folder"));
  }
  ATOLL_ASSIGN_OR_RETURN(shard.tokens, Whole(json, "tokens", path, int64_t{1} << 40));
  ATOLL_ASSIGN_OR_RETURN(shard.digest, Digest(json, "digest", path));
  return shard;
}

absl::StatusOr<ShardIndex> ParseIndex(const Json& json, const std::string& path) {
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    return Bad(path, "is not an index that `atoll tokenize` wrote");
  }
  ATOLL_ASSIGN_OR_RETURN(const int64_t version, Whole(json, "version", path, INT32_MAX));
  if (version != 1) return Bad(path, absl::StrCat("has version ", version, ", not 1"));
  ShardIndex index;
  ATOLL_ASSIGN_OR_RETURN(index.token_bits, Whole(json, "token_bits", path, 32));
  if (index.token_bits != 16 && index.token_bits != 32) {
    return Bad(path, absl::StrCat("token_bits is ", index.token_bits, ", not 16 or 32"));
  }
  index.masked = json.value("masked", Json(false)) == true;
  if (index.masked && index.token_bits != 32) return Bad(path, "has masked tokens of 16 bits");
  ATOLL_ASSIGN_OR_RETURN(index.vocabulary, Whole(json, "vocabulary", path, kVocabularyMax));
  ATOLL_ASSIGN_OR_RETURN(index.tokenizer_digest, Digest(json, "tokenizer_digest", path));
  ATOLL_ASSIGN_OR_RETURN(index.documents, Whole(json, "documents", path, INT64_MAX));
  if (json.contains("skipped")) {
    ATOLL_ASSIGN_OR_RETURN(index.skipped.count, Whole(json, "skipped", path, INT64_MAX));
    const Json first = json.value("first_skipped", Json());
    if (first.is_string()) index.skipped.first = first.get<std::string>();
  }
  ATOLL_ASSIGN_OR_RETURN(index.tokens, Whole(json, "tokens", path, INT64_MAX));
  if (!json.value("end_of_text", Json()).is_null()) {
    ATOLL_ASSIGN_OR_RETURN(const int64_t end,
                           Whole(json, "end_of_text", path, index.vocabulary - 1));
    index.end_of_text = static_cast<int32_t>(end);
  }
  const Json shards = json.value("shards", Json());
  if (!shards.is_array()) return Bad(path, "has no list of shards");
  int64_t sum = 0;
  for (const Json& entry : shards) {
    ATOLL_ASSIGN_OR_RETURN(ShardIndex::Shard shard, ParseShard(entry, path));
    sum += shard.tokens;
    index.shards.push_back(std::move(shard));
  }
  if (sum != index.tokens) {
    return Bad(path, absl::StrCat("says ", index.tokens, " tokens, its shards ", sum));
  }
  return index;
}

Json ToJson(const ShardIndex& index) {
  Json json = {{"format", kFormat},
               {"version", 1},
               {"token_bits", index.token_bits},
               {"masked", index.masked},
               {"vocabulary", index.vocabulary},
               {"tokenizer_digest", Hex(index.tokenizer_digest)},
               {"end_of_text", index.end_of_text.has_value() ? Json(*index.end_of_text) : Json()},
               {"documents", index.documents},
               {"tokens", index.tokens},
               {"shards", Json::array()}};
  if (index.skipped.count > 0) {
    json["skipped"] = index.skipped.count;
    json["first_skipped"] = WellFormed(index.skipped.first, kReasonBytesMax);
  }
  for (const ShardIndex::Shard& shard : index.shards) {
    json["shards"].push_back(
        {{"file", shard.file}, {"tokens", shard.tokens}, {"digest", Hex(shard.digest)}});
  }
  return json;
}

}  // namespace

std::string SkippedText(const SkippedDocuments& skipped) {
  return absl::StrCat(CountText(skipped.count, "document"), skipped.count == 1 ? " is" : " are",
                      " left out; the first: ", skipped.first);
}

absl::StatusOr<ShardIndex> ReadShardIndex(const std::string& folder, const Cancelled& cancelled) {
  std::filesystem::path path = folder;
  if (path.filename() != kIndexName) path /= kIndexName;
  ATOLL_ASSIGN_OR_RETURN(const auto file, OpenDataFile(path.string(), cancelled));
  if (file->bytes() > kIndexBytesMax) return Bad(path.string(), "is too large for an index");
  std::string text(static_cast<size_t>(file->bytes()), '\0');
  ATOLL_RETURN_IF_ERROR(file->Read(0, text.data(), file->bytes(), cancelled));
  ATOLL_RETURN_IF_ERROR(CheckFileKind(absl::StrCat("token shards ", path.string()), text,
                                      "an index that `atoll tokenize` wrote"));
  // Deeper values are left out: they are copied by recursion.
  const auto is_shallow = [](int depth, Json::parse_event_t, Json&) { return depth < 8; };
  const Json json = Json::parse(text, is_shallow, /*allow_exceptions=*/false);
  return ParseIndex(json, path.string());
}

ShardWriter::ShardWriter(std::string folder, ShardIndex index, int64_t shard_tokens_max)
    : folder_(std::move(folder)),
      shard_tokens_max_(shard_tokens_max),
      index_(std::move(index)),
      hash_(XXH3_createState()) {}

ShardWriter::~ShardWriter() {
  XXH3_freeState(hash_);
  if (finished_) return;
  std::error_code error;
  const std::filesystem::path folder = folder_;
  for (const ShardIndex::Shard& shard : index_.shards) {
    std::filesystem::remove(folder / shard.file, error);
  }
  if (made_folder_) std::filesystem::remove(folder, error);
}

absl::StatusOr<std::unique_ptr<ShardWriter>> ShardWriter::Create(std::string folder,
                                                                 ShardIndex index,
                                                                 int64_t shard_tokens_max) {
  ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(folder));
  const bool there = found.has_value();
  ATOLL_ASSIGN_OR_RETURN(const auto held, RealFiles().List(folder));
  if (!held.empty()) {
    return absl::AlreadyExistsError(
        absl::StrCat(folder, ": holds something already; name a new folder, or remove it"));
  }
  ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(folder));
  index.token_bits = index.vocabulary <= (1 << 16) && !index.masked ? 16 : 32;
  std::unique_ptr<ShardWriter> writer(
      new ShardWriter(std::move(folder), std::move(index), shard_tokens_max));
  writer->made_folder_ = !there;
  return writer;
}

absl::Status ShardWriter::Begin() {
  const std::string name = absl::StrFormat("tokens-%05d.bin", index_.shards.size());
  const std::string path = (std::filesystem::path(folder_) / name).string();
  ATOLL_ASSIGN_OR_RETURN(file_, RealFiles().OpenAppend(path));
  XXH3_64bits_reset(hash_);
  index_.shards.push_back({name, 0, 0});
  return absl::OkStatus();
}

absl::Status ShardWriter::End() {
  const std::unique_ptr<AppendFile> file = std::move(file_);
  index_.shards.back().digest = XXH3_64bits_digest(hash_);
  return file->Sync();
}

absl::Status ShardWriter::Append(std::span<const int32_t> tokens) {
  while (!tokens.empty()) {
    if (file_ == nullptr) ATOLL_RETURN_IF_ERROR(Begin());
    ShardIndex::Shard& shard = index_.shards.back();
    const auto room = static_cast<size_t>(shard_tokens_max_ - shard.tokens);
    const auto part = tokens.first(std::min(room, tokens.size()));
    const size_t width = static_cast<size_t>(index_.token_bits) / 8;
    bytes_.resize(part.size() * width);
    for (size_t i = 0; i < part.size(); ++i) {
      std::memcpy(bytes_.data() + i * width, &part[i], width);  // little endian
    }
    const ByteSpan written = std::as_bytes(std::span(bytes_));
    ATOLL_RETURN_IF_ERROR(file_->Append({&written, 1}));
    XXH3_64bits_update(hash_, bytes_.data(), bytes_.size());
    shard.tokens += static_cast<int64_t>(part.size());
    index_.tokens += static_cast<int64_t>(part.size());
    if (shard.tokens == shard_tokens_max_) ATOLL_RETURN_IF_ERROR(End());
    tokens = tokens.subspan(part.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardIndex> ShardWriter::Finish() {
  if (file_ != nullptr) ATOLL_RETURN_IF_ERROR(End());
  const std::string text = ToJson(index_).dump(2) + "\n";
  const ByteSpan buffer = std::as_bytes(std::span(text));
  ATOLL_RETURN_IF_ERROR(WriteFileAtomically(
      RealFiles(), (std::filesystem::path(folder_) / kIndexName).string(), {&buffer, 1}));
  finished_ = true;
  return index_;
}

}  // namespace atl
