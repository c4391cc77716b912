// `atoll tokenize`.

#ifndef ATOLL_CLI_MODEL_TOKENIZE_H_
#define ATOLL_CLI_MODEL_TOKENIZE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "common/protocol/job_spec.h"
#include "common/status.h"

namespace atl::cli {

struct TokenizeFlags {
  std::vector<std::string> inputs;  // files and globs
  std::string tokenizer;
  std::string folder;
  std::string field;  // empty: "text", where the inputs are JSONL
  std::string end;    // empty: the tokenizer's own; "none": no token ends a document
  bool skip_bad = false;
  int threads = 0;  // 0: as many as it may use cores
  int64_t shard_tokens = int64_t{1} << 28;
};

// `App` is CLI::App.
template <class App>
void AddTokenizeFlags(App& app, TokenizeFlags* flags) {
  app.add_option("IN", flags->inputs, "files or globs: text, JSONL or Parquet, also packed")
      ->required();
  app.add_option("--tokenizer", flags->tokenizer,
                 "tokenizer.json, a folder with one, or a SentencePiece .model")
      ->required();
  app.add_option("--to", flags->folder, "folder to create")->required();
  app.add_option("--field", flags->field, "the inputs are JSONL, and this field holds the text");
  app.add_flag("--skip-bad", flags->skip_bad,
               "leave out JSONL lines that are not JSON or lack the field, and count them");
  app.add_option("--end", flags->end,
                 "token after each document; \"none\": no token (default: the tokenizer's own)");
  app.add_option("--threads", flags->threads, "0: all cores")->capture_default_str();
  app.add_option("--shard-tokens", flags->shard_tokens, "maximum number of tokens of a shard")
      ->capture_default_str();
}

int TokenizeCommand(const Global& global, const TokenizeFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_MODEL_TOKENIZE_H_
