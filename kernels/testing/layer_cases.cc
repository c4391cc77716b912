// Linear layers, embeddings, norms, rotary positions and attention.

#include <algorithm>
#include <cmath>

#include "kernels/testing/case_makers.h"

namespace atl::testing {
namespace {

// A table of rotary positions.
auto Angle(int64_t head_dim) {
  return [head_dim](int64_t i) {
    const int64_t half = head_dim / 2, col = i % head_dim;
    const double angle = static_cast<double>(i / head_dim) *
                         std::pow(500.0, -static_cast<double>(col % half) / half);
    return col < half ? std::cos(angle) : std::sin(angle);
  };
}

// Numbers below `limit` that jump about.
auto TokensBelow(int64_t limit) {
  return [limit](int64_t i) { return static_cast<double>((i * 7919 + 13) % limit); };
}

}  // namespace

const char* Name(Activation kind) {
  switch (kind) {
    case Activation::kNone:
      return "";
    case Activation::kGeluTanh:
      return " gelu_tanh";
    case Activation::kGeluErf:
      return " gelu_erf";
    case Activation::kSilu:
      return " silu";
    case Activation::kRelu:
      return " relu";
  }
  return "";
}

OpCase LinearCase(int64_t n, int64_t in, int64_t out, bool bias, bool add, Activation activation) {
  OpCase c;
  c.name = absl::StrCat("linear ", n, "x", in, "->", out, bias ? " bias" : "", add ? " add" : "",
                        Name(activation));
  c.args = {{"x", Role::kInput, n, in},
            {"w", Role::kInput, out, in},
            {"y", Role::kOutput, n, out},
            {"dy", Role::kInput, n, out},
            {"dx", Role::kGradient, n, in, kAct, nullptr, false, add ? "dadd" : ""},
            {"dw", Role::kGradient, out, in, kF32, nullptr, false, "dw"}};
  if (bias) {
    c.args.push_back({"bias", Role::kInput, 1, out});
    c.args.push_back({"dbias", Role::kGradient, 1, out, kF32, nullptr, false, "dbias"});
  }
  if (add) {
    c.args.push_back({"add", Role::kInput, n, out});
    c.args.push_back({"dadd", Role::kInput, n, in});  // another branch's gradient for x
  }
  if (activation != Activation::kNone) {
    // dy is taken through the activation first, as the next layer's B does.
    c.args.push_back({"pre", Role::kSaved, n, out});
    c.args.push_back({"dpre", Role::kSaved, n, out});
  }
  c.forward = [activation](Call& a) {
    a.Run(LinearForward{.x = a["x"],
                        .w = a["w"],
                        .bias = a["bias"],
                        .add = a["add"],
                        .y = a["y"],
                        .activation = activation,
                        .pre = a["pre"]});
  };
  c.backward = [activation](Call& a) {
    Tensor dy = a["dy"];
    if (activation != Activation::kNone) {
      a.Run(GatedBackward{.gate = a["pre"], .dy = dy, .dgate = a["dpre"], .kind = activation});
      dy = a["dpre"];
    }
    a.Run(LinearBackwardInput{.dy = dy, .w = a["w"], .add = a["dadd"], .dx = a["dx"]});
    a.Run(LinearBackwardWeight{.x = a["x"], .dy = dy, .dw = a["dw"], .dbias = a["dbias"]});
  };
  c.forward_flops = 2.0 * n * in * out;
  c.backward_flops = 2 * c.forward_flops;
  return c;
}

OpCase WithWiderGaps(OpCase c, const std::vector<std::string>& arguments) {
  absl::StrAppend(&c.name, ", unequal gaps");
  for (Arg& arg : c.args) {
    if (std::find(arguments.begin(), arguments.end(), arg.name) != arguments.end()) arg.gap = 8;
  }
  return c;
}

OpCase ActivatedInputCase(int64_t n, int64_t in, int64_t out, Activation activation, bool add) {
  OpCase c;
  c.name = absl::StrCat("linear of activation ", n, "x", in, "->", out, add ? " add" : "",
                        Name(activation));
  c.args = {{"pre", Role::kInput, n, in},
            {"w", Role::kInput, out, in},
            {"x", Role::kSaved, n, in},
            {"y", Role::kOutput, n, out},
            {"dy", Role::kInput, n, out},
            {"dpre", Role::kGradient, n, in, kAct, nullptr, false, add ? "other" : ""}};
  if (add) c.args.push_back({"other", Role::kInput, n, in});
  c.forward = [activation](Call& a) {
    a.Run(GatedForward{.gate = a["pre"], .y = a["x"], .kind = activation});
    a.Run(LinearForward{.x = a["x"], .w = a["w"], .y = a["y"]});
  };
  c.backward = [activation](Call& a) {
    a.Run(LinearBackwardInput{.dy = a["dy"],
                              .w = a["w"],
                              .add = a["other"],
                              .dx = a["dpre"],
                              .activation = activation,
                              .pre = a["pre"]});
  };
  c.forward_flops = c.backward_flops = 2.0 * n * in * out;
  return c;
}

OpCase WithDocuments(OpCase op_case, int64_t sequences, int64_t seq_len, int64_t documents) {
  absl::StrAppend(&op_case.name, " documents ", documents);
  // Document d of sequence s begins at (d (T - 1) + s) / documents, the first at 0.
  op_case.args.push_back({"starts", Role::kInput, 1, sequences * seq_len, kInt32, [=](int64_t i) {
                            int64_t start = 0;
                            for (int64_t d = 1; d < documents; ++d) {
                              const int64_t begin = (d * (seq_len - 1) + i / seq_len) / documents;
                              if (begin <= i % seq_len) start = begin;
                            }
                            return static_cast<double>(start);
                          }});
  return op_case;
}

OpCase EmbeddingCase(int64_t batch, int64_t seq_len, int64_t vocabulary, int64_t channels,
                     bool positions, int64_t offset) {
  const int64_t n = batch * seq_len;
  OpCase c;
  c.name = absl::StrCat("embedding ", n, "x", channels, positions ? " positions" : "");
  c.args = {{"tokens", Role::kInput, 1, n, kInt32, TokensBelow(vocabulary)},
            {"table", Role::kInput, vocabulary, channels},
            {"y", Role::kOutput, n, channels},
            {"dy", Role::kInput, n, channels},
            {"dtable", Role::kGradient, vocabulary, channels, kF32, nullptr, false, "dtable"}};
  if (positions) {
    const int64_t rows = offset + seq_len + 1;
    c.args.push_back({"positions", Role::kInput, rows, channels});
    c.args.push_back(
        {"dpositions", Role::kGradient, rows, channels, kF32, nullptr, false, "dpositions"});
  }
  c.forward = [=](Call& a) {
    a.Run(EmbeddingForward{.tokens = a["tokens"],
                           .table = a["table"],
                           .positions = a["positions"],
                           .y = a["y"],
                           .seq_len = seq_len,
                           .position_offset = offset,
                           .starts = a["starts"]});
  };
  c.backward = [=](Call& a) {
    a.Run(EmbeddingBackwardWeight{.tokens = a["tokens"],
                                  .dy = a["dy"],
                                  .dtable = a["dtable"],
                                  .dpositions = a["dpositions"],
                                  .seq_len = seq_len,
                                  .position_offset = offset,
                                  .starts = a["starts"]});
  };
  c.forward_bytes = Floats(2.0 * n * channels);
  c.backward_bytes = Floats(3.0 * n * channels);
  return c;
}

OpCase TypedEmbeddingCase(int64_t batch, int64_t seq_len, int64_t vocabulary, int64_t channels) {
  const int64_t types = 3;
  OpCase c = EmbeddingCase(batch, seq_len, vocabulary, channels, true, 0);
  c.name = absl::StrCat("typed ", c.name);
  c.args[0].value = [=](int64_t i) {
    return TokensBelow(vocabulary)(i) + static_cast<double>(i * 5 % types << kTypeShift);
  };
  c.args.push_back({"types", Role::kInput, types, channels});
  c.args.push_back({"dtypes", Role::kGradient, types, channels, kF32, nullptr, false, "dtypes"});
  c.forward = [=](Call& a) {
    a.Run(EmbeddingForward{.tokens = a["tokens"],
                           .table = a["table"],
                           .positions = a["positions"],
                           .types = a["types"],
                           .y = a["y"],
                           .seq_len = seq_len,
                           .typed = true});
  };
  c.backward = [=](Call& a) {
    a.Run(EmbeddingBackwardWeight{.tokens = a["tokens"],
                                  .dy = a["dy"],
                                  .dtable = a["dtable"],
                                  .dpositions = a["dpositions"],
                                  .dtypes = a["dtypes"],
                                  .seq_len = seq_len,
                                  .typed = true});
  };
  return c;
}

OpCase EmbeddingPartCase(int64_t batch, int64_t seq_len, int64_t first_token, int64_t rows,
                         int64_t channels) {
  OpCase c = EmbeddingCase(batch, seq_len, rows, channels, true, 0);
  c.name = absl::StrCat("part of ", c.name);
  c.args[0].value = TokensBelow(first_token + 2 * rows);
  c.forward = [=](Call& a) {
    a.Run(EmbeddingForward{.tokens = a["tokens"],
                           .table = a["table"],
                           .positions = a["positions"],
                           .y = a["y"],
                           .seq_len = seq_len,
                           .part = true,
                           .first_token = first_token});
  };
  c.backward = [=](Call& a) {
    a.Run(EmbeddingBackwardWeight{.tokens = a["tokens"],
                                  .dy = a["dy"],
                                  .dtable = a["dtable"],
                                  .dpositions = a["dpositions"],
                                  .seq_len = seq_len,
                                  .part = true,
                                  .first_token = first_token});
  };
  return c;
}

OpCase RmsNormCase(int64_t n, int64_t channels, bool add, int64_t heads) {
  const int64_t cols = heads * channels;
  OpCase c;
  c.name = absl::StrCat("rms_norm ", n, "x", channels, add ? " add" : "",
                        heads > 1 ? absl::StrCat(" heads ", heads) : "");
  c.args = {{"x", Role::kInput, n, cols},
            {"w", Role::kInput, 1, channels},
            {"y", Role::kOutput, n, cols},
            {"rstd", Role::kSaved, heads, n, kF32, nullptr, true},
            {"dy", Role::kInput, n, cols},
            {"dx", Role::kGradient, n, cols, kAct, nullptr, false, add ? "dadd" : ""},
            {"dw", Role::kGradient, 1, channels, kF32, nullptr, false, "dw"}};
  if (add) c.args.push_back({"dadd", Role::kInput, n, cols});
  c.forward = [](Call& a) {
    a.Run(NormForward{.x = a["x"], .w = a["w"], .y = a["y"], .rstd = a["rstd"]});
  };
  c.backward = [](Call& a) {
    a.Run(NormBackwardInput{.dy = a["dy"],
                            .x = a["x"],
                            .w = a["w"],
                            .rstd = a["rstd"],
                            .add = a["dadd"],
                            .dx = a["dx"]});
    a.Run(NormBackwardWeight{.dy = a["dy"], .x = a["x"], .rstd = a["rstd"], .dw = a["dw"]});
  };
  c.forward_bytes = Floats(2.0 * n * cols);
  c.backward_bytes = Floats((add ? 6.0 : 5.0) * n * cols);
  return c;
}

OpCase LayerNormCase(int64_t n, int64_t channels, bool add) {
  OpCase c;
  c.name = absl::StrCat("layer_norm ", n, "x", channels, add ? " add" : "");
  c.args = {{"x", Role::kInput, n, channels},
            {"w", Role::kInput, 1, channels},
            {"b", Role::kInput, 1, channels},
            {"y", Role::kOutput, n, channels},
            {"mean", Role::kSaved, 1, n, kF32},
            {"rstd", Role::kSaved, 1, n, kF32},
            {"dy", Role::kInput, n, channels},
            {"dx", Role::kGradient, n, channels, kAct, nullptr, false, add ? "dadd" : ""},
            {"dw", Role::kGradient, 1, channels, kF32, nullptr, false, "dw"},
            {"db", Role::kGradient, 1, channels, kF32, nullptr, false, "db"}};
  if (add) c.args.push_back({"dadd", Role::kInput, n, channels});
  c.forward = [](Call& a) {
    a.Run(NormForward{
        .x = a["x"], .w = a["w"], .b = a["b"], .y = a["y"], .mean = a["mean"], .rstd = a["rstd"]});
  };
  c.backward = [](Call& a) {
    a.Run(NormBackwardInput{.dy = a["dy"],
                            .x = a["x"],
                            .w = a["w"],
                            .mean = a["mean"],
                            .rstd = a["rstd"],
                            .add = a["dadd"],
                            .dx = a["dx"]});
    a.Run(NormBackwardWeight{.dy = a["dy"],
                             .x = a["x"],
                             .mean = a["mean"],
                             .rstd = a["rstd"],
                             .dw = a["dw"],
                             .db = a["db"]});
  };
  c.forward_bytes = Floats(2.0 * n * channels);
  c.backward_bytes = Floats((add ? 6.0 : 5.0) * n * channels);
  return c;
}

OpCase RopeCase(int64_t batch, int64_t seq_len, int64_t heads, int64_t head_dim, int64_t offset) {
  const int64_t n = batch * seq_len, channels = heads * head_dim;
  OpCase c;
  c.name = absl::StrCat("rope ", n, "x", heads, "x", head_dim);
  c.args = {{"x", Role::kInput, n, channels},
            {"table", Role::kInput, offset + seq_len, head_dim, kF32, Angle(head_dim)},
            {"y", Role::kOutput, n, channels},
            {"dy", Role::kInput, n, channels},
            {"dx", Role::kGradient, n, channels}};
  c.forward = [=](Call& a) {
    a.Run(Convert{.from = a["x"], .to = a["y"]});
    a.Run(Rope{.x = a["y"],
               .table = a["table"],
               .seq_len = seq_len,
               .position_offset = offset,
               .starts = a["starts"]});
  };
  c.backward = [=](Call& a) {
    a.Run(Convert{.from = a["dy"], .to = a["dx"]});
    a.Run(Rope{.x = a["dx"],
               .table = a["table"],
               .seq_len = seq_len,
               .position_offset = offset,
               .inverse = true,
               .starts = a["starts"]});
  };
  c.forward_bytes = c.backward_bytes = Floats(4.0 * n * channels);
  return c;
}

OpCase AttentionCase(int64_t batch, int64_t seq_len, int64_t heads, int64_t kv_heads,
                     int64_t head_dim) {
  return MaskedAttentionCase({.batch = batch,
                              .seq_len = seq_len,
                              .heads = heads,
                              .kv_heads = kv_heads,
                              .head_dim = head_dim});
}

OpCase MaskedAttentionCase(AttentionShape shape, bool padded) {
  const int64_t n = shape.batch * shape.seq_len, q = shape.heads * shape.head_dim;
  const int64_t kv = shape.kv_heads * shape.head_dim;
  const int64_t batch = shape.batch, heads = shape.heads, seq_len = shape.seq_len;
  shape.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  OpCase c;
  c.name =
      absl::StrCat("attention B", batch, " T", seq_len, " H", heads, "/", shape.kv_heads, " D",
                   shape.head_dim, shape.causal ? "" : " both directions", padded ? " padded" : "");
  if (shape.window > 0) absl::StrAppend(&c.name, " window ", shape.window);
  if (shape.softcap > 0) absl::StrAppend(&c.name, " cap ", shape.softcap);
  c.args = {{"q", Role::kInput, n, q},
            {"k", Role::kInput, n, kv},
            {"v", Role::kInput, n, kv},
            {"out", Role::kOutput, n, q},
            {"lse", Role::kSaved, batch * heads, seq_len, kF32},
            {"dout", Role::kInput, n, q},
            {"dq", Role::kGradient, n, q},
            {"dk", Role::kGradient, n, kv},
            {"dv", Role::kGradient, n, kv}};
  if (padded) {
    c.args.push_back({"lengths", Role::kInput, 1, batch, kInt32, [seq_len](int64_t i) {
                        return static_cast<double>(1 + (i * 7 + seq_len / 2) % seq_len);
                      }});
  }
  c.forward = [shape](Call& a) {
    a.Run(AttentionForward{.shape = shape,
                           .q = a["q"],
                           .k = a["k"],
                           .v = a["v"],
                           .out = a["out"],
                           .lse = a["lse"],
                           .lengths = a["lengths"],
                           .starts = a["starts"]});
  };
  c.backward = [shape](Call& a) {
    a.Run(AttentionBackward{.shape = shape,
                            .q = a["q"],
                            .k = a["k"],
                            .v = a["v"],
                            .out = a["out"],
                            .lse = a["lse"],
                            .dout = a["dout"],
                            .dq = a["dq"],
                            .dk = a["dk"],
                            .dv = a["dv"],
                            .lengths = a["lengths"],
                            .starts = a["starts"]});
  };
  // Two products forward, five backward, over half of each T x T square.
  const double product = static_cast<double>(n) * (seq_len + 1) * q;
  c.forward_flops = 2 * product;
  c.backward_flops = 5 * product;
  return c;
}

}  // namespace atl::testing
