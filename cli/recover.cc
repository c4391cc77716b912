// `atoll recover`: a model out of parameter servers' folders, without any daemon.

#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/text/output.h"
#include "common/files.h"
#include "common/model/job_model.h"
#include "common/paths.h"
#include "common/state_folder.h"
#include "paramserver/storage/salvage.h"
#include "worker/model/model.h"
#include "worker/model/weights.h"

namespace atl::cli {
namespace {

absl::Status WriteModel(const ps::SalvagedJob& job, const std::string& folder) {
  JobSpec spec = job.definition.spec;
  spec.model = job.definition.facts.model;  // its files may be elsewhere
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOfJob(spec));
  ATOLL_ASSIGN_OR_RETURN(const Model model, Model::Create(config));
  std::vector<LayerLayout> layouts;
  for (const auto& layer : model.layers()) layouts.push_back(layer->layout());
  bool fits = layouts.size() == job.layers.size();
  for (size_t l = 0; fits && l < layouts.size(); ++l) {
    fits = layouts[l].size == static_cast<int64_t>(job.layers[l].size());
  }
  if (!fits) return absl::DataLossError("the model's layers are not those of its specification");
  const LayerSource source = [&](int layer) -> absl::StatusOr<std::span<const float>> {
    return job.layers[static_cast<size_t>(layer)];
  };
  if (!config.adapter.present()) return WriteModelFolder(folder, config, layouts, source);
  // The rest of the model was never on a server.
  return WriteAdapterFolder(folder, config, layouts, source,
                            job.definition.spec.model.initial_weights_path);
}

absl::Status Recover(const RecoverFlags& flags, ps::SalvagedJob* job) {
  // Held as long as they are read: no daemon may write in them.
  std::vector<std::unique_ptr<StateFolder>> folders;
  for (const std::string& folder : flags.from) {
    ATOLL_ASSIGN_OR_RETURN(const auto jobs, FindPath(folder + "/jobs"));
    if (!jobs || !jobs->is_folder) {
      return absl::NotFoundError(absl::StrCat(
          "--from ", folder, ": is not the --state-dir of a parameter server (it has no jobs)"));
    }
    auto held = StateFolder::Open(folder);
    if (!held.ok()) {
      return Annotate(held.status(), "--from: stop the daemon, or give a copy of its folder");
    }
    folders.push_back(*std::move(held));
  }
  ThreadPool pool(1);
  ATOLL_ASSIGN_OR_RETURN(*job, ps::Salvage(RealFiles(), flags.from, flags.job, &pool));
  return WriteModel(*job, flags.to);
}

}  // namespace

int RecoverCommand(const Global& global, const RecoverFlags& flags) {
  ps::SalvagedJob job;
  const absl::Status status = Recover(flags, &job);
  for (const std::string& note : job.notes) std::cerr << "atoll: " << note << "\n";
  if (!status.ok()) return Fail(status);
  if (global.structured) {
    std::cout << DocumentLine({{"job", job.job}, {"version", job.version}});
  } else {
    std::cout << flags.to << ": " << job.job << " at version " << job.version << "\n";
  }
  return 0;
}

}  // namespace atl::cli
