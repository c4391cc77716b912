// `atoll predict`: predictions by a model's folder, for masks in a text or for images.

#ifndef ATOLL_CLI_MODEL_PREDICT_H_
#define ATOLL_CLI_MODEL_PREDICT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace atl::cli {

struct PredictFlags {
  std::string folder;
  std::vector<std::string> images;
  std::string tokenizer;  // empty: the folder's
  std::string prompt;     // empty, and not given: standard input
  bool has_prompt = false;
  int64_t top_k = 5;
  int threads = 1;
};

// `App` is CLI::App.
template <class App>
void AddPredictFlags(App& app, PredictFlags* flags) {
  app.add_option("FOLDER", flags->folder, "folder with config.json and safetensors")->required();
  app.add_option("IMAGE", flags->images, "JPEG and PNG files, for a model of images");
  app.add_option("--prompt", flags->prompt,
                 "text with [MASK], for a model of masked tokens; without it, standard input")
      ->each([flags](const std::string&) { flags->has_prompt = true; });
  app.add_option("--tokenizer", flags->tokenizer, "tokenizer; default: the folder's");
  app.add_option("--top-k", flags->top_k, "number of likeliest answers")->capture_default_str();
  app.add_option("--threads", flags->threads, "CPU threads")->capture_default_str();
}

// Prints the likeliest tokens of each mask, or classes of each image, with their probabilities.
// Needs no coordinator.
int Predict(const Global& global, const PredictFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_MODEL_PREDICT_H_
