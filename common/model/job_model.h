// A job's model, from its numbers or from the files that it names.

#ifndef ATOLL_COMMON_MODEL_JOB_MODEL_H_
#define ATOLL_COMMON_MODEL_JOB_MODEL_H_

#include "common/model/config.h"

namespace atl {

// model.config_path or config_json, else the numbers, else (model.hidden is 0) the config.json of
// model.initial_weights_path; with the job's adapter. Refuses data.sequence_length beyond the
// model's positions, and data that do not suit the family. NOT_FOUND where a file is not there: it
// may be on the workers alone. `warning`: as of ParseModelConfig.
absl::StatusOr<ModelConfig> ModelConfigOfJob(const JobSpec& spec, std::string* warning = nullptr);

// The model that workers have found, `model`, with the job's adapter.
absl::StatusOr<ModelConfig> ModelConfigFromFacts(const ModelSpec& model, const JobSpec& spec);

// Returns what a job file means that does not name data.documents: formats jsonl and chat are
// packed (of objective dpo, pairs), but for models of masked tokens and documents that are padded.
// A model whose files are not here is taken for one of next tokens.
Documents DefaultDocuments(const JobSpec& spec);

// The config.json at `path`; `field` names it in messages.
absl::StatusOr<ModelConfig> ReadConfigFile(const std::string& path, absl::string_view field,
                                           std::string* warning = nullptr);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_JOB_MODEL_H_
