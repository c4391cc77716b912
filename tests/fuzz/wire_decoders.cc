// What daemons say to each other on the data plane.

#include <google/protobuf/text_format.h>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/net/frame.h"
#include "common/net/session.h"
#include "tests/fuzz/decoder.h"
#include "worker/island/messages/outer_wire.h"
#include "worker/island/messages/save_wire.h"
#include "worker/island/messages/wire.h"

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
    MakePushId(frame.push_open());
    EncodingFromWire(frame.push_open().encoding());
    ATOLL_CHECK(
        ChunkCount(frame.push_open().element_count() * 4, frame.push_open().chunk_bytes()) >= 0);
  }
  if (frame.has_pull_open()) ToPullRequest(frame.pull_open());
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
      '\0' + frame("peer_open { channel: 1 bytes: 100 header: 'h' sequence: 1 }"),
      '\0' + frame("peer_credit { channel: 2 }"),
      '\0' + frame("cancel {}"),
  };
}

const Registration kFrame({"frame", FrameSeeds, AcceptsFrame});

// ------------------------------------------------------------------------ messages of an island

void CheckRank(const worker::LayerShard& shard) {
  ATOLL_CHECK(shard.rank >= 0 && shard.rank < std::ssize(shard.tensor_split_ratios), shard.rank);
}

void Use(const v1::GroupReply& reply) {
  (void)worker::StatusFromReply(reply);
  for (const auto& held : reply.held()) CheckRank(worker::FromWire(held).shard);
  for (const auto& save : reply.saves()) {
    for (const worker::HeldUnit& held : worker::FromWire(save).units) {
      ATOLL_CHECK(static_cast<int>(held.tier) >= 0 && static_cast<int>(held.tier) < kTiers,
                  static_cast<int>(held.tier));
    }
  }
  for (const auto& stage_link : reply.stage_links()) worker::FromWire(stage_link);
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

void Use(const v1::SaveCall& save) { worker::ParseSaveCall(save); }

bool AcceptsGroupFrame(std::string_view bytes) {
  const auto frame = ParseGroupFrame({bytes.data(), bytes.size()});
  if (!frame.ok()) return false;
  worker::Describe(*frame);
  if (frame->has_step()) worker::RangesFromStepCall(frame->step());
  if (frame->has_reply()) Use(frame->reply());
  if (frame->has_link()) worker::FromWire(frame->link());
  if (frame->has_drain()) worker::FromWire(frame->drain().take());
  if (frame->has_get_layer()) CheckRank(worker::FromWire(frame->get_layer().shard()));
  if (frame->has_outer()) Use(frame->outer());
  if (frame->has_transfer()) Use(frame->transfer());
  if (frame->has_save()) Use(frame->save());
  return true;
}

constexpr char kShard[] =
    "shard { layer: 1 rank: 1 tensor_split_ratios: 3 tensor_split_ratios: 5 }";

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
           std::string("link { what: 1 link: 2 step: 3 }"),
           std::string("drain { take { plan: 1 number: 2 sums: 0.5 } }"),
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
  const bool chunk = (input.Take<uint8_t>() & 1) != 0;
  if (!chunk) return worker::ParseTensorHeader({input.Rest().data(), input.Rest().size()}).ok();
  const int64_t payload_bytes = input.Take<int64_t>();
  if (!worker::ParseChunkHeader({input.Rest().data(), input.Rest().size()}, payload_bytes).ok()) {
    return false;
  }
  // What a receiver makes room for.
  ATOLL_CHECK(payload_bytes % 4 == 0 && payload_bytes / 4 <= worker::kChunkElements, payload_bytes);
  return true;
}

std::vector<std::string> GroupHeaderSeeds() {
  return {'\0' + Wire<v1::TensorHeader>("step: 1 replica: 2 stage: 3 from: 'a' to: 'b' "
                                        "element_bytes: 4"),
          '\1' + ToBytes(int64_t{4096}) + Wire<v1::ChunkHeader>("part: 1 offset: 4096")};
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
  const std::string unit = absl::StrCat(" { ", kShard, " begin: 0 end: 4 }");
  return {'\0' + Wire<v1::SaveCall>("save: 3 keep: 2 tier: 1 own" + unit +
                                    " fetch { from: 'b' unit" + unit + " }"),
          '\1' + Wire<v1::HeldSave>("save: 3 units { tier: 0 elements: 8 unit" + unit + " }")};
}

const Registration kSave({"save_wire", SaveSeeds, AcceptsSave});

// ------------------------------------------------------------------------------- sealed links

KeyPair PairFrom(const std::string& secret_key) {
  const auto public_key = DerivePublicKey(secret_key);
  ATOLL_CHECK(public_key.ok(), secret_key);
  return {*public_key, secret_key};
}

// Fixed, so that a hello of another process proves its key, too.
const KeyPair& ClientKeys() {
  static const KeyPair& keys = *new KeyPair(PairFrom("D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"));
  return keys;
}
const KeyPair& ServerKeys() {
  static const KeyPair& keys = *new KeyPair(PairFrom("JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"));
  return keys;
}

// What an end of a link does with a frame that comes before there is a session. A welcome or a
// refusal is of another handshake than ours, and proves nothing.
bool AcceptsHandshake(std::string_view bytes) {
  v1::Frame frame;
  if (!ParseFrame({bytes.data(), bytes.size()}, /*has_payload=*/false, &frame).ok()) return false;
  if (frame.has_link_hello()) {
    (void)ReadHelloKey(frame.link_hello());
    (void)RefuseHello(ServerKeys(), frame.link_hello());
    v1::LinkWelcome welcome;
    return AcceptHello(ServerKeys(), frame.link_hello(), &welcome).ok();
  }
  static const Handshake& ours = *new Handshake(ClientKeys(), ServerKeys().public_key);
  ATOLL_CHECK(!frame.has_link_welcome() || !ours.OnWelcome(frame.link_welcome()).ok());
  ATOLL_CHECK(!frame.has_link_refusal() || !ours.IsRefusal(frame.link_refusal()));
  return frame.has_link_welcome() || frame.has_link_refusal();
}

std::vector<std::string> HandshakeSeeds() {
  const Handshake handshake(ClientKeys(), ServerKeys().public_key);
  v1::LinkWelcome welcome;
  const auto refusal = RefuseHello(ServerKeys(), handshake.hello());
  ATOLL_CHECK(refusal.ok() && AcceptHello(ServerKeys(), handshake.hello(), &welcome).ok());
  std::vector<v1::Frame> frames(3);
  *frames[0].mutable_link_hello() = handshake.hello();
  *frames[1].mutable_link_welcome() = welcome;
  *frames[2].mutable_link_refusal() = *refusal;
  std::vector<std::string> seeds;
  for (v1::Frame& frame : frames) {
    frame.set_protocol_version(kProtocolVersion);
    frame.set_transfer(7);
    seeds.push_back(frame.SerializeAsString());
  }
  return seeds;
}

const Registration kHandshake({"link_handshake", HandshakeSeeds, AcceptsHandshake});

// Changes the message on its way: an optional field, or a byte of its encoding. Whether it still is
// one that ParseFrame takes.
template <class Message>
bool Intercept(Input& input, Message* message) {
  const auto kind = input.Take<uint8_t>();
  if (kind % 4 == 1) message->set_has_aes(!message->has_aes());
  if (kind % 4 != 2) return true;
  std::string bytes = message->SerializeAsString();
  bytes[input.Take<uint8_t>() % bytes.size()] ^= static_cast<char>(input.Take<uint8_t>());
  return message->ParseFromString(bytes) && message->tag().size() == kLinkTagBytes &&
         message->once().size() == kLinkKeyBytes;
}

// Sealed headers from one end to the other: what is opened has been sealed, once, in order.
bool AcceptsHeaders(Input& input, Session from, Session to) {
  bool whole = true;
  while (!input.Rest().empty()) {
    const auto kind = input.Take<uint8_t>();
    const std::string header = input.TakeText(input.Take<uint8_t>());
    std::string sealed = from.SealHeader({header.data(), header.size()});
    from.HeaderSent();
    if (kind % 8 == 1) {  // lost
      whole = false;
      continue;
    }
    const std::string sent = sealed;
    if (kind % 8 == 2) sealed[kind % sealed.size()] ^= 1;
    if (kind % 8 == 3) sealed.resize(kind % sealed.size());
    whole = whole && sealed == sent;
    const auto opened = to.OpenHeader({sealed.data(), sealed.size()});
    ATOLL_CHECK(opened.ok() == whole, kind);
    ATOLL_CHECK(!opened.ok() || *opened == header, kind);
    if (kind % 8 != 4) continue;  // repeated
    whole = false;
    ATOLL_CHECK(!to.OpenHeader({sealed.data(), sealed.size()}).ok(), kind);
  }
  return whole;
}

// A handshake whose messages are changed as the input says: an end accepts what the other has sent.
bool AcceptsSession(std::string_view bytes) {
  Input input(bytes);
  const Handshake client(ClientKeys(), ServerKeys().public_key, (input.Take<uint8_t>() & 1) != 0);
  v1::LinkHello hello = client.hello();
  if (!Intercept(input, &hello) || hello.key().size() != kLinkKeyBytes) return false;
  const bool hello_is_whole = hello.SerializeAsString() == client.hello().SerializeAsString();
  if (const auto refusal = RefuseHello(ServerKeys(), hello); refusal.ok()) {
    v1::LinkHello said = hello;  // but for its proof, which a refusal does not need
    said.set_tag(client.hello().tag());
    ATOLL_CHECK(client.IsRefusal(*refusal) ==
                (said.SerializeAsString() == client.hello().SerializeAsString()));
  }
  v1::LinkWelcome welcome;
  auto server = AcceptHello(ServerKeys(), hello, &welcome);
  ATOLL_CHECK(server.ok() == hello_is_whole);
  if (!server.ok()) return false;
  const std::string answered = welcome.SerializeAsString();
  if (!Intercept(input, &welcome)) return false;
  const bool welcome_is_whole = welcome.SerializeAsString() == answered;
  auto session = client.OnWelcome(welcome);
  ATOLL_CHECK(session.ok() == welcome_is_whole);
  if (!session.ok()) return false;
  const bool to_server = (input.Take<uint8_t>() & 1) != 0;
  return to_server ? AcceptsHeaders(input, *std::move(session), *std::move(server))
                   : AcceptsHeaders(input, *std::move(server), *std::move(session));
}

std::vector<std::string> SessionSeeds() {
  // Who has AES, the hello and the welcome as they are, to whom; then headers of 3 and 0 bytes.
  return {std::string("\1\0\0\1\0\3abc\0\0", 10), std::string("\0\0\0\0\0\3abc\0\0", 10)};
}

const Registration kSession({"link_session", SessionSeeds, AcceptsSession});

}  // namespace
}  // namespace atl::fuzz
