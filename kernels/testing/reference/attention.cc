// Rotary positions and attention.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/testing/reference/reference_backend.h"

namespace atl {
namespace {

// One query row: sequence, head and position, and where its rows and columns start.
struct Query {
  const AttentionShape& shape;
  const Tensor &lengths, &starts;
  int64_t b, h, t;

  // The keys that it sees: [first_key, end_key).
  int64_t first_key() const {
    const int64_t start = starts.present() ? starts.as<int32_t>()[row()] : 0;
    return shape.window > 0 ? std::max(start, t + 1 - shape.window) : start;
  }
  int64_t end_key() const {
    const int64_t length = lengths.present() ? lengths.as<int32_t>()[b] : shape.seq_len;
    return shape.causal ? std::min(t + 1, length) : length;
  }

  int64_t row() const { return b * shape.seq_len + t; }
  int64_t key_row(int64_t j) const { return b * shape.seq_len + j; }
  int64_t col() const { return h * shape.head_dim; }
  int64_t key_col() const { return h / (shape.heads / shape.kv_heads) * shape.head_dim; }
};

template <typename Op, typename Function>
void ForEachQuery(const Op& op, const Function& function) {
  for (int64_t b = 0; b < op.shape.batch; ++b) {
    for (int64_t h = 0; h < op.shape.heads; ++h) {
      for (int64_t t = 0; t < op.shape.seq_len; ++t) {
        function(Query{op.shape, op.lengths, op.starts, b, h, t});
      }
    }
  }
}

// The dot product of head_dim channels of a row of a and a row of b.
double HeadDot(const Tensor& a, int64_t row_a, int64_t col_a, const Tensor& b, int64_t row_b,
               int64_t col_b, int64_t head_dim) {
  double sum = 0;
  for (int64_t d = 0; d < head_dim; ++d) {
    sum += double{At(a, row_a, col_a + d)} * At(b, row_b, col_b + d);
  }
  return sum;
}

// cap(scale * q k_j) for every key j that the query sees, from its first key on.
std::vector<double> Scores(const Query& query, const Tensor& q, const Tensor& k) {
  std::vector<double> scores;
  for (int64_t j = query.first_key(); j < query.end_key(); ++j) {
    const double score =
        query.shape.scale * HeadDot(q, query.row(), query.col(), k, query.key_row(j),
                                    query.key_col(), query.shape.head_dim);
    const double cap = query.shape.softcap;
    scores.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
  }
  return scores;
}

// Returns the derivative of a capped score by the plain one.
double CapDerivative(double score, double cap) {
  return cap > 0 ? 1 - score / cap * (score / cap) : 1;
}

}  // namespace

void ReferenceBackend::Run(Stream&, const Rope& op) {
  op.Check();
  const int64_t head_dim = op.table.cols, half = head_dim / 2;
  for (int64_t n = 0; n < op.x.rows; ++n) {
    const int64_t position = op.position_offset + PositionInDocument(op.starts, n, op.seq_len);
    for (int64_t head = 0; head < op.x.cols; head += head_dim) {
      for (int64_t i = 0; i < half; ++i) {
        const double cosine = At(op.table, position, i);
        const double sine = At(op.table, position, half + i) * (op.inverse ? -1.0 : 1.0);
        const double a = At(op.x, n, head + i), b = At(op.x, n, head + half + i);
        At(op.x, n, head + i) = a * cosine - b * sine;
        At(op.x, n, head + half + i) = b * cosine + a * sine;
      }
    }
  }
}

void ReferenceBackend::Run(Stream&, const AttentionForward& op, Workspace) {
  op.Check();
  ForEachQuery(op, [&](const Query& query) {
    const std::vector<double> scores = Scores(query, op.q, op.k);
    const int64_t first = query.first_key();
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double score : scores) sum += std::exp(score - largest);
    const double lse = largest + std::log(sum);
    At(op.lse, query.b * op.shape.heads + query.h, query.t) = lse;
    for (int64_t d = 0; d < op.shape.head_dim; ++d) {
      double out = 0;
      for (int64_t j = first; j < query.end_key(); ++j) {
        out += std::exp(scores[j - first] - lse) * At(op.v, query.key_row(j), query.key_col() + d);
      }
      At(op.out, query.row(), query.col() + d) = out;
    }
  });
}

// With p = softmax: dv_j += p_j dout; dp_j = dout v_j; ds_j = p_j (dp_j - sum_i p_i dp_i);
// dq = scale sum_j ds_j k_j; dk_j += scale ds_j q. And sum_i p_i dp_i = dout out.
void ReferenceBackend::Run(Stream&, const AttentionBackward& op, Workspace) {
  op.Check();
  const int64_t head_dim = op.shape.head_dim;
  std::vector<double> dk(op.dk.rows * op.dk.cols), dv(dk.size());
  ForEachQuery(op, [&](const Query& query) {
    const std::vector<double> scores = Scores(query, op.q, op.k);
    const int64_t first = query.first_key();
    const double lse = At(op.lse, query.b * op.shape.heads + query.h, query.t);
    const int64_t row = query.row(), col = query.col(), key_col = query.key_col();
    const double delta = HeadDot(op.dout, row, col, op.out, row, col, head_dim);
    std::vector<double> dq(head_dim);
    for (int64_t j = first; j < query.end_key(); ++j) {
      const int64_t key_row = query.key_row(j);
      const double p = std::exp(scores[j - first] - lse);
      const double dp = HeadDot(op.dout, row, col, op.v, key_row, key_col, head_dim);
      const double ds =
          op.shape.scale * p * (dp - delta) * CapDerivative(scores[j - first], op.shape.softcap);
      for (int64_t d = 0; d < head_dim; ++d) {
        dq[d] += ds * At(op.k, key_row, key_col + d);
        dk[key_row * op.dk.cols + key_col + d] += ds * At(op.q, row, col + d);
        dv[key_row * op.dv.cols + key_col + d] += p * At(op.dout, row, col + d);
      }
    }
    for (int64_t d = 0; d < head_dim; ++d) At(op.dq, row, col + d) = dq[d];
  });
  for (int64_t n = 0; n < op.dk.rows; ++n) {
    for (int64_t c = 0; c < op.dk.cols; ++c) {
      At(op.dk, n, c) = dk[n * op.dk.cols + c];
      At(op.dv, n, c) = dv[n * op.dv.cols + c];
    }
  }
}

}  // namespace atl
