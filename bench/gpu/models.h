// The models of bench/gpu; torch_gpu.py has the same ones.

#ifndef ATOLL_BENCH_GPU_MODELS_H_
#define ATOLL_BENCH_GPU_MODELS_H_

#include <string>

#include "common/check.h"
#include "common/model/config.h"

namespace atl::bench {

// "gpt2": GPT-2 of 124 M parameters, its vocabulary rounded up to 50,304 as trainers do;
// "gpt2-50257": not rounded up; "llama": a LLaMA of 1.2 B; "tiny": for a quick look. REQUIRES: one
// of these.
inline ModelConfig GpuModel(const std::string& name, int64_t seq_len) {
  ModelConfig c;
  c.max_positions = seq_len;
  if (name == "gpt2" || name == "gpt2-50257") {
    c.family = ModelFamily::kGpt2;
    c.vocab = name == "gpt2" ? 50304 : 50257;
    c.d_model = 768;
    c.layers = c.heads = c.kv_heads = 12;
    c.ffn = 3072;
    c.tied_head = true;
    return c;
  }
  ATOLL_CHECK(name == "llama" || name == "tiny", "no model ", name);
  const bool tiny = name == "tiny";
  c.family = ModelFamily::kLlama;
  c.vocab = tiny ? 1024 : 32000;
  c.d_model = tiny ? 256 : 2048;
  c.layers = tiny ? 2 : 22;
  c.heads = tiny ? 4 : 16;
  c.kv_heads = tiny ? 2 : 8;
  c.ffn = tiny ? 704 : 5632;
  return c;
}

}  // namespace atl::bench

#endif  // ATOLL_BENCH_GPU_MODELS_H_
