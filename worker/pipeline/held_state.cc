#include "worker/pipeline/held_state.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace atl::worker {

Tensor HeldState::part(LayerPart part) const {
  switch (part) {
    case LayerPart::kParameters:
      return state.params();
    case LayerPart::kFirstMoment:
      return state.first_moment();
    case LayerPart::kSecondMoment:
      return state.second_moment();
    case LayerPart::kGradient:
      return state.grads();
  }
  ATOLL_CHECK(false, "part ", static_cast<int>(part));
  __builtin_unreachable();
}

Range HeldState::Elements(LayerPart part) const {
  switch (part) {
    case LayerPart::kFirstMoment:
      return state.owned();
    case LayerPart::kSecondMoment:
      return state.second_owned();
    case LayerPart::kParameters:
    case LayerPart::kGradient:
      return {0, state.layout().size};
  }
  ATOLL_CHECK(false, "part ", static_cast<int>(part));
  __builtin_unreachable();
}

HeldState::Values HeldState::Readable(LayerPart which, Range range) const {
  const auto covers = [&](const Range& owned) {
    return owned.begin <= range.begin && range.end <= owned.end;
  };
  // Returns the elements in the range of a tensor of elements `kept`.
  const auto last = [&](const Tensor& tensor, const Range& kept) -> Values {
    const Range found = Intersection(range, kept);
    if (found.size() == 0) return {true, {}};
    return {true, tensor.Columns(found.begin - kept.begin, found.size())};
  };
  const bool own = written && covers(state.owned());
  if (which == LayerPart::kParameters) {
    const bool older = std::any_of(before.begin(), before.end(), [&](const Before& b) {
      return b.whole || covers(b.moments.owned);
    });
    if (!own && !(written && whole) && !older) return {};
    return last(state.params(), Elements(which));
  }
  if (own) return last(part(which), Elements(which));
  for (const Before& b : before) {
    if (which == LayerPart::kGradient || !covers(b.moments.owned)) continue;
    const bool first = which == LayerPart::kFirstMoment;
    const Buffer& values = first ? b.moments.first : b.moments.second;
    const Range kept = first ? b.moments.owned : b.moments.second_owned();
    return last(Tensor(values.data(), state.grads().dtype, 1, kept.size()), kept);
  }
  return {};
}

absl::Status HeldState::Own(Stream& stream, Range range) {
  if (state.owned() == range) return absl::OkStatus();
  Before older{{range, 0, {}, {}}, 0, false};
  const auto found = std::find_if(before.begin(), before.end(),
                                  [&](const Before& b) { return b.moments.owned == range; });
  const bool again = found != before.end();
  if (again) {
    older = std::move(*found);
    before.erase(found);
  } else {
    ATOLL_ASSIGN_OR_RETURN(older.moments, state.NewMoments(stream, range));
  }
  Moments newest = state.Exchange(std::move(older.moments));
  if (written) before.push_back({std::move(newest), optimizer_step, whole});
  written = again;
  whole = again && older.whole;
  optimizer_step = older.optimizer_step;
  return absl::OkStatus();
}

}  // namespace atl::worker
