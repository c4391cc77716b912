// `atoll generate`: text from a model's folder.

#ifndef ATOLL_CLI_MODEL_GENERATE_H_
#define ATOLL_CLI_MODEL_GENERATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace atl::cli {

struct GenerateFlags {
  std::string folder;
  std::string adapter;    // folder; empty: none
  std::string tokenizer;  // empty: the folder's
  std::string prompt;     // empty, and not given: standard input
  bool has_prompt = false;
  int64_t tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1;
  std::vector<std::string> stops;
  uint64_t seed = 1;
  int threads = 1;
};

// `App` is CLI::App.
template <class App>
void AddGenerateFlags(App& app, GenerateFlags* flags) {
  app.add_option("FOLDER", flags->folder, "folder with config.json and safetensors")->required();
  app.add_option("--adapter", flags->adapter,
                 "folder of an adapter to run the model with (adapter_config.json)");
  app.add_option("--prompt", flags->prompt, "text to continue; default: standard input")
      ->each([flags](const std::string&) { flags->has_prompt = true; });
  app.add_option("--tokenizer", flags->tokenizer, "tokenizer; default: the folder's");
  app.add_option("--tokens", flags->tokens, "maximum number of tokens to generate")
      ->capture_default_str();
  app.add_option("--temperature", flags->temperature,
                 "sampling temperature; 0: always the likeliest token")
      ->capture_default_str();
  app.add_option("--top-k", flags->top_k, "sample among the k likeliest tokens; 0: all");
  app.add_option("--top-p", flags->top_p,
                 "sample among the likeliest tokens whose probabilities add up to it")
      ->capture_default_str();
  app.add_option("--stop", flags->stops, "text that ends the output; repeatable");
  app.add_option("--seed", flags->seed, "seed of the sampling")->capture_default_str();
  app.add_option("--threads", flags->threads, "CPU threads")->capture_default_str();
}

// Prints the prompt and, as it is made, what follows; with --json one object at the end. Needs no
// coordinator.
int Generate(const Global& global, const GenerateFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_MODEL_GENERATE_H_
