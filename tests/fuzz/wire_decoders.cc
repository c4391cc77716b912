// What daemons say to each other on the data plane.

#include <google/protobuf/text_format.h>

#include "common/check.h"
#include "common/net/frame.h"
#include "tests/fuzz/decoder.h"
#include "worker/island/outer_wire.h"
#include "worker/island/save_wire.h"
#include "worker/island/wire.h"

namespace atl::fuzz {
namespace {

using worker::ParseGroupFrame;

template <class Message>
std::string Wire(const std::string& text) {
  Message message;
  ATOLL_CHECK(google::protobuf::TextFormat::ParseFromString(text, &message), text);
  return message.SerializeAsString();
}

// ------------------------------------------------------------------------------------ frames

bool AcceptsFrame(std::string_view bytes) {
  Input input(bytes);
  const bool has_payload = (input.Take<uint8_t>() & 1) != 0;
  v1::Frame frame;
  if (!ParseFrame({input.Rest().data(), input.Rest().size()}, has_payload, &frame).ok()) {
    return false;
  }
  if (frame.has_push_open()) {
    PushIdOf(frame.push_open());
    EncodingOf(frame.push_open().encoding());
    ATOLL_CHECK(
        ChunkCount(frame.push_open().element_count() * 4, frame.push_open().chunk_bytes()) >= 0);
  }
  if (frame.has_pull_open()) RequestOf(frame.pull_open());
  return true;
}

std::vector<std::string> FrameSeeds() {
  const auto frame = [](const std::string& body) {
    return Wire<v1::Frame>("protocol_version: 1 transfer: 7 " + body);
  };
  const std::string key(kLinkKeyBytes, 'k');
  return {
      '\0' + frame(R"(push_open { job: "j-1" island: 1 generation: 2 incarnation: 3 base_version: 4
                     shard: 5 element_count: 64 encoding: TENSOR_ENCODING_BFLOAT16
                     chunk_bytes: 1048576 })"),
      '\0' + frame(R"(push_open { job: "j-1" shard: 5 part: true begin: 8 element_count: 64
                     encoding: TENSOR_ENCODING_INT4 chunk_bytes: 1048576 })"),
      '\0' + frame(R"(pull_open { job: "j-1" version: 4 shard: 5 encoding: TENSOR_ENCODING_FLOAT32
                     chunk_bytes: 1048576 chunk_limit: 9 begin: 1 elements: 2 })"),
      '\0' + frame("pull_reply { element_count: 64 version: 3 }"),
      '\0' + frame("push_grant { first_chunk: 2 }"),
      '\1' + frame("chunk { index: 3 }"),
      '\1' + frame("chunk { index: 3 number: 9 tag: '0123456789abcdef' }"),
      '\0' + frame("link_hello { key: '" + key + "' once: '" + key +
                   "' has_aes: true tag: '0123456789abcdef' }"),
      '\0' + frame("link_welcome { once: '" + key + "' tag: '0123456789abcdef' }"),
      '\0' + frame("link_refusal { code: NO_SESSION }"),
      '\0' + frame("push_result { reason: 'no room' }"),
      '\0' +
          frame("peer_hello { job: 'j-1' from: 'a' to: 'b' generation: 1 chunk_bytes: 1048576 }"),
      '\0' + frame("peer_welcome { command_limit: 1 tensor_limit: 2 }"),
      '\0' + frame("peer_open { channel: 1 bytes: 100 header: 'h' }"),
      '\0' + frame("peer_credit { channel: 2 }"),
      '\0' + frame("cancel {}"),
  };
}

const Registration kFrame({"frame", FrameSeeds, AcceptsFrame});

// ------------------------------------------------------------------------ messages of an island

void CheckRank(const worker::LayerShard& shard) {
  ATOLL_CHECK(shard.rank >= 0 && shard.rank < std::ssize(shard.tensor_shares), shard.rank);
}

void Use(const v1::GroupReply& reply) {
  (void)worker::StatusOf(reply);
  for (const auto& held : reply.held()) CheckRank(worker::FromWire(held).shard);
  for (const auto& save : reply.saves()) {
    for (const worker::HeldUnit& held : worker::FromWire(save).units) {
      ATOLL_CHECK(static_cast<int>(held.tier) >= 0 && static_cast<int>(held.tier) < kTiers,
                  static_cast<int>(held.tier));
    }
  }
  for (const auto& boundary : reply.boundaries()) worker::FromWire(boundary);
  for (const auto& memory : reply.memory()) worker::FromWire(memory);
  worker::FromWire(reply.taken());
  worker::FromWire(reply.outer());
  if (reply.has_handover()) worker::FromWire(reply.handover().leadership());
}

void Use(const v1::OuterCall& call) {
  if (call.what() == v1::OuterCall::LAYOUT) worker::OrderFrom(call);
  if (call.what() == v1::OuterCall::CAPTURE) worker::CaptureFrom(call);
  worker::Describe(call);
}

void Use(const v1::TransferCall& call) {
  if (call.what() == v1::TransferCall::PULL) worker::PullFrom(call);
  if (call.what() == v1::TransferCall::PUSH) worker::PushFrom(call);
  if (call.what() == v1::TransferCall::PUSHED) worker::PushDoneFrom(call);
}

void Use(const v1::SaveCall& save) { worker::KeeperTaskOf(save); }

bool AcceptsGroupFrame(std::string_view bytes) {
  const auto frame = ParseGroupFrame({bytes.data(), bytes.size()});
  if (!frame.ok()) return false;
  worker::Describe(*frame);
  if (frame->has_step()) worker::RangesOf(frame->step());
  if (frame->has_reply()) Use(frame->reply());
  if (frame->has_line()) worker::FromWire(frame->line());
  if (frame->has_settle()) worker::FromWire(frame->settle().take());
  if (frame->has_get_layer()) CheckRank(worker::FromWire(frame->get_layer().shard()));
  if (frame->has_outer()) Use(frame->outer());
  if (frame->has_transfer()) Use(frame->transfer());
  if (frame->has_save()) Use(frame->save());
  return true;
}

constexpr char kShard[] = "shard { layer: 1 rank: 1 tensor_shares: 3 tensor_shares: 5 }";

std::vector<std::string> GroupFrameSeeds() {
  const std::string shard = kShard;
  std::vector<std::string> seeds;
  for (const std::string& body : {
           std::string("configure {}"),
           "fetch { items { " + shard + " sources { " + shard +
               " from: 'b' parts: 1 begin: 0 end: 9 } } optimizer_step: 3 }",
           std::string("step { number: 3 ranges { begin: 0 end: 8 } learning_rate: 0.1 }"),
           std::string("evaluate { number: 3 first: 1 count: 2 }"),
           "get_layer { " + shard + " parts: 1 begin: 0 end: 9 }",
           std::string("set_steps { optimizer_steps: 2 }"),
           std::string("rendezvous { key: 'k' value: 'v' }"),
           std::string("line { what: 1 line: 2 step: 3 }"),
           std::string("settle { take { plan: 1 number: 2 sums: 0.5 } }"),
           "reply { code: 3 message: 'x' held { " + shard +
               " elements: 9 owned_begin: 1 owned_end: 3 } memory { peak_bytes: 3 } "
               "saves { save: 1 units { unit { " +
               shard +
               " begin: 0 end: 4 } elements: 4 } } "
               "handover { leadership { island: 1 } } }",
           "save { save: 2 keep: 1 own { " + shard + " begin: 0 end: 4 } }",
           std::string("forget_saves { save: 1 }"),
       }) {
    seeds.push_back(Wire<v1::GroupFrame>("call: 5 epoch: 1 " + body));
  }
  return seeds;
}

const Registration kGroupFrame({"group_frame", GroupFrameSeeds, AcceptsGroupFrame});

bool AcceptsGroupHeader(std::string_view bytes) {
  Input input(bytes);
  const bool piece = (input.Take<uint8_t>() & 1) != 0;
  if (!piece) return worker::ParseTensorHeader({input.Rest().data(), input.Rest().size()}).ok();
  const int64_t payload_bytes = input.Take<int64_t>();
  if (!worker::ParsePieceHeader({input.Rest().data(), input.Rest().size()}, payload_bytes).ok()) {
    return false;
  }
  // What a receiver makes room for.
  ATOLL_CHECK(payload_bytes % 4 == 0 && payload_bytes / 4 <= worker::kPieceElements, payload_bytes);
  return true;
}

std::vector<std::string> GroupHeaderSeeds() {
  return {'\0' + Wire<v1::TensorHeader>("step: 1 replica: 2 stage: 3 from: 'a' to: 'b' "
                                        "element_bytes: 4"),
          '\1' + BytesOf(int64_t{4096}) + Wire<v1::PieceHeader>("part: 1 offset: 4096")};
}

const Registration kGroupHeader({"group_header", GroupHeaderSeeds, AcceptsGroupHeader});

// ----------------------------------------------------- calls of the outer exchange and of saves

// These alone, so that inputs are not spent on the frame around them.
template <class Call, class Mutable>
bool AcceptsCall(std::string_view bytes, Mutable mutable_call) {
  v1::GroupFrame frame;
  if (!mutable_call(frame)->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return false;
  }
  return AcceptsGroupFrame(frame.SerializeAsString());
}

bool AcceptsOuter(std::string_view bytes) {
  Input input(bytes);
  switch (input.Take<uint8_t>() % 3) {
    case 0:
      return AcceptsCall<v1::OuterCall>(input.Rest(),
                                        [](auto& frame) { return frame.mutable_outer(); });
    case 1:
      return AcceptsCall<v1::TransferCall>(input.Rest(),
                                           [](auto& frame) { return frame.mutable_transfer(); });
    default:
      return AcceptsCall<v1::OuterHeld>(
          input.Rest(), [](auto& frame) { return frame.mutable_reply()->mutable_outer(); });
  }
}

std::vector<std::string> OuterSeeds() {
  worker::OuterOrder order;
  order.layout = {{.layer = 1, .range = {0, 8}, .holders = {"a", "b"}}};
  order.tag = {4, ContributionId{1, 2, 3, 4}};
  order.sources = {{"a", 1, {0, 8}}};
  v1::OuterCall layout, capture;
  worker::ToWire(order, &layout);
  worker::ToWire(worker::CaptureDelta{{1, 2, 3, 4}, Encoding::kBfloat16, {}}, &capture);
  capture.set_what(v1::OuterCall::CAPTURE);
  worker::OuterHoldings holdings;
  holdings.tag = order.tag;
  v1::OuterHeld held;
  worker::ToWire(holdings, &held);
  worker::ShardPart part;
  part.shard = 1, part.layer = 2, part.elements = 64;
  part.part_begin = 8, part.part_elements = 16;
  part.server = "s", part.endpoint = "tcp://127.0.0.1:1";
  v1::TransferCall pull, push, pushed;
  worker::ToWire(worker::StartPull{"j-1", 3, 4, {part}}, &pull);
  worker::ToWire(worker::PushShards{"j-1", {1, 2, 3, 4}, Encoding::kFloat32, {part}}, &push);
  return {'\0' + layout.SerializeAsString(), '\0' + capture.SerializeAsString(),
          '\1' + pull.SerializeAsString(), '\1' + push.SerializeAsString(),
          '\2' + held.SerializeAsString()};
}

const Registration kOuter({"outer_wire", OuterSeeds, AcceptsOuter});

bool AcceptsSave(std::string_view bytes) {
  Input input(bytes);
  if (input.Take<uint8_t>() % 2 == 0) {
    return AcceptsCall<v1::SaveCall>(input.Rest(),
                                     [](auto& frame) { return frame.mutable_save(); });
  }
  return AcceptsCall<v1::HeldSave>(input.Rest(),
                                   [](auto& frame) { return frame.mutable_reply()->add_saves(); });
}

std::vector<std::string> SaveSeeds() {
  const std::string unit = std::string(" { ") + kShard + " begin: 0 end: 4 }";
  return {'\0' + Wire<v1::SaveCall>("save: 3 keep: 2 tier: 1 own" + unit +
                                    " fetch { from: 'b' unit" + unit + " }"),
          '\1' + Wire<v1::HeldSave>("save: 3 units { tier: 0 elements: 8 unit" + unit + " }")};
}

const Registration kSave({"save_wire", SaveSeeds, AcceptsSave});

}  // namespace
}  // namespace atl::fuzz
