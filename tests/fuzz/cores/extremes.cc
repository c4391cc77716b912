#include "tests/fuzz/cores/extremes.h"

#include <algorithm>
#include <limits>

#include "common/protocol/limits.h"

namespace atl::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kLearned = 4096;  // values
constexpr int kDepthMost = 8;

template <class T>
void Keep(std::vector<T>& values, T value, Rng& rng) {
  if (values.size() < kLearned) {
    values.push_back(std::move(value));
  } else {
    values[rng.Below(values.size())] = std::move(value);
  }
}

template <class T>
const T& Pick(const std::vector<T>& values, Rng& rng) {
  return values[rng.Below(values.size())];
}

bool IsNumber(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_INT32 ||
         field.cpp_type() == FieldDescriptor::CPPTYPE_INT64;
}

}  // namespace

void Extremes::Learn(const Message& message) {
  const Reflection& r = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r.ListFields(message, &fields);
  for (const FieldDescriptor* f : fields) {
    const int count = f->is_repeated() ? std::min(r.FieldSize(message, f), 8) : 1;
    for (int i = 0; i < count; ++i) {
      if (f->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        Learn(f->is_repeated() ? r.GetRepeatedMessage(message, f, i) : r.GetMessage(message, f));
      } else if (f->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        Keep(texts_,
             f->is_repeated() ? r.GetRepeatedString(message, f, i) : r.GetString(message, f), rng_);
      } else if (IsNumber(*f) && !f->is_repeated()) {
        const bool wide = f->cpp_type() == FieldDescriptor::CPPTYPE_INT64;
        Keep(numbers_, wide ? r.GetInt64(message, f) : int64_t{r.GetInt32(message, f)}, rng_);
      }
    }
  }
}

void Extremes::Change(Message* message) {
  for (uint64_t left = 1 + rng_.Below(3); left > 0; --left) ChangeOne(message, 0);
}

void Extremes::ChangeOne(Message* message, int depth) {
  const auto* descriptor = message->GetDescriptor();
  if (descriptor->field_count() == 0) return;
  const Reflection& r = *message->GetReflection();
  // Fields that are set are changed more often than others.
  std::vector<const FieldDescriptor*> set;
  r.ListFields(*message, &set);
  const FieldDescriptor* f =
      !set.empty() && rng_.Chance(0.7)
          ? Pick(set, rng_)
          : descriptor->field(
                static_cast<int>(rng_.Below(static_cast<uint64_t>(descriptor->field_count()))));
  if (f->is_repeated()) return ChangeList(message, f, depth);
  if (f->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return SetValue(message, f);
  const bool is_kind = depth == 0 && f->real_containing_oneof() != nullptr;
  if (is_kind && !r.HasField(*message, f)) return;  // the message stays of its kind
  if (depth >= kDepthMost) return;
  if (!is_kind && rng_.Chance(0.1)) return r.ClearField(message, f);
  ChangeOne(r.MutableMessage(message, f), depth + 1);
}

void Extremes::ChangeList(Message* message, const FieldDescriptor* f, int depth) {
  const Reflection& r = *message->GetReflection();
  const int size = r.FieldSize(*message, f);
  const bool of_messages = f->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  switch (rng_.Below(of_messages && size > 0 ? 6 : 4)) {
    case 0:
      return r.ClearField(message, f);
    case 1:
      if (size > 0) r.RemoveLast(message, f);
      return;
    case 2:
      if (size > 0 && of_messages) {
        const auto at = static_cast<int>(rng_.Below(static_cast<uint64_t>(size)));
        r.AddMessage(message, f)->CopyFrom(r.GetRepeatedMessage(*message, f, at));
        return;
      }
      [[fallthrough]];
    case 3:
      if (!of_messages) return SetValue(message, f);
      ChangeOne(r.AddMessage(message, f), depth + 1);
      return;
    default:
      if (depth >= kDepthMost) return;
      ChangeOne(r.MutableRepeatedMessage(message, f,
                                         static_cast<int>(rng_.Below(static_cast<uint64_t>(size)))),
                depth + 1);
  }
}

// Sets the value, or adds it to a list.
void Extremes::SetValue(Message* message, const FieldDescriptor* f) {
  const Reflection& r = *message->GetReflection();
  const bool list = f->is_repeated();
  switch (f->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      const auto value = static_cast<int32_t>(std::clamp<int64_t>(
          Number(), std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
      return list ? r.AddInt32(message, f, value) : r.SetInt32(message, f, value);
    }
    case FieldDescriptor::CPPTYPE_INT64:
      return list ? r.AddInt64(message, f, Number()) : r.SetInt64(message, f, Number());
    case FieldDescriptor::CPPTYPE_UINT64: {
      const auto value = static_cast<uint64_t>(Number());
      return list ? r.AddUInt64(message, f, value) : r.SetUInt64(message, f, value);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return list ? r.AddDouble(message, f, Real()) : r.SetDouble(message, f, Real());
    case FieldDescriptor::CPPTYPE_BOOL:
      return list ? r.AddBool(message, f, rng_.Chance(0.5))
                  : r.SetBool(message, f, rng_.Chance(0.5));
    case FieldDescriptor::CPPTYPE_STRING:
      return list ? r.AddString(message, f, Text()) : r.SetString(message, f, Text());
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto value = static_cast<int>(rng_.Below(12));
      return list ? r.AddEnumValue(message, f, value) : r.SetEnumValue(message, f, value);
    }
    default:
      return;
  }
}

int64_t Extremes::Number() {
  static const int64_t kNumbers[] = {0,
                                     0,
                                     -1,
                                     1,
                                     2,
                                     kMaxInt,
                                     kMinInt,
                                     kMaxInt - 1,
                                     kMaxNumber,
                                     kMaxIsland,
                                     kMaxShards,
                                     kMaxElements,
                                     kMaxVersion,
                                     kMaxGeneration,
                                     kMaxEpoch,
                                     kMaxSequence,
                                     (int64_t{1} << 31) - 1,
                                     kMaxNumber32};
  const uint64_t which = rng_.Below(std::size(kNumbers) + 12);
  if (which < std::size(kNumbers)) return kNumbers[which];
  if (numbers_.empty()) return 3;
  return Pick(numbers_, rng_) + static_cast<int64_t>(rng_.Below(3)) - 1;
}

double Extremes::Real() {
  using Limits = std::numeric_limits<double>;
  static const double kNumbers[] = {0,
                                    -0.0,
                                    1,
                                    -1,
                                    0.5,
                                    1e-300,
                                    1e300,
                                    Limits::max(),
                                    Limits::lowest(),
                                    Limits::denorm_min(),
                                    Limits::infinity(),
                                    -Limits::infinity(),
                                    Limits::quiet_NaN()};
  return kNumbers[rng_.Below(std::size(kNumbers))];
}

std::string Extremes::Text() {
  switch (rng_.Below(8)) {
    case 0:
    case 1:
      return "";
    case 2:
      return std::string(kMaxNameBytes, 'x');
    case 3:
      return "\x01\x1b[31m\n";
    default:
      return texts_.empty() ? "text" : Pick(texts_, rng_);
  }
}

}  // namespace atl::fuzz
