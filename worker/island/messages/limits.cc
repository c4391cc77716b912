#include "worker/island/messages/limits.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

std::string FaultIfEmpty(const v1::ElementRange& range) {
  return range.end() > range.begin() ? "" : "there are no elements";
}

template <typename Call>
std::string FaultIfNoSequences(const Call& m) {
  const bool any = std::any_of(m.ranges().begin(), m.ranges().end(),
                               [](const auto& range) { return range.begin() < range.end(); });
  return any ? "" : "a step of no sequences";
}

}  // namespace

std::string FaultIn(const v1::GroupFrame& m) {
  return m.body_case() == v1::GroupFrame::BODY_NOT_SET ? "it has no body that is known" : "";
}

std::string FaultIn(const v1::TensorHeader& m) {
  if (m.tag_case() == v1::TensorHeader::TAG_NOT_SET) return "it is of nothing that is known";
  const int32_t bytes = m.element_bytes();
  return bytes == 2 || bytes == 4 || bytes == 8 ? ""
                                                : absl::StrCat("elements of ", bytes, " bytes");
}

std::string FaultIn(const v1::ElementRange& m) {
  return m.end() >= m.begin() ? "" : "the elements end before they begin";
}

std::string FaultIn(const v1::LayerShard& m) {
  const auto& ratios = m.tensor_split_ratios();
  const bool all = std::all_of(ratios.begin(), ratios.end(), [](int32_t r) { return r >= 1; });
  return all && m.rank() < ratios.size() ? "" : "the rank is out of range";
}

std::string FaultIn(const v1::HeldLayer& m) {
  return m.owned().end() <= m.elements() ? "" : "more is owned than there is";
}

std::string FaultIn(const v1::StateSource& m) { return FaultIfEmpty(m.elements()); }

std::string FaultIn(const v1::StateTransfer& m) {
  if (m.sources().empty()) return "it has no source";
  const bool same = std::all_of(m.sources().begin(), m.sources().end(), [&](const auto& source) {
    return source.shard().layer() == m.shard().layer();
  });
  return same ? "" : "a source has another layer";
}

// Some elements of a device's state, or of what an owner keeps.
std::string FaultIn(const v1::GetLayerCall& m) {
  const bool state = m.parts() >= 1 && m.parts() <= worker::kAllParts;
  const bool outer = (m.parts() & ~worker::kOuterParts) == 0 &&
                     std::popcount(static_cast<uint32_t>(m.parts())) == 1;
  if (!state && !outer) return "the parts are out of range";
  if (m.of_snapshot() && m.parts() != worker::kParametersPart) return "a snapshot has no such part";
  const bool saved = state || m.parts() == 1 << worker::GetOuterPart(OuterKind::kResidual);
  if (m.of_save() != 0 && !saved) return "a save has no such part";
  return FaultIfEmpty(m.elements());
}

std::string FaultIn(const v1::StepCall& m) { return FaultIfNoSequences(m); }

std::string FaultIn(const v1::ReferenceCall& m) { return FaultIfNoSequences(m); }

std::string FaultIn(const v1::EvaluateCall& m) {
  return m.count() > 0 ? "" : "no validation sequences";
}

std::string FaultIn(const v1::Work& m) {
  return m.masked_tokens() <= m.tokens() ? "" : "more tokens are masked than there are";
}

std::string FaultIn(const v1::OuterRange& m) { return FaultIfEmpty(m.range()); }

std::string FaultIn(const v1::ShardPart& m) {
  const int64_t all = m.elements();
  return m.part_begin() <= all && m.part_elements() <= all - m.part_begin()
             ? ""
             : "it is not in the shard";
}

std::string FaultIn(const v1::Unit& m) { return FaultIfEmpty(m.elements()); }

std::string FaultIn(const v1::HeldUnit& m) {
  return m.elements() >= m.unit().elements().end() ? "" : "it is not in the shard";
}

}  // namespace atl
