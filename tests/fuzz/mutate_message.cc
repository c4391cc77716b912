#include <google/protobuf/unknown_field_set.h>

#include <cstdint>
#include <limits>

#include "tests/fuzz/mutate.h"

namespace atl::fuzz {
namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

constexpr int kDepthMax = 16;

uint64_t SomeNumber(uint64_t now, Rng& rng) {
  switch (rng.Below(8)) {
    case 0:
      return 0;
    case 1:
      return now + 1;
    case 2:
      return now - 1;
    case 3:
      return std::numeric_limits<uint64_t>::max();  // -1
    case 4:
      return std::numeric_limits<int32_t>::max();
    case 5:
      return uint64_t{1} << 63;  // INT64_MIN, and -0.0
    case 6:
      return 0x7ff8000000000000;  // NaN
    default:
      return uint64_t{1} << rng.Below(64);
  }
}

void Mutate(UnknownFieldSet& fields, int depth, Rng& rng);

// A message, or text or packed numbers, which cannot always be distinguished.
void MutateBytes(std::string& bytes, int depth, Rng& rng) {
  UnknownFieldSet inner;
  const bool parses = depth < kDepthMax &&
                      inner.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) &&
                      !inner.empty();
  if (parses && rng.Below(8) != 0) {
    Mutate(inner, depth + 1, rng);
    inner.SerializeToString(&bytes);
    return;
  }
  switch (rng.Below(4)) {
    case 0:
      bytes.clear();
      break;
    case 1:
      bytes += bytes;
      break;
    case 2:
      bytes.push_back(static_cast<char>(rng.Below(256)));
      break;
    default:
      if (!bytes.empty()) bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Below(256));
  }
}

void Mutate(UnknownFieldSet& fields, int depth, Rng& rng) {
  if (fields.empty()) return;
  const int at = static_cast<int>(rng.Below(static_cast<uint64_t>(fields.field_count())));
  UnknownField* const field = fields.mutable_field(at);
  const bool holds_bytes = field->type() == UnknownField::TYPE_LENGTH_DELIMITED;
  const uint64_t what = rng.Below(holds_bytes ? 16 : 4);
  if (what == 0) return fields.DeleteSubrange(at, 1);
  if (what == 1) {
    const UnknownField copy = *field;
    return fields.AddField(copy);
  }
  switch (field->type()) {
    case UnknownField::TYPE_VARINT:
      return field->set_varint(SomeNumber(field->varint(), rng));
    case UnknownField::TYPE_FIXED32:
      return field->set_fixed32(static_cast<uint32_t>(SomeNumber(field->fixed32(), rng)));
    case UnknownField::TYPE_FIXED64:
      return field->set_fixed64(SomeNumber(field->fixed64(), rng));
    case UnknownField::TYPE_LENGTH_DELIMITED:
      return MutateBytes(*field->mutable_length_delimited(), depth, rng);
    case UnknownField::TYPE_GROUP:
      return Mutate(*field->mutable_group(), depth + 1, rng);
  }
}

}  // namespace

std::optional<std::string> MutatedMessage(std::string_view bytes, Rng& rng) {
  for (const size_t selector : {1, 0}) {
    if (bytes.size() <= selector) continue;
    const std::string_view rest = bytes.substr(selector);
    UnknownFieldSet fields;
    if (!fields.ParseFromArray(rest.data(), static_cast<int>(rest.size()))) continue;
    for (uint64_t left = 1 + rng.Below(3); left > 0; --left) Mutate(fields, 0, rng);
    std::string changed;
    fields.SerializeToString(&changed);
    return std::string(bytes.substr(0, selector)) + changed;
  }
  return std::nullopt;
}

std::optional<std::string> Mutated(std::string_view input, Rng& rng) {
  if (auto json = MutatedJson(input, rng)) return json;
  return MutatedMessage(input, rng);
}

}  // namespace atl::fuzz
