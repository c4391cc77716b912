// Routers on the host, in double: E numbers a token are little beside the experts' products.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/element.h"
#include "kernels/host_backend.h"

namespace atl {
namespace {

// A token's scores, and the log of the sum of exp of its logits.
class Scores {
 public:
  Scores(const RouterRule& rule, int64_t experts) : rule_(rule), of_(experts) {}

  void Read(const Tensor& logits, int64_t row) {
    largest_ = At(logits, row, 0);
    for (int64_t e = 1; e < logits.cols; ++e)
      largest_ = std::max<double>(largest_, At(logits, row, e));
    double sum = 0;
    for (size_t e = 0; e < of_.size(); ++e) {
      of_[e] = std::exp(At(logits, row, static_cast<int64_t>(e)) - largest_);
      sum += of_[e];
    }
    log_sum_ = largest_ + std::log(sum);
    for (size_t e = 0; e < of_.size(); ++e) {
      of_[e] = rule_.score == RouterScore::kSoftmax
                   ? of_[e] / sum
                   : Sigmoid(At(logits, row, static_cast<int64_t>(e)));
    }
  }

  double operator[](int64_t e) const { return of_[static_cast<size_t>(e)]; }
  double log_sum() const { return log_sum_; }
  // Sums to divide by: of all scores, and of those of some experts.
  double sum() const { return Divisor(std::accumulate(of_.begin(), of_.end(), 0.0)); }
  double AddUp(const int32_t* experts, int64_t k) const {
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += (*this)[experts[j]];
    return Divisor(sum);
  }

 private:
  double Divisor(double sum) const {
    return rule_.score == RouterScore::kSoftmax ? sum : sum + double{kRouterEpsilon};
  }

  const RouterRule rule_;
  std::vector<double> of_;
  double largest_ = 0, log_sum_ = 0;
};

// Null: no sequence has padding.
const int32_t* Starts(const Tensor& starts) {
  return starts.present() ? starts.as<int32_t>() : nullptr;
}

// Assignments of a token's sequence, by expert, and its tokens.
struct Sequence {
  const int32_t* counts = nullptr;
  double tokens = 0;
};
Sequence FindSequence(const RouteBackward& op, int64_t n) {
  const int64_t seq_len = op.logits.rows / op.losses.counts.rows, experts = op.logits.cols;
  const int32_t* counts = op.losses.counts.as<int32_t>() + n / seq_len * experts;
  return {counts,
          std::accumulate(counts, counts + experts, 0.0) / static_cast<double>(op.experts.cols)};
}

// dscores += the gradient of E's balance loss by its p; returns the loss's part of this token.
double AddBalance(const RouteBackward& op, const Scores& scores, const Sequence& sequence,
                  std::vector<double>& dscores) {
  const RouterLosses& l = op.losses;
  const int64_t experts = op.logits.cols;
  const int32_t* counts = sequence.counts;
  const double tokens = sequence.tokens;
  const double sum = scores.sum(), unit = static_cast<double>(experts) / (tokens * tokens);
  double loss = 0;
  for (int64_t e = 0; e < experts; ++e) loss += unit * counts[e] * scores[e] / sum;
  for (int64_t e = 0; e < experts; ++e) {
    dscores[static_cast<size_t>(e)] +=
        double{l.balance} * At(l.share, 0) * (unit * counts[e] - loss) / sum;
  }
  return loss;
}

}  // namespace

void HostBackend::Run(Stream&, const RouteForward& op) {
  op.Check();
  const int64_t experts = op.logits.cols, k = op.experts.cols;
  Scores scores(op.rule, experts);
  std::vector<int32_t> order(static_cast<size_t>(experts));
  for (int64_t n = 0; n < op.logits.rows; ++n) {
    scores.Read(op.logits, n);
    // Equal logits have equal scores, and of unequal ones rounding may make equal scores.
    // A logit that is not a number comes last.
    const auto preference = [&](int32_t e) {
      return std::fmax(
          -HUGE_VAL, op.bias.present() ? scores[e] + At(op.bias, e) : double{At(op.logits, n, e)});
    };
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
      const double of_a = preference(a), of_b = preference(b);
      return of_a != of_b ? of_a > of_b : a < b;
    });
    const double sum = op.rule.normalise ? scores.AddUp(order.data(), k) : 1.0;
    for (int64_t j = 0; j < k; ++j) {
      op.experts.as<int32_t>()[n * k + j] = order[static_cast<size_t>(j)];
      At(op.weights, n, j) = scores[order[static_cast<size_t>(j)]] / sum * op.rule.scale;
    }
  }
}

void HostBackend::Run(Stream&, const CountExperts& op) {
  op.Check();
  const int64_t each = op.experts.size() / op.counts.rows;
  int32_t* const counts = op.counts.as<int32_t>();
  std::fill_n(counts, op.counts.size(), 0);
  const int64_t k = op.experts.cols;
  for (int64_t a = 0; a < op.experts.size(); ++a) {
    if (IsPadding(Starts(op.starts), a / k, each / k)) continue;
    ++counts[a / each * op.counts.cols + op.experts.as<int32_t>()[a]];
  }
}

void HostBackend::Run(Stream&, const RouteBackward& op) {
  op.Check();
  const int64_t experts = op.logits.cols, k = op.experts.cols, rows = op.logits.rows;
  const RouterLosses& l = op.losses;
  const double share = l.present() ? At(l.share, 0) : 0.0;
  Scores scores(op.rule, experts);
  std::vector<double> dscores(static_cast<size_t>(experts));
  double balance = 0, z = 0;
  for (int64_t n = 0; n < rows; ++n) {
    scores.Read(op.logits, n);
    const int32_t* chosen = op.experts.as<int32_t>() + n * k;
    std::fill(dscores.begin(), dscores.end(), 0.0);
    const double sum = op.rule.normalise ? scores.AddUp(chosen, k) : 1.0;
    double mean = 0;  // of the gradients by the weights: what normalising takes from each
    for (int64_t j = 0; j < k && op.rule.normalise; ++j) {
      mean += At(op.dweights, n, j) * scores[chosen[j]] / sum;
    }
    for (int64_t j = 0; j < k; ++j) {
      dscores[static_cast<size_t>(chosen[j])] =
          op.rule.scale * (At(op.dweights, n, j) - mean) / sum;
    }
    const bool counts =
        l.present() && !IsPadding(Starts(l.starts), n, rows / std::max<int64_t>(1, l.counts.rows));
    const Sequence sequence = counts ? FindSequence(op, n) : Sequence();
    if (l.present()) {
      At(l.terms, 0, n) = 0;
      At(l.terms, 1, n) = 0;
    }
    if (counts) {
      const double loss = AddBalance(op, scores, sequence, dscores);
      At(l.terms, 0, n) = loss;
      At(l.terms, 1, n) = scores.log_sum() * scores.log_sum() / sequence.tokens;
      balance += loss;
      z += scores.log_sum() * scores.log_sum() / sequence.tokens;
    }
    double dot = 0;
    for (int64_t e = 0; e < experts; ++e) dot += dscores[static_cast<size_t>(e)] * scores[e];
    for (int64_t e = 0; e < experts; ++e) {
      const double d = dscores[static_cast<size_t>(e)], s = scores[e];
      double dlogit = op.rule.score == RouterScore::kSoftmax ? s * (d - dot) : d * s * (1 - s);
      if (counts) {
        dlogit += 2 * double{l.z} * share / sequence.tokens * scores.log_sum() *
                  std::exp(At(op.logits, n, e) - scores.log_sum());
      }
      At(op.dlogits, n, e) = dlogit;
    }
  }
  if (!l.present()) return;
  At(l.totals, 0) += share * balance;
  At(l.totals, 1) += share * z;
  for (int64_t i = 0; i < l.counts.size(); ++i) {
    At(l.totals, 2 + i % experts) += l.counts.as<int32_t>()[i];
  }
  if (!l.loads.present()) return;
  const std::span counts(l.counts.as<int32_t>(), static_cast<size_t>(l.counts.size()));
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (int64_t e = 0; e < experts; ++e) {
    int64_t here = 0;
    for (int64_t i = e; i < l.counts.size(); i += experts) here += counts[static_cast<size_t>(i)];
    At(l.loads, e) += static_cast<double>(experts * here - all);
  }
}

void HostBackend::Run(Stream&, const BalanceExperts& op) {
  op.Check();
  for (int64_t e = 0; e < op.bias.cols; ++e) {
    const double load = At(op.loads, e);
    if (load != 0) At(op.bias, e) += -std::copysign(double{op.rate}, load);
    if (op.zero_loads) At(op.loads, e) = 0;
    if (op.param_copy.present()) At(op.param_copy, e) = At(op.bias, e);
  }
}

void HostBackend::Run(Stream&, const GroupTokens& op) {
  op.Check();
  const int64_t groups = op.group_starts.cols - 1;
  const int32_t* experts = op.experts.as<int32_t>();
  int32_t* const starts = op.group_starts.as<int32_t>();
  int32_t* const assignments = op.assignments.as<int32_t>();
  const auto group = [&](int64_t a) {
    const int64_t g = experts[a] - op.first;
    return g >= 0 && g < groups ? g : -1;
  };
  std::fill_n(starts, groups + 1, 0);
  for (int64_t a = 0; a < op.experts.size(); ++a) {
    if (group(a) >= 0) ++starts[group(a) + 1];
  }
  std::partial_sum(starts, starts + groups + 1, starts);
  std::vector<int32_t> next(starts, starts + groups);
  for (int64_t a = 0; a < op.experts.size(); ++a) {
    const int64_t g = group(a);
    const int32_t row = g < 0 ? -1 : next[static_cast<size_t>(g)]++;
    op.rows.as<int32_t>()[a] = row;
    if (g >= 0) assignments[row] = static_cast<int32_t>(a);
  }
  std::fill(assignments + starts[groups], assignments + op.assignments.cols, -1);
}

}  // namespace atl
