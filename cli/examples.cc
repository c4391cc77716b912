#include "cli/examples.h"

#include "absl/strings/str_cat.h"

namespace atl::cli {
namespace {

struct Examples {
  const char* command;
  const char* one;
  const char* other;
};

// Checked by .ci/lint_commands.py: commands and flags are there.
constexpr Examples kExamples[] = {
    {"run", "atoll run", "atoll run job.toml --workers 4 --export model"},
    {"validate", "atoll validate job.toml", "atoll validate job.toml --live"},
    {"submit", "atoll submit job.toml --watch",
     "atoll submit job.toml --set schedule.train_tokens=1_000_000 --dry-run"},
    {"ls", "atoll ls -o wide", "atoll ls --state running,paused --sort age"},
    {"show", "atoll show lm-1", "atoll show lm-1 --settings"},
    {"watch", "atoll watch lm-1", "atoll watch lm-1 --json"},
    {"logs", "atoll logs lm-1 -f", "atoll logs --since 2h --severity debug"},
    {"metrics", "atoll metrics lm-1 --csv", "atoll metrics lm-1 --tensorboard runs/lm-1 --follow"},
    {"set", "atoll set lm-1 inner.learning_rate=1e-4",
     "atoll set lm-1 schedule.train_tokens=2_000_000_000 inner.schedule=wsd"},
    {"pause", "atoll pause lm-1", "atoll pause lm-1 lm-2"},
    {"resume", "atoll resume lm-1", "atoll resume lm-1 lm-2"},
    {"cancel", "atoll cancel lm-1", "atoll cancel lm-1 lm-2 --yes"},
    {"adopt", "atoll adopt lm-1", "atoll adopt lm-1 lm-2"},
    {"refill", "atoll refill lm-1 server-2", "atoll refill lm server-1"},
    {"drain", "atoll drain worker-3 --wait", "atoll drain paramserver/server-1 --undo"},
    {"rm", "atoll rm lm-1", "atoll rm --all --ended --yes"},
    {"status", "atoll status", "atoll status --watch"},
    {"verify", "atoll verify lm-1", "atoll verify lm-1 --backup coordinator.backup -o json"},
    {"export", "atoll export lm-1 --to model", "atoll export lm-1 --to model --dtype bf16"},
    {"recover", "atoll recover --from /var/lib/atoll-paramserver --to model",
     "atoll recover --from s1 s2 --job lm-1 --to model"},
    {"backup", "atoll backup --to coordinator.backup", "atoll backup --to /mnt/monday.backup"},
    {"generate", "atoll generate model --prompt \"Once upon\"",
     "atoll generate model --tokens 50 --temperature 0 < prompt.txt"},
    {"evaluate", "atoll evaluate model --task arc.jsonl",
     "atoll evaluate model --task lambada.jsonl --kind exact --limit 500"},
    {"predict", "atoll predict model --prompt \"The [MASK] is red.\"",
     "atoll predict model cat.jpeg dog.png --top-k 3"},
    {"tokenize", "atoll tokenize text.txt --tokenizer tokenizer.json --to shards",
     "atoll tokenize part-*.jsonl.gz --tokenizer llama --to shards --field text"},
    {"keygen", "atoll keygen curve.key", "atoll keygen /etc/atoll/curve.key"},
    {"profile", "atoll profile", "atoll profile lm-1 --json"},
    {"plan", "atoll plan job.toml --cluster cluster.toml", "atoll plan lm-1"},
    {"simulate", "atoll simulate job.toml --cluster cluster.toml --schedule 1f1b",
     "atoll simulate --model gpt2 --batch 16 --cluster cluster.toml"},
    {"rehearse", "atoll rehearse job.toml --cluster cluster.toml --failures failures.toml",
     "atoll rehearse job.toml --cluster cluster.toml --failures failures.toml --compare "
     "checkpoint.peer_copies=0,1,2"},
    {"replay", "atoll replay recording", "atoll replay recording --until 3:1204 --show lm-1"},
    {"trace", "atoll trace lm-1", "atoll trace lm-1 --island 1 --out step.json"},
    {"init", "atoll init --dev", "atoll init --host coordinator.example"},
    {"token", "atoll token create --role worker,paramserver --uses 8", "atoll token ls"},
    {"join", "atoll join TOKEN@coordinator.example:7000",
     "atoll join TOKEN@coordinator.example:7000 --role viewer"},
    {"revoke", "atoll revoke worker-3", "atoll revoke alice --role operator --yes"},
    {"certificates", "atoll certificates", "atoll certificates -o yaml"},
    {"audit", "atoll audit", "atoll audit -n 1000"},
    {"context", "atoll context", "atoll context paris"},
    {"doctor", "atoll doctor --no-bandwidth", "atoll doctor --state-dir /var/lib/atoll-worker"},
    {"completion", "atoll completion bash > ~/.local/share/bash-completion/completions/atoll",
     "atoll completion fish > ~/.config/fish/completions/atoll.fish"},
    {"help", "atoll help", "atoll help submit"},
    {"version", "atoll version", "atoll --version"},
};

}  // namespace

std::string ExamplesText(absl::string_view command) {
  for (const Examples& examples : kExamples) {
    if (command != examples.command) continue;
    return absl::StrCat("Examples:\n  ", examples.one, "\n  ", examples.other, "\n");
  }
  return "";
}

}  // namespace atl::cli
