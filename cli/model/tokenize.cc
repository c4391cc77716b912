#include "cli/model/tokenize.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "cli/text/output.h"
#include "cli/text/printable.h"
#include "cli/text/render.h"
#include "common/bytes_text.h"
#include "common/end_signals.h"
#include "common/machine/limits.h"
#include "common/plural.h"
#include "worker/data/inputs.h"
#include "worker/data/tokenize.h"

namespace atl::cli {
namespace {

constexpr auto kDrawInterval = std::chrono::milliseconds(200);

bool IsJsonlName(std::string name) {
  for (const char* packed : {".gz", ".zst", ".xz", ".bz2", ".lzma"}) {
    if (absl::EndsWith(name, packed)) name.resize(name.size() - std::string(packed).size());
  }
  return absl::EndsWith(name, ".jsonl") || absl::EndsWith(name, ".ndjson") ||
         absl::EndsWith(name, ".parquet");
}

absl::Status FindInputs(const TokenizeFlags& flags, TokenizeOptions* options) {
  for (const std::string& input : flags.inputs) {
    LeftOut left_out;
    ATOLL_ASSIGN_OR_RETURN(const auto files, ExpandGlob(input, options->cancelled, &left_out));
    LogLeftOut(input, left_out);
    options->files.insert(options->files.end(), files.begin(), files.end());
  }
  const auto named =
      static_cast<size_t>(std::count_if(options->files.begin(), options->files.end(), IsJsonlName));
  if (flags.field.empty() && named != 0 && named != options->files.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(named, " of ", options->files.size(),
                     " files are JSONL by their names, the others text: give --field if all are "
                     "JSONL, else tokenize them apart"));
  }
  options->jsonl = !flags.field.empty() || named > 0;
  if (!flags.field.empty()) options->field = flags.field;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int32_t>> EndToken(const TokenizeFlags& flags,
                                                const Tokenizer& tokenizer) {
  if (flags.end == "none") return std::nullopt;
  if (flags.end.empty()) return EndOfText(tokenizer, flags.tokenizer);
  const auto id = tokenizer.TokenId(flags.end);
  if (!id.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--end ", flags.end, ": is not a token of ", flags.tokenizer));
  }
  return id;
}

// A bar on a terminal, redrawn now and then.
class ProgressBar {
 public:
  void Draw(const TokenizeProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now - drawn_ < kDrawInterval) return;
    drawn_ = now;
    const double share = progress.bytes_total == 0 ? 0
                                                   : static_cast<double>(progress.bytes_read) /
                                                         static_cast<double>(progress.bytes_total);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    WriteControl(std::cerr, "\r");
    std::cerr << Bar(std::min(1.0, share), 40)
              << absl::StrFormat(" %d tokens, %s/s ", progress.tokens,
                                 BytesText(static_cast<int64_t>(
                                     static_cast<double>(progress.bytes_read) / seconds)));
    WriteControl(std::cerr, "\x1b[K");
    std::cerr << std::flush;
  }
  void End() {
    if (drawn_ != start_) std::cerr << "\n";
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point drawn_ = start_;
};

absl::StatusOr<ShardIndex> Run(const TokenizeFlags& flags) {
  if (absl::StrContains(flags.folder, "://")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--to ", flags.folder, ": must be a local folder; copy it to the bucket afterwards"));
  }
  TokenizeOptions options;
  std::atomic<bool> interrupted = false;
  EndSignals signals;
  signals.Watch([&](const char*) { interrupted = true; });
  options.cancelled = [&] { return interrupted.load(); };
  ATOLL_RETURN_IF_ERROR(FindInputs(flags, &options));
  ATOLL_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(flags.tokenizer));
  options.tokenizer = tokenizer.get();
  ATOLL_ASSIGN_OR_RETURN(options.end_of_text, EndToken(flags, *tokenizer));
  options.threads = flags.threads > 0 ? flags.threads : ReadMachineLimits().cpus;
  options.shard_tokens_max = flags.shard_tokens;
  options.skip_bad_documents = flags.skip_bad;
  ProgressBar bar;
  options.progress = [&](const TokenizeProgress& progress) { bar.Draw(progress); };
  auto index = Tokenize(options, flags.folder);
  bar.End();
  if (absl::IsAborted(index.status())) {
    return absl::AbortedError(absl::StrCat("interrupted; ", flags.folder, " is as it was before"));
  }
  return index;
}

}  // namespace

int TokenizeCommand(const Global& global, const TokenizeFlags& flags) {
  if (flags.threads < 0 || flags.threads > 1024 || flags.shard_tokens < 1) {
    return FailUsage("--threads must be from 0 to 1024, --shard-tokens at least 1");
  }
  const auto index = Run(flags);
  if (!index.ok()) return Fail(index.status());
  if (index->skipped.count > 0) {
    std::cerr << "atoll: warning: " << SkippedText(index->skipped) << "\n";
  }
  if (global.structured) {
    const nlohmann::json answer = {
        {"folder", flags.folder},         {"tokens", index->tokens},
        {"documents", index->documents},  {"skipped", index->skipped.count},
        {"shards", index->shards.size()}, {"token_bits", index->token_bits}};
    std::cout << DocumentLine(
        answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    std::cout << absl::StrCat(flags.folder, ": ", CountText(index->tokens, "token"), " of ",
                              CountText(index->documents, "document"), " in ",
                              CountText(std::ssize(index->shards), "shard"), " of ",
                              index->token_bits, " bits\n");
  }
  return 0;
}

}  // namespace atl::cli
