#include "worker/state/tier_store.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace atl::worker {
namespace {

using nlohmann::json;

constexpr int64_t kChunkElements = int64_t{1} << 20;
constexpr int64_t kManifestBytesMax = int64_t{64} << 20;
constexpr int kManifestDepthMax = 8;
constexpr int64_t kObjectsMax = 1 << 20;  // of one job
constexpr int64_t kElementsMax = int64_t{1} << 40;
constexpr int kParts = 3;
constexpr char kManifest[] = "manifest";

std::string MakeObjectName(const Unit& unit) {
  return absl::StrCat("unit-", unit.shard.layer, "-", unit.shard.rank, "-of-",
                      absl::StrJoin(unit.shard.tensor_split_ratios, "."), "-", unit.elements.begin,
                      "-", unit.elements.end);
}

std::string MakeObjectName(int32_t layer, ElementRange range) {
  return absl::StrCat("residual-", layer, "-", range.begin, "-", range.end);
}

std::array<std::span<const float>, kParts> PartsOfUnit(const StoredUnit& unit) {
  const ShardParts& parts = unit.parts->parts();
  return {parts.parameters, parts.first_moment, parts.second_moment};
}

bool IsShard(const LayerShard& shard) {
  const std::vector<int32_t>& ratios = shard.tensor_split_ratios;
  return shard.layer >= 0 && shard.rank >= 0 && shard.rank < std::ssize(ratios) &&
         std::all_of(ratios.begin(), ratios.end(), [](int32_t share) { return share > 0; });
}

std::vector<uint64_t> Checksums(std::span<const float> values) {
  std::vector<uint64_t> sums;
  for (size_t at = 0; at < values.size(); at += kChunkElements) {
    const auto chunk = values.subspan(at, std::min<size_t>(kChunkElements, values.size() - at));
    sums.push_back(XXH3_64bits(chunk.data(), chunk.size_bytes()));
  }
  return sums;
}

}  // namespace

TierStore::TierStore(std::shared_ptr<ObjectStore> objects, JobId job, Tier tier)
    : objects_(std::move(objects)), job_(std::move(job)), tier_(tier) {}

std::string TierStore::Folder(int64_t save) const {
  return absl::StrCat(job_, "/save-", save, "/");
}

absl::Status TierStore::Write(const NodeId& worker, int64_t save, int64_t optimizer_step,
                              const std::vector<StoredUnit>& units,
                              const std::vector<StoredResidual>& residuals,
                              const Cancelled& cancelled) {
  const std::string folder = absl::StrCat(Folder(save), worker, "/");
  absl::Status written = WriteAll(folder, optimizer_step, units, residuals, cancelled);
  if (written.ok()) {
    absl::StatusOr<Manifest> manifest = ReadManifest(folder + kManifest, cancelled);
    if (manifest.ok()) {
      const std::lock_guard lock(mutex_);
      manifests_[folder + kManifest] = *std::move(manifest);
      return absl::OkStatus();
    }
    written = manifest.status();
  }
  (void)objects_->Remove(folder + kManifest);
  for (const StoredUnit& unit : units) (void)objects_->Remove(folder + MakeObjectName(unit.unit));
  for (const StoredResidual& r : residuals)
    (void)objects_->Remove(folder + MakeObjectName(r.layer, r.range));
  return written;
}

absl::Status TierStore::WriteAll(const std::string& folder, int64_t optimizer_step,
                                 const std::vector<StoredUnit>& units,
                                 const std::vector<StoredResidual>& residuals,
                                 const Cancelled& cancelled) {
  json list = json::array();
  for (const StoredUnit& unit : units) {
    if (cancelled && cancelled()) return absl::AbortedError("the save is cancelled");
    std::vector<ByteSpan> buffers;
    json sums = json::array();
    for (const std::span<const float> part : PartsOfUnit(unit)) {
      buffers.push_back(std::as_bytes(part));
      sums.push_back(Checksums(part));
    }
    ATOLL_RETURN_IF_ERROR(objects_->Write(folder + MakeObjectName(unit.unit), buffers));
    list.push_back({{"layer", unit.unit.shard.layer},
                    {"rank", unit.unit.shard.rank},
                    {"tensor_shares", unit.unit.shard.tensor_split_ratios},
                    {"begin", unit.unit.elements.begin},
                    {"end", unit.unit.elements.end},
                    {"elements", unit.elements},
                    {"xxh3", sums}});
  }
  json owed = json::array();
  for (const StoredResidual& residual : residuals) {
    if (cancelled && cancelled()) return absl::AbortedError("the save is cancelled");
    const std::array<ByteSpan, 1> values{std::as_bytes(std::span(*residual.values))};
    ATOLL_RETURN_IF_ERROR(
        objects_->Write(folder + MakeObjectName(residual.layer, residual.range), values));
    owed.push_back({{"layer", residual.layer},
                    {"begin", residual.range.begin},
                    {"end", residual.range.end},
                    {"xxh3", Checksums(*residual.values)}});
  }
  const json manifest = {{"optimizer_step", optimizer_step}, {"units", list}, {"residuals", owed}};
  std::string text = manifest.dump() + "\n";
  absl::StrAppend(&text, XXH3_64bits(text.data(), text.size()), "\n");
  const std::array<ByteSpan, 1> buffers{AsBytes(text)};
  return objects_->Write(folder + kManifest, buffers);
}

absl::StatusOr<TierStore::Manifest> TierStore::ReadManifest(const std::string& name,
                                                            const Cancelled& cancelled) {
  const CallOptions call{cancelled, ""};
  ATOLL_ASSIGN_OR_RETURN(const ObjectInfo info, objects_->Stat(name, call));
  const auto bad = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat(objects_->url(), "/", name, " is damaged: ", why));
  };
  if (info.bytes > kManifestBytesMax) return bad("it is too long");
  std::string text(static_cast<size_t>(info.bytes), '\0');
  ATOLL_RETURN_IF_ERROR(
      objects_->Read(name, 0, std::as_writable_bytes(std::span(text.data(), text.size())), call));
  const size_t line = text.find('\n');
  if (line == std::string::npos ||
      text.substr(line + 1) != absl::StrCat(XXH3_64bits(text.data(), line + 1), "\n")) {
    return bad("its checksum differs");
  }
  // The JSON library converts fractions, and integers too large for it, without a check.
  bool has_fraction = false, too_deep = false;
  const auto look = [&](int depth, json::parse_event_t, const json& value) {
    has_fraction = has_fraction || value.is_number_float();
    too_deep = too_deep || depth > kManifestDepthMax;
    return !too_deep;
  };
  const json read = json::parse(text.begin(), text.begin() + static_cast<int64_t>(line), look,
                                /*allow_exceptions=*/false);
  if (has_fraction) return bad("a number that is no integer");
  if (too_deep) return bad("lists in lists");
  Manifest manifest;
  try {  // the JSON library reports missing fields and wrong types by throwing
    manifest.optimizer_step = read.at("optimizer_step").get<int64_t>();
    if (manifest.optimizer_step < 0) return bad("a step that cannot be");
    for (const json& item : read.at("units")) {
      Entry& entry = manifest.units.emplace_back();
      entry.unit.shard.layer = item.at("layer").get<int32_t>();
      entry.unit.shard.rank = item.at("rank").get<int32_t>();
      entry.unit.shard.tensor_split_ratios = item.at("tensor_shares").get<std::vector<int32_t>>();
      entry.unit.elements = {item.at("begin").get<int64_t>(), item.at("end").get<int64_t>()};
      entry.elements = item.at("elements").get<int64_t>();
      if (!IsShard(entry.unit.shard)) return bad("a shard that cannot be");
      const Range& range = entry.unit.elements;
      if (range.begin < 0 || range.end <= range.begin || range.end > entry.elements ||
          entry.elements > kElementsMax) {
        return bad("elements that cannot be");
      }
      const auto chunks = static_cast<size_t>((range.size() + kChunkElements - 1) / kChunkElements);
      for (int part = 0; part < kParts; ++part) {
        entry.checksums[part] = item.at("xxh3").at(part).get<std::vector<uint64_t>>();
        if (entry.checksums[part].size() != chunks) return bad("a checksum is missing");
      }
    }
    // Saves of before have none.
    for (const json& item : read.value("residuals", json::array())) {
      Residual& residual = manifest.residuals.emplace_back();
      residual.layer = item.at("layer").get<int32_t>();
      residual.range = {item.at("begin").get<int64_t>(), item.at("end").get<int64_t>()};
      residual.checksums = item.at("xxh3").get<std::vector<uint64_t>>();
      const ElementRange& range = residual.range;
      if (range.begin < 0 || range.end <= range.begin || range.end > kElementsMax ||
          residual.checksums.size() !=
              static_cast<size_t>((range.size() + kChunkElements - 1) / kChunkElements)) {
        return bad("a residual that cannot be");
      }
    }
  } catch (const json::exception& error) {
    return bad(error.what());
  }
  return manifest;
}

absl::Status TierStore::ForEach(
    const Cancelled& cancelled,
    const std::function<absl::Status(int64_t, const NodeId&, const std::string&)>& each) {
  const std::string prefix = absl::StrCat(job_, "/save-");
  ATOLL_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects,
                         objects_->List(prefix, kObjectsMax + 1, {cancelled, ""}));
  if (std::ssize(objects) > kObjectsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(objects_->url(), "/", prefix, "*: holds more than ", kObjectsMax,
                     " objects, of which a part alone would be seen; remove old saves"));
  }
  for (const ObjectInfo& object : objects) {
    const std::vector<std::string> parts = absl::StrSplit(object.name.substr(prefix.size()), '/');
    int64_t save = 0;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &save) || save <= 0) continue;
    ATOLL_RETURN_IF_ERROR(each(save, parts[1], object.name));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<HeldSave>> TierStore::List(int most, std::vector<std::string>* problems,
                                                      const Cancelled& cancelled) {
  std::map<int64_t, std::vector<std::string>, std::greater<>> names;  // manifests by save
  ATOLL_RETURN_IF_ERROR(
      ForEach(cancelled, [&](int64_t save, const NodeId&, const std::string& name) {
        if (absl::EndsWith(name, absl::StrCat("/", kManifest))) names[save].push_back(name);
        return absl::OkStatus();
      }));
  std::vector<HeldSave> saves;
  std::map<std::string, Manifest> read;
  for (const auto& [save, all] : names) {
    if (std::ssize(saves) == most) break;
    HeldSave held{save, 0, {}};
    for (const std::string& name : all) {
      absl::StatusOr<Manifest> manifest = ReadManifest(name, cancelled);
      if (!manifest.ok()) {
        problems->push_back(std::string(manifest.status().message()));
        continue;
      }
      held.optimizer_step = manifest->optimizer_step;
      for (const Entry& entry : manifest->units) {
        held.units.push_back({entry.unit, entry.elements, tier_});
      }
      read[name] = *std::move(manifest);
    }
    if (!held.units.empty()) saves.push_back(std::move(held));
  }
  const std::lock_guard lock(mutex_);
  manifests_ = std::move(read);
  return saves;
}

std::optional<TierStore::Found> TierStore::Find(int64_t save, const LayerShard& shard,
                                                Range elements) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, manifest] : manifests_) {
    if (!absl::StartsWith(name, Folder(save))) continue;
    for (const Entry& entry : manifest.units) {
      const Range& has = entry.unit.elements;
      if (!(entry.unit.shard == shard) || has.begin > elements.begin || elements.end > has.end) {
        continue;
      }
      return Found{
          name.substr(0, name.size() - std::string(kManifest).size()) + MakeObjectName(entry.unit),
          entry};
    }
  }
  return std::nullopt;
}

bool TierStore::Has(int64_t save, const LayerShard& shard, Range elements) {
  return Find(save, shard, elements).has_value();
}

absl::Status TierStore::Read(int64_t save, const LayerShard& shard, Range elements,
                             const ShardParts& out, const Cancelled& cancelled) {
  const std::optional<Found> found = Find(save, shard, elements);
  if (!found) return absl::NotFoundError(absl::StrCat("no such unit in save ", save));
  const auto& [name, entry] = *found;
  const int64_t size = entry.unit.elements.size();
  const Range within{elements.begin - entry.unit.elements.begin,
                     elements.end - entry.unit.elements.begin};
  std::vector<float> chunk;
  for (const auto& [part, to] : ToPartMap(out)) {
    // Whole chunks, whose checksums are known.
    for (int64_t at = within.begin / kChunkElements * kChunkElements; at < within.end;
         at += kChunkElements) {
      chunk.resize(static_cast<size_t>(std::min(kChunkElements, size - at)));
      ATOLL_RETURN_IF_ERROR(objects_->Read(
          name, 4 * (part * size + at), std::as_writable_bytes(std::span(chunk)), {cancelled, ""}));
      const uint64_t sum = XXH3_64bits(chunk.data(), chunk.size() * sizeof(float));
      if (sum != entry.checksums[part][static_cast<size_t>(at / kChunkElements)]) {
        return absl::DataLossError(
            absl::StrCat(objects_->url(), "/", name, " is damaged: its checksum differs"));
      }
      const int64_t begin = std::max(within.begin, at);
      const int64_t end = std::min(within.end, at + std::ssize(chunk));
      std::copy(chunk.begin() + (begin - at), chunk.begin() + (end - at),
                to.begin() + (begin - within.begin));
    }
  }
  return absl::OkStatus();
}

absl::Status TierStore::ReadResidual(int64_t save, int32_t layer, ElementRange range,
                                     std::span<float> out, ElementRanges* found,
                                     const Cancelled& cancelled) {
  std::vector<std::pair<std::string, Residual>> wanted;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, manifest] : manifests_) {
      if (!absl::StartsWith(name, Folder(save))) continue;
      const std::string folder = name.substr(0, name.size() - std::string(kManifest).size());
      for (const Residual& residual : manifest.residuals) {
        if (residual.layer != layer || residual.range.end <= range.begin ||
            residual.range.begin >= range.end) {
          continue;
        }
        wanted.emplace_back(folder + MakeObjectName(layer, residual.range), residual);
      }
    }
  }
  absl::Status status;
  for (const auto& [name, residual] : wanted) {
    const int64_t first = residual.range.begin, size = residual.range.size();
    const int64_t begin = std::max<int64_t>(range.begin - first, 0);
    for (int64_t at = begin / kChunkElements * kChunkElements;
         at < std::min(size, range.end - first); at += kChunkElements) {
      const auto chunk = std::make_shared<std::vector<float>>(
          static_cast<size_t>(std::min(kChunkElements, size - at)));
      const absl::Status read =
          objects_->Read(name, 4 * at, std::as_writable_bytes(std::span(*chunk)), {cancelled, ""});
      if (absl::IsAborted(read)) return read;
      status.Update(read);
      if (!read.ok()) continue;
      if (XXH3_64bits(chunk->data(), chunk->size() * sizeof(float)) !=
          residual.checksums[static_cast<size_t>(at / kChunkElements)]) {
        status.Update(absl::DataLossError(
            absl::StrCat(objects_->url(), "/", name, " is damaged: its checksum differs")));
        continue;
      }
      CopyResidual({layer, {first + at, first + at + std::ssize(*chunk)}, chunk}, layer, range, out,
                   found);
    }
  }
  return status;
}

absl::Status TierStore::RemoveAllBut(const NodeId& worker, int64_t save,
                                     const Cancelled& cancelled) {
  // Manifests go first: what has one has all of its units.
  std::vector<std::string> manifests, units;
  ATOLL_RETURN_IF_ERROR(
      ForEach(cancelled, [&](int64_t number, const NodeId& owner, const std::string& name) {
        if (owner != worker || number == save) return absl::OkStatus();
        (absl::EndsWith(name, absl::StrCat("/", kManifest)) ? manifests : units).push_back(name);
        return absl::OkStatus();
      }));
  for (const std::vector<std::string>* names : {&manifests, &units}) {
    for (const std::string& name : *names) ATOLL_RETURN_IF_ERROR(objects_->Remove(name));
  }
  const std::lock_guard lock(mutex_);
  for (const std::string& name : manifests) manifests_.erase(name);
  return absl::OkStatus();
}

}  // namespace atl::worker
