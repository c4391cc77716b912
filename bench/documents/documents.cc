// Measures what masked documents and large vocabularies cost: attention of a sequence of eight
// documents against one of one document, on the CPU; how full packed sequences are, for three
// distributions of lengths; and the memory of a loss head that makes its logits by slices of rows.

#include "worker/data/documents.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "common/check.h"
#include "common/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/testing/case_makers.h"
#include "kernels/testing/case_run.h"
#include "worker/model/exec.h"
#include "worker/model/loss_head.h"

namespace atl::bench {
namespace {

constexpr int kRounds = 7;

void MeasureAttention(int64_t seq_len) {
  using testing::AttentionCase;
  const auto backend = NewCpuBackend(1);
  const testing::OpCase one = AttentionCase(1, seq_len, 8, 8, 64);
  const testing::OpCase eight = testing::WithDocuments(one, 1, seq_len, 8);
  testing::CaseRun whole(*backend, one, testing::Gaps::kNone);
  testing::CaseRun cut(*backend, eight, testing::Gaps::kNone);
  whole.Fill(InitialContents(one, 1));
  cut.Fill(InitialContents(eight, 1));
  const auto run = [&](testing::CaseRun& of) {
    return [&] {
      of.Forward();
      of.Backward();
      if (!of.backend().Synchronize(of.stream()).ok()) std::abort();
    };
  };
  const Comparison found = Compare(run(whole), run(cut), kRounds);
  std::printf("attention of %5lld tokens: one document %8.2f ms, eight %8.2f ms\n",
              static_cast<long long>(seq_len), 1e3 * found.base_seconds, 1e3 * found.work_seconds);
  PrintFigureAtMost(absl::StrCat("documents.attention_", seq_len), 1 / found.speed,
                    "of one document's time", 0.35);
}

// Tokens over those of the sequences that they are packed into, each with its last target.
double MeasurePacking(int64_t (*draw)(Rng&)) {
  constexpr int64_t kTokens = 2049;
  Rng rng(1);
  DocumentPacker packer(kTokens);
  std::vector<DocumentPacker::Sequence> sequences;
  int64_t at = 0;
  for (int i = 0; i < 200'000; ++i) {
    const Document document{at, std::clamp<int64_t>(draw(rng), 2, 1 << 20)};
    packer.Add(document, &sequences);
    at += document.tokens;
  }
  packer.End(&sequences);
  int64_t packed = 0;
  for (const DocumentPacker::Sequence& sequence : sequences) {
    for (const Document& part : sequence) packed += part.tokens;
  }
  return static_cast<double>(packed) / static_cast<double>(std::ssize(sequences) * kTokens);
}

void MeasurePackings() {
  struct Lengths {
    const char* name;
    int64_t (*draw)(Rng&);
  };
  for (const auto& [name, draw] :
       {Lengths{"uniform", [](Rng& rng) { return static_cast<int64_t>(1 + rng.Below(1000)); }},
        Lengths{"log_normal",
                [](Rng& rng) { return static_cast<int64_t>(std::exp(5.5 + 1.4 * rng.Normal())); }},
        Lengths{"pareto", [](Rng& rng) {
                  const double u = (1 + static_cast<double>(rng.Below(1 << 30))) / (1 << 30);
                  return static_cast<int64_t>(std::min(1e6, 100 * std::pow(u, -1 / 1.2)));
                }}}) {
    PrintFigureAtLeast(absl::StrCat("documents.packing_", name), MeasurePacking(draw),
                       "of the sequences' tokens", 0.99);
  }
}

// Measures the loss head of LLaMA 3 8B: its embedding and head alone are laid out.
void MeasureLossHead() {
  ModelConfig c;
  c.family = ModelFamily::kLlama;
  c.vocab = 128'256;
  c.d_model = 4096;
  c.layers = 1;
  c.heads = 32;
  c.kv_heads = 8;
  c.ffn = 14'336;
  c.max_positions = 8192;
  const auto backend = NewCpuBackend(1);
  const auto model = Model::Create(c);
  ATOLL_CHECK(model.ok(), std::string(model.status().message()));
  LossHead head(*backend, *model, {1, c.max_positions}, /*trains=*/true);
  Carver sizes(nullptr);
  head.Carve(sizes);
  const double whole = 4.0 * static_cast<double>(c.max_positions * c.vocab);
  std::printf("loss head: logits of %lld of %lld rows at a time, %.0f MiB\n",
              static_cast<long long>(head.rows()), static_cast<long long>(c.max_positions),
              static_cast<double>(sizes.bytes()) / (1 << 20));
  PrintFigureAtLeast("documents.logits_memory", whole / static_cast<double>(sizes.bytes()),
                     "of whole logits over the head's", 3);
}

}  // namespace
}  // namespace atl::bench

int main() {
  for (const int64_t seq_len : {2048, 4096}) atl::bench::MeasureAttention(seq_len);
  atl::bench::MeasurePackings();
  atl::bench::MeasureLossHead();
}
