// `atoll evaluate`: scores of a model's folder in tasks.

#ifndef ATOLL_CLI_MODEL_EVALUATE_H_
#define ATOLL_CLI_MODEL_EVALUATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace atl::cli {

struct EvaluateFlags {
  std::string folder;
  std::string adapter;  // folder; empty: none
  std::vector<std::string> tasks;
  std::string kind;       // empty: by each file's fields
  std::string tokenizer;  // empty: the folder's
  int64_t limit = 0;
  int64_t context = 0;  // tokens; 0: the model's, at most 4096
  int threads = 1;
};

// `App` is CLI::App.
template <class App>
void AddEvaluateFlags(App& app, EvaluateFlags* flags) {
  app.add_option("FOLDER", flags->folder, "folder with config.json and safetensors")->required();
  app.add_option("--adapter", flags->adapter,
                 "folder of an adapter to run the model with (adapter_config.json)");
  app.add_option("--task", flags->tasks,
                 "task file, JSONL (docs/reference/data-files.md); repeatable")
      ->required()
      ->allow_extra_args(false);
  app.add_option("--kind", flags->kind, "choices, exact or perplexity; default: by the fields");
  app.add_option("--limit", flags->limit, "score only the first N items of each; 0: all")
      ->capture_default_str();
  app.add_option("--context", flags->context,
                 "tokens that the model sees at once; 0: as many as it can, at most 4096")
      ->capture_default_str();
  app.add_option("--tokenizer", flags->tokenizer, "tokenizer; default: the folder's");
  app.add_option("--threads", flags->threads, "CPU threads")->capture_default_str();
}

// Prints each task's scores with their standard errors. Needs no coordinator.
int Evaluate(const Global& global, const EvaluateFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_MODEL_EVALUATE_H_
