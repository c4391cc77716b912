#include "common/protocol/wire.h"

#include <google/protobuf/util/message_differencer.h>

#include <catch2/catch.hpp>
#include <set>

#include "common/protocol/limits.h"
#include "common/rng.h"
#include "proto/control.pb.h"
#include "proto/plain.pb.h"

namespace atl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;

// Fields that the planner's message has to print, and a worker's plan has not.
const std::set<std::string> kDerived = {
    "atl.v1.PlannedIsland.island",          "atl.v1.PlannedIsland.steps_per_round",
    "atl.v1.Replica.sample_share",          "atl.v1.Operation.peer",
    "atl.v1.DeviceProgram.first_ns",        "atl.v1.DeviceProgram.last_ns",
    "atl.v1.DeviceProgram.busy_ns",         "atl.v1.DeviceProgram.state_bytes",
    "atl.v1.DeviceProgram.activation_bytes"};

// Fills every field of a message with a value that no other field has, so that a field that is
// forgotten or mixed up in wire.cc cannot go unseen.
class Filler {
 public:
  void Fill(Message* m) {
    for (int i = 0; i < m->GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* f = m->GetDescriptor()->field(i);
      if (f->real_containing_oneof() == nullptr && !kDerived.contains(f->full_name())) Set(m, f);
    }
  }

  void Set(Message* m, const FieldDescriptor* f) {
    const auto* r = m->GetReflection();
    const bool list = f->is_repeated();
    const int number = ++last_;
    switch (f->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return list ? r->AddInt32(m, f, number) : r->SetInt32(m, f, number);
      case FieldDescriptor::CPPTYPE_INT64:
        return list ? r->AddInt64(m, f, number) : r->SetInt64(m, f, number);
      case FieldDescriptor::CPPTYPE_UINT64:
        return list ? r->AddUInt64(m, f, ~uint64_t{0} - number)
                    : r->SetUInt64(m, f, ~uint64_t{0} - number);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return list ? r->AddDouble(m, f, number + 0.5) : r->SetDouble(m, f, number + 0.5);
      case FieldDescriptor::CPPTYPE_BOOL:
        return r->SetBool(m, f, true);
      case FieldDescriptor::CPPTYPE_STRING:
        return list ? r->AddString(m, f, absl::StrCat("text", number))
                    : r->SetString(m, f, absl::StrCat("text", number));
      case FieldDescriptor::CPPTYPE_ENUM:
        return r->SetEnumValue(m, f, 2);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Fill(list ? r->AddMessage(m, f) : r->MutableMessage(m, f));
      default:
        FAIL("no such field type in the protocol: " << f->full_name());
    }
  }

 private:
  int last_ = 0;
};

// One filled envelope for every kind of message with a plain struct that it can hold.
template <class M>
std::vector<M> OneOfEach() {
  std::vector<M> all;
  const auto* kinds = M::descriptor()->FindOneofByName("message");
  for (int i = 0; i < kinds->field_count(); ++i) {
    if (kinds->field(i)->options().GetExtension(v1::plain).omit()) continue;
    Filler filler;
    filler.Fill(&all.emplace_back());
    filler.Set(&all.back(), kinds->field(i));
  }
  return all;
}

template <class M>
void RequireEveryMessageSurvives() {
  for (const M& original : OneOfEach<M>()) {
    INFO(original.ShortDebugString());
    M wire = original;
    const auto plain = Decode(&wire);
    REQUIRE(plain.status() == absl::OkStatus());
    M again;
    REQUIRE(Encode(*plain, &again) == absl::OkStatus());
    MessageDifferencer differ;
    std::string difference;
    differ.ReportDifferencesToString(&difference);
    INFO(difference);
    REQUIRE(differ.Compare(original, again));
  }
}

TEST_CASE("every field of every message survives the way through plain structs") {
  RequireEveryMessageSurvives<v1::FromWorker>();
  RequireEveryMessageSurvives<v1::ToWorker>();
  RequireEveryMessageSurvives<v1::FromServer>();
  RequireEveryMessageSurvives<v1::ToServer>();
}

TEST_CASE("fields that a job leaves out get the defaults of job.proto") {
  v1::JobSpec wire;
  wire.set_name("tiny");
  wire.mutable_outer()->set_momentum(0);
  const auto spec = Decode(&wire);
  REQUIRE(spec.ok());
  REQUIRE(spec->name == "tiny");
  REQUIRE(spec->outer.momentum == 0);
  REQUIRE(spec->outer.steps_per_round == OuterSpec{}.steps_per_round);
  REQUIRE(spec->inner.learning_rate == InnerSpec{}.learning_rate);
  REQUIRE(spec->model.family == ModelFamily::kLlama);
}

template <class Change>
OuterSpec DecodeOuter(const Change& change) {
  v1::JobSpec wire;
  change(*wire.mutable_outer());
  return Decode(&wire)->outer;
}

TEST_CASE("a_job_that_leaves_its_rounds_open_exchanges_in_few_bits") {
  const auto encodings = [](const auto& change) {
    const OuterSpec outer = DecodeOuter(change);
    return std::pair(outer.push_encoding, outer.pull_encoding);
  };
  const std::pair few(Encoding::kInt4, Encoding::kInt4);
  const std::pair full(Encoding::kFloat32, Encoding::kFloat32);
  CHECK(encodings([](auto&) {}) == few);
  CHECK(encodings([](auto& o) { o.set_steps_per_round(16); }) == full);
  CHECK(encodings([](auto& o) { o.set_max_islands(1); }) == full);
  CHECK(encodings([](auto& o) { o.mutable_site()->set_rounds(2); }) == full);
  const auto pulls = [](auto& o) { o.set_pull_encoding(v1::ENCODING_INT8); };
  CHECK(encodings(pulls) == std::pair(Encoding::kInt4, Encoding::kInt8));
}

TEST_CASE("adapters_that_are_averaged_are_merged_radially") {
  const auto merge = [](const auto& change) {
    v1::JobSpec wire;
    wire.mutable_adapter()->set_kind(v1::ADAPTER_KIND_LORA);
    change(wire);
    return Decode(&wire)->outer.merge;
  };
  CHECK(merge([](auto&) {}) == "radial");
  CHECK(merge([](auto& job) { job.clear_adapter(); }) == "mean");
  CHECK(merge([](auto& job) { job.mutable_outer()->set_merge("mean"); }) == "mean");
  CHECK(merge([](auto& job) { job.mutable_outer()->set_momentum(0.5); }) == "mean");
  CHECK(merge([](auto& job) { job.mutable_outer()->set_max_share(0.5); }) == "mean");
  CHECK(merge([](auto& job) { job.mutable_outer()->set_max_islands(65); }) == "mean");
  CHECK(merge([](auto& job) { job.mutable_outer()->mutable_site()->set_rounds(2); }) == "mean");
}

TEST_CASE("limits_of_a_days_bytes_need_rounds_of_a_given_length") {
  v1::JobSpec wire;
  wire.mutable_layout()->add_link_limits();
  CHECK(Decode(&wire)->outer.steps_per_round == kScheduleSteps);
}

TEST_CASE("a_job_averages_unless_it_names_an_optimizer_or_needs_a_momentum") {
  const auto outer = [](const auto& change) { return DecodeOuter(change); };
  CHECK(outer([](auto& o) { o.set_steps_per_round(0); }).optimizer == "sgd");
  CHECK(outer([](auto& o) { o.set_momentum(0); }).optimizer == "sgd");
  const OuterSpec moving = outer([](auto& o) { o.set_momentum(0.5); });
  CHECK(moving.optimizer == "nesterov");
  CHECK(moving.learning_rate == 0.7);
  CHECK(moving.momentum == 0.5);
  const OuterSpec named = outer([](auto& o) { o.set_optimizer("nesterov"); });
  CHECK(named.learning_rate == 0.7);
  CHECK(named.momentum == 0.8);
  CHECK(outer([](auto& o) { o.set_learning_rate(0.5); }).learning_rate == 0.5);
}

TEST_CASE("muon_has_a_momentum_of_its_own_where_a_job_leaves_it_out") {
  v1::JobSpec wire;
  wire.mutable_inner()->set_optimizer(v1::INNER_OPTIMIZER_MUON);
  REQUIRE(Decode(&wire)->inner.momentum == 0.95);
  wire.mutable_inner()->set_momentum(0.9);
  REQUIRE(Decode(&wire)->inner.momentum == 0.9);
  wire.Clear();
  wire.mutable_inner()->set_optimizer(v1::INNER_OPTIMIZER_SGD);
  REQUIRE(Decode(&wire)->inner.momentum == InnerSpec{}.momentum);
}

v1::FromWorker Envelope() {
  v1::FromWorker wire;
  wire.set_worker("w1");
  wire.set_incarnation(3);
  return wire;
}

template <class M>
std::string Fault(M wire) {
  const auto plain = Decode(&wire);
  REQUIRE(plain.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(plain.status().message());
}

TEST_CASE("what breaks a limit is refused by name") {
  auto wire = Envelope();
  REQUIRE(Fault(wire) == "message: absent, or of a kind this version does not know");

  wire.mutable_lease_request()->set_wanted(-1);
  REQUIRE(Fault(wire) == "wanted: -1 is out of range");

  // The number is taken so long as the sum of some could be stored.
  wire.mutable_heartbeat()->mutable_progress()->set_steps_redone(kMaxInt);
  REQUIRE(Fault(wire) == "steps_redone: 9223372036854775807 is out of range");
  wire.mutable_heartbeat()->mutable_progress()->set_steps_redone(kMaxNumber);
  REQUIRE(Decode(&wire).ok());

  wire.mutable_leaving()->set_reason(std::string(65537, 'x'));
  REQUIRE(Fault(wire) == "reason: text of 65537 bytes");

  auto* range = wire.mutable_push_request()->add_consumed();
  range->set_begin(9);
  range->set_end(8);
  REQUIRE(Fault(wire) == "message: a range of positions ends before it begins");

  wire.set_worker("../etc");
  REQUIRE(Fault(wire).find("name \"../etc\"") == 0);

  v1::ToWorker order;
  order.set_worker("w1");
  order.mutable_island_order();
  REQUIRE(Fault(order) == "run: 0 is no known choice");
  order.mutable_island_order()->set_run(static_cast<v1::RunState>(77));
  REQUIRE(Fault(order) == "run: 77 is no known choice");

  v1::FromServer server;
  server.set_server("p1");
  server.mutable_statistics()->add_contributions();
  server.mutable_statistics()->add_layers();
  REQUIRE(Fault(server) == "message: a Gram matrix is not square in the contributions");

  server.mutable_hello();
  for (int i = 0; i < 5000; ++i) server.mutable_hello()->add_jobs();
  REQUIRE(Fault(server) == "jobs: 5000 entries, at most 4096");
}

v1::ToWorker OrderWithPlan() {
  v1::ToWorker wire;
  wire.set_worker("w1");
  wire.mutable_member_order()->set_run(v1::RUN_STATE_RUN);
  wire.mutable_member_order()->mutable_plan()->set_number(1);
  return wire;
}

TEST_CASE("a plan that is too large or names no member is refused before memory is taken for it") {
  v1::ToWorker wire = OrderWithPlan();
  REQUIRE(Decode(&wire).ok());

  auto* plan = wire.mutable_member_order()->mutable_plan();
  for (int i = 0; i < 4097; ++i) plan->add_members()->set_worker("w1");
  REQUIRE(Fault(wire) == "members: 4097 entries, at most 4096");

  wire = OrderWithPlan();
  plan = wire.mutable_member_order()->mutable_plan();
  plan->add_members()->set_worker("../etc");
  REQUIRE(Fault(wire) == "message: a member of a plan has no name");

  wire = OrderWithPlan();
  plan = wire.mutable_member_order()->mutable_plan();
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 600; ++k) {
      if (plan->replicas_size() <= i) plan->add_replicas();
      plan->mutable_replicas(i)->add_stages();
    }
  }
  REQUIRE(Fault(wire) == "message: a plan of 1200 stages");

  wire = OrderWithPlan();
  plan = wire.mutable_member_order()->mutable_plan();
  plan->add_replicas()->add_stages()->add_devices("w1 0");
  REQUIRE(Fault(wire) == "devices: \"w1 0\" is no name");

  wire = OrderWithPlan();
  plan = wire.mutable_member_order()->mutable_plan();
  auto* program = plan->add_programs();
  program->set_device("w1/0");
  program->add_operations();
  REQUIRE(Fault(wire) == "kind: 0 is no known choice");
  program->mutable_operations()->Clear();
  for (int i = 0; i <= 1 << 22; ++i) program->add_operations();
  REQUIRE(Fault(wire) == "message: a plan of 4194305 operations");
}

TEST_CASE("members_of_a_plan_have_any_name_that_a_worker_may_have") {
  v1::ToWorker wire = OrderWithPlan();
  wire.set_worker("GPU_1.example.com");
  auto* plan = wire.mutable_member_order()->mutable_plan();
  plan->add_members()->set_worker("GPU_1.example.com");
  plan->add_replicas()->add_stages()->add_devices("GPU_1.example.com/0");
  REQUIRE(Decode(&wire).ok());
}

v1::FromWorker Traced() {
  v1::FromWorker wire = Envelope();
  auto* device = wire.mutable_step_traced()->mutable_trace()->add_devices();
  device->set_device("w1/0");
  auto* span = device->add_spans();
  span->set_kind(v1::TRACE_KIND_FORWARD);
  span->set_chunks(1);
  span->set_end_ns(5);
  return wire;
}

TEST_CASE("a step's trace that is too long or cannot be is refused") {
  v1::FromWorker wire = Traced();
  REQUIRE(Decode(&wire).ok());

  const auto fault = [](auto change) {
    v1::FromWorker changed = Traced();
    change(*changed.mutable_step_traced()->mutable_trace());
    return Fault(changed);
  };
  using Trace = v1::StepTrace;
  CHECK(fault([](Trace& t) { t.mutable_devices(0)->mutable_spans(0)->set_start_ns(6); }) ==
        "message: a span ends before it begins");
  CHECK(fault([](Trace& t) { t.mutable_devices(0)->mutable_spans(0)->set_chunk(1); }) ==
        "message: a chunk that its micro-batch does not have");
  CHECK(fault([](Trace& t) { t.mutable_devices(0)->mutable_spans(0)->set_end_ns(1LL << 60); }) ==
        "end_ns: 1152921504606846976 is out of range");
  CHECK(fault([](Trace& t) { t.mutable_devices(0)->mutable_spans(0)->clear_kind(); }) ==
        "kind: 0 is no known choice");
  CHECK(fault([](Trace& t) { t.mutable_devices(0)->set_device("\x1b[2J"); }) ==
        "message: a device of a trace has no name");
  CHECK(fault([](Trace& t) { t.add_messages()->set_chunks(1); }) ==
        "message: a message has no ends");
  CHECK(fault([](Trace& t) { t.set_step_ns(-1); }) == "step_ns: -1 is out of range");
  CHECK(fault([](Trace& t) {
          for (int i = 0; i < 4999; ++i) t.add_devices();
        }) == "devices: 5000 entries, at most 4096");
  // Spread over devices, so that no list alone is too long.
  CHECK(fault([](Trace& t) {
          for (int i = 0; i < 2; ++i) t.add_devices();
          for (int i = 0; i < kTraceEntriesMax; ++i) t.mutable_devices(1 + i % 2)->add_spans();
        }) == absl::StrCat("message: a trace of ", kTraceEntriesMax + 1, " spans and messages"));
}

TEST_CASE("damaged bytes give an error or a message, never a crash") {
  Rng rng(7);
  int decoded = 0;
  for (const v1::ToWorker& original : OneOfEach<v1::ToWorker>()) {
    const std::string bytes = original.SerializeAsString();
    for (int round = 0; round < 300; ++round) {
      std::string damaged = bytes;
      for (int k = 0; k < 3; ++k)
        damaged[rng.Below(damaged.size())] = static_cast<char>(rng.Next());
      v1::ToWorker wire;
      if (!wire.ParseFromString(damaged)) continue;
      if (Decode(&wire).ok()) ++decoded;
    }
  }
  REQUIRE(decoded > 0);
}

}  // namespace
}  // namespace atl
