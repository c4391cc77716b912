// `atoll export` and `atoll keygen`.

#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/model/export_folder.h"
#include "cli/model/model_folder.h"
#include "cli/text/output.h"
#include "cli/text/printable.h"
#include "cli/text/render.h"
#include "common/model/job_model.h"
#include "common/protocol/wire.h"
#include "worker/data/image_folder.h"
#include "worker/export.h"

namespace atl::cli {
namespace {

constexpr int kExportTries = 5;  // a round may be committed while the model is pulled

// Adds what the job's data say of its model. NOT_FOUND: they are not on this machine.
absl::Status AddFromData(const DataSpec& data, const std::string& folder) {
  if (!data.tokenizer_path.empty()) return CopyTokenizer(data.tokenizer_path, folder).status();
  if (data.format != DataFormat::kImageFolder) return absl::OkStatus();
  // Sources of a mixture, and sites, have the same classes.
  const std::string& path = !data.sources.empty() ? data.sources[0].path
                            : !data.sites.empty() ? data.sites[0].path
                                                  : data.path;
  const auto images = ListImageFolder(path);
  if (!images.ok()) {
    return absl::NotFoundError(
        absl::StrCat(images.status().message(), "; the exported model has no names of classes"));
  }
  return WriteClassNames(folder, images->classes);
}

absl::Status ExportOnce(Client& client, TensorClient& tensors, const std::string& job,
                        const ExportFlags& flags, Version* version) {
  const std::string& folder = flags.folder;
  ATOLL_ASSIGN_OR_RETURN(v1::Job message, client.Get(job));
  *version = message.summary().version();
  if (*version < 0) {
    return absl::FailedPreconditionError(absl::StrCat(job, " has no committed version yet (",
                                                      StateName(message.summary().state()),
                                                      "); try again when it has"));
  }
  ATOLL_ASSIGN_OR_RETURN(const JobSpec spec, Decode(message.mutable_spec()));
  worker::ExportRequest request;
  request.job = job;
  request.version = *version;
  request.folder = folder;
  request.weight_type = *FindWeightType(flags.dtype);  // checked where flags are read
  ATOLL_ASSIGN_OR_RETURN(request.config, ModelConfigOfJob(spec));
  request.base = spec.model.initial_weights_path;
  request.merge = flags.merge;
  request.ema = flags.ema;
  if (flags.ema && spec.inner.ema == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", job, " keeps no moving average (inner.ema): export without --ema"));
  }
  for (const v1::ShardPlacement& shard : message.shards()) {
    request.shards.push_back({shard.shard(), shard.layer(), shard.begin(), shard.elements(),
                              shard.server(), shard.endpoint(), shard.public_key()});
  }
  const bool terminal = isatty(STDERR_FILENO) == 1;
  double shown = 1;
  const absl::Status status = worker::ExportModel(tensors, request, [&](double share) {
    if (!terminal) return;
    WriteControl(std::cerr, "\r");
    std::cerr << Bar(share, 40) << (share < 1 ? "" : "\n") << std::flush;
    shown = share;
  });
  if (shown < 1) std::cerr << "\n";  // the bar ends here, and a message follows
  if (!status.ok()) return status;
  for (const absl::Status& added :
       {AddFromData(spec.data, folder), CopyGenerationConfig(spec.model, folder)}) {
    if (!added.ok() && !absl::IsNotFound(added)) return added;
    if (!added.ok()) std::cerr << "atoll: " << added.message() << "\n";
  }
  return absl::OkStatus();
}

absl::Status ExportModel(const Global& global, const ExportFlags& flags, Version* version) {
  ATOLL_RETURN_IF_ERROR(CheckExportFolder(flags.folder));
  TensorClientOptions options;
  options.security.allow_plaintext_beyond_loopback = global.tls.insecure;
  ATOLL_ASSIGN_OR_RETURN(
      options.security.keys,
      ReadCurveKey(flags.curve_key_path.empty() ? global.curve_key_path : flags.curve_key_path));
  ATOLL_ASSIGN_OR_RETURN(const auto client, Client::Dial(global.tls, global.coordinator));
  ATOLL_ASSIGN_OR_RETURN(const std::string id, client->FindJob(flags.job));
  ATOLL_ASSIGN_OR_RETURN(const auto tensors, TensorClient::Create(options));
  absl::Status status;
  for (int attempt = 0; attempt < kExportTries; ++attempt) {
    status = ExportOnce(*client, *tensors, id, flags, version);
    if (status.ok()) {
      // The model is there in any case. A viewer may not note it.
      const absl::Status noted = client->NoteExport(id, *version).status();
      if (!noted.ok() && !absl::IsPermissionDenied(noted)) {
        std::cerr << "atoll: the coordinator has not noted the export: " << noted.message() << "\n";
      }
    }
    // The job's version was overtaken while we pulled it: what we have is of two versions.
    if (status.ok() || *version < 0 || !absl::IsFailedPrecondition(status)) return status;
  }
  return status;
}

}  // namespace

int Export(const Global& global, const ExportFlags& flags) {
  Version version = kNoVersion;
  const absl::Status status = ExportModel(global, flags, &version);
  if (!status.ok()) return Fail(status);
  if (global.structured) {
    std::cout << DocumentLine({{"job", flags.job}, {"version", version}});
  } else {
    std::cout << flags.folder << ": " << flags.job << " at version " << version << "\n";
  }
  return 0;
}

int Keygen(const Global& global, const std::string& path) {
  const absl::StatusOr<KeyPair> keys = GenerateKeyPair();
  if (!keys.ok()) return Fail(keys.status());
  if (const absl::Status status = WriteCurveKey(*keys, path); !status.ok()) return Fail(status);
  if (global.structured) {
    std::cout << DocumentLine({{"public_key", keys->public_key}});
  } else {
    std::cout << keys->public_key << "  " << std::filesystem::path(path).stem().string() << "\n";
  }
  return 0;
}

}  // namespace atl::cli
