#include "coordinator/planner/cluster/catalogue.h"

#include <cctype>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "common/nearest.h"

namespace atl::plan {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::string Lower(absl::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

const std::vector<DeviceType>& Devices() {
  // TFLOP/s dense half precision, GB/s, GiB, GB/s per direction (NVLink or PCIe).
  static const auto* devices = new std::vector<DeviceType>{
      {"p100", 18.7e12, 732e9, 16 * kGiB, 16e9},
      {"v100", 125e12, 900e9, 32 * kGiB, 150e9},
      {"p4", 5.5e12, 192e9, 8 * kGiB, 16e9},
      {"t4", 65e12, 320e9, 16 * kGiB, 16e9},
      {"a10", 125e12, 600e9, 24 * kGiB, 32e9},
      {"a10g", 70e12, 600e9, 24 * kGiB, 32e9},
      {"a30", 165e12, 933e9, 24 * kGiB, 100e9},
      {"a40", 149.7e12, 696e9, 48 * kGiB, 56e9},
      {"a6000", 154.8e12, 768e9, 48 * kGiB, 56e9},
      {"a100-40", 312e12, 1555e9, 40 * kGiB, 300e9},
      {"a100-80", 312e12, 2039e9, 80 * kGiB, 300e9},
      {"h100", 989e12, 3350e9, 80 * kGiB, 450e9},
      {"h800", 989e12, 3350e9, 80 * kGiB, 200e9},
      {"h200", 989e12, 4800e9, 141 * kGiB, 450e9},
      {"gh200", 989e12, 4000e9, 96 * kGiB, 450e9},
      {"b200", 2250e12, 8000e9, 180 * kGiB, 900e9},
      {"h20", 148e12, 4000e9, 96 * kGiB, 450e9},
      {"l4", 121e12, 300e9, 24 * kGiB, 32e9},
      {"l20", 119.5e12, 864e9, 48 * kGiB, 32e9},
      {"l40", 181e12, 864e9, 48 * kGiB, 32e9},
      {"l40s", 362e12, 864e9, 48 * kGiB, 32e9},
      {"rtx2080ti", 53.8e12, 616e9, 11 * kGiB, 16e9},
      {"rtx3080", 59.5e12, 760e9, 10 * kGiB, 32e9},
      {"rtx3090", 71.2e12, 936e9, 24 * kGiB, 32e9},
      {"rtx4090", 165.2e12, 1008e9, 24 * kGiB, 32e9},
      {"rtx4090d", 147e12, 1008e9, 24 * kGiB, 32e9},
      {"rtx5090", 209.5e12, 1792e9, 32 * kGiB, 64e9},
      {"rtx6000-ada", 364e12, 960e9, 48 * kGiB, 32e9},
  };
  return *devices;
}

// "NVIDIA GeForce RTX 4090": nvidia, geforce, rtx, 4090.
std::vector<std::string> Words(absl::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : Lower(name)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

// A type's chip: "a100" of a100-80, "rtx6000ada" of rtx6000-ada.
std::string Chip(const std::string& name) {
  const size_t dash = name.find('-');
  if (dash == std::string::npos) return name;
  const std::string rest = name.substr(dash + 1);
  const bool memory = std::isdigit(static_cast<unsigned char>(rest[0])) != 0;
  return memory ? name.substr(0, dash) : name.substr(0, dash) + rest;
}

// Chips of another maker: "mi300x", "instinct mi250".
bool IsInstinct(absl::string_view name) {
  for (const std::string& word : Words(name)) {
    if (word == "instinct") return true;
    if (word.size() > 2 && word.substr(0, 2) == "mi" &&
        std::isdigit(static_cast<unsigned char>(word[2])) != 0) {
      return true;
    }
  }
  return false;
}

// The type whose chip the words name, alone or several one after the other; null: none. Of several
// the one with the longest name.
const DeviceType* FindByChip(absl::string_view name) {
  const std::vector<std::string> words = Words(name);
  const DeviceType* found = nullptr;
  for (const DeviceType& type : Devices()) {
    const std::string chip = Chip(type.name);
    bool named = false;
    for (size_t first = 0; first < words.size(); ++first) {
      std::string joined;
      for (size_t w = first; w < words.size() && joined.size() < chip.size(); ++w) {
        joined += words[w];
        named = named || joined == chip;
      }
    }
    if (named && (found == nullptr || chip.size() >= Chip(found->name).size())) found = &type;
  }
  return found;
}

}  // namespace

std::vector<std::string> DeviceTypeNames() {
  std::vector<std::string> names;
  for (const DeviceType& type : Devices()) names.push_back(type.name);
  return names;
}

double DeviceType::AllReduceSeconds(int devices, double bytes) const {
  const auto described = ring_links.find(devices);
  const RingLink ring =
      described == ring_links.end() ? RingLink{0, link_bytes_per_s} : described->second;
  return 2.0 * (devices - 1) * ring.latency_s +
         2.0 * (devices - 1) / devices * bytes / ring.bytes_per_s;
}

absl::StatusOr<DeviceType> FindDeviceType(absl::string_view name) {
  const std::string lower = Lower(name);
  for (const DeviceType& type : Devices()) {
    if (type.name == lower) return type;
  }
  const std::string what = absl::StrCat("device type \"", absl::CHexEscape(name), "\"");
  if (IsInstinct(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is an AMD GPU: Atoll runs on NVIDIA's and on CPUs"));
  }
  const DeviceType* chip = FindByChip(name);
  const std::string nearest = chip != nullptr ? chip->name : NearestName(lower, DeviceTypeNames());
  return absl::NotFoundError(
      absl::StrCat(what, " is not in the catalogue (", absl::StrJoin(DeviceTypeNames(), ", "), ")",
                   nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?"),
                   nearest.empty() ? "; use one of these, give" : " Otherwise give",
                   " its figures under [[types]], or a profile with times of this type"));
}

std::optional<DeviceType> FindDeviceTypeByKind(absl::string_view kind) {
  const DeviceType* type = FindByChip(kind);
  if (type == nullptr) return std::nullopt;
  return *type;
}

int64_t Model::parameters() const {
  int64_t sum = 0;
  for (const Layer& layer : layers) sum += layer.parameters;
  return sum;
}

const std::vector<TransformerShape>& TransformerShapes() {
  static const auto* shapes = new std::vector<TransformerShape>{
      {"gpt2", 12, 768, 12, 0, 0, 50257, 1024},
      {"gpt2-medium", 24, 1024, 16, 0, 0, 50257, 1024},
      {"gpt2-large", 36, 1280, 20, 0, 0, 50257, 1024},
      {"gpt2-xl", 48, 1600, 25, 0, 0, 50257, 1024},
      {"gpt3-1.3b", 24, 2048, 16, 0, 0, 50257, 2048},
      {"gpt3-2.7b", 32, 2560, 32, 0, 0, 50257, 2048},
      {"gpt3-6.7b", 32, 4096, 32, 0, 0, 50257, 2048},
      {"gpt3-13b", 40, 5120, 40, 0, 0, 50257, 2048},
      {"gpt3-22b", 48, 6144, 64, 0, 0, 50257, 2048},
      {"gpt3-175b", 96, 12288, 96, 0, 0, 50257, 2048},
      {"llama-1b", 16, 2048, 32, 8, 8192, 128256, 4096, true, true, false},
      {"llama-7b", 32, 4096, 32, 0, 11008, 32000, 2048, true, false, false},
      {"llama-8b", 32, 4096, 32, 8, 14336, 128256, 4096, true, false, false},
      {"llama-13b", 40, 5120, 40, 0, 13824, 32000, 2048, true, false, false},
      {"llama-70b", 80, 8192, 64, 8, 28672, 32000, 4096, true, false, false},
      {"bert-small", 4, 512, 8, 0, 0, 30522, 512},
      {"bert-base", 12, 768, 12, 0, 0, 30522, 512},
      {"bert-large", 24, 1024, 16, 0, 0, 30522, 512},
  };
  return *shapes;
}

}  // namespace atl::plan
