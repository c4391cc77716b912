// Folders as `atoll export` leaves them, a tiny one for every family: write_exports OUT
//
// Of the models of worker/model/parity, with weights from a seed and a tokenizer.json that came
// alone.

#include <filesystem>
#include <iostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/model/export_folder.h"
#include "common/check.h"
#include "common/model/layout.h"
#include "worker/model/weights.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModels = "worker/model/parity";
constexpr const char* kTokenizer = "tests/tokenizer/small/gpt2/tokenizer.json";

absl::Status Export(const std::string& model, const std::string& folder) {
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(model));
  const std::vector<LayerLayout> layouts = MakeLayouts(config);
  std::vector<float> values;
  ATOLL_RETURN_IF_ERROR(WriteModelFolder(
      folder, config, layouts, [&](int layer) -> absl::StatusOr<std::span<const float>> {
        const LayerLayout& layout = layouts[static_cast<size_t>(layer)];
        values.resize(static_cast<size_t>(layout.size));
        InitLayer(layout, config.layers, 1, values);
        return std::span<const float>(values);
      }));
  return cli::CopyTokenizer(kTokenizer, folder).status();
}

absl::Status ExportAll(const std::string& to) {
  for (const auto& entry : fs::directory_iterator(kModels)) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    ATOLL_RETURN_IF_ERROR(
        Export(entry.path().string(), (fs::path(to) / entry.path().filename()).string()));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl

int main(int argc, char** argv) {
  ATOLL_CHECK(argc == 2, "write_exports OUT");
  const absl::Status status = atl::ExportAll(argv[1]);
  if (!status.ok()) std::cerr << "write_exports: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
