// Decoders of what daemons send each other on the data plane.

#include <google/protobuf/text_format.h>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/net/frame.h"
#include "common/net/session.h"
#include "proto/group.pb.h"
#include "tests/fuzz/decoder.h"
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
    return Wire<v1::Frame>("protocol_version: 2 transfer: 7 " + body);
  };
  const std::string key(kLinkKeyBytes, 'k');
  return {
      '\0' + frame(R"(push_open { job: "j-1" island: 1 generation: 2 incarnation: 3 base_version: 4
                     shard: 5 element_count: 64 encoding: TENSOR_ENCODING_BFLOAT16
                     chunk_bytes: 1048576 })"),
      '\0' + frame(R"(push_open { job: "j-1" shard: 5 part: true begin: 8 element_count: 64
                     encoding: TENSOR_ENCODING_INT4 chunk_bytes: 1048576 })"),
      '\0' + frame(R"(pull_open { job: "j-1" version: 4 shard: 5
                     chunk_bytes: 1048576 begin: 1 elements: 2 })"),
      '\0' + frame("transfer_start { element_count: 64 version: 3 }"),
      '\0' + frame("transfer_start { first_chunk: 2 }"),
      '\1' + frame("chunk { index: 3 }"),
      '\1' + frame("chunk { index: 3 number: 9 tag: '0123456789abcdef' }"),
      '\0' + frame("link_hello { key: '" + key + "' once: '" + key +
                   "' has_aes: true tag: '0123456789abcdef' }"),
      '\0' + frame("link_welcome { once: '" + key + "' tag: '0123456789abcdef' }"),
      '\0' + frame("link_refusal { code: NO_SESSION }"),
      '\0' + frame("transfer_end { reason: 'no room' }"),
      '\0' +
          frame("peer_hello { job: 'j-1' from: 'a' to: 'b' generation: 1 chunk_bytes: 1048576 }"),
      '\0' + frame("peer_welcome { limits: [1, 2, 3, 4] }"),
      '\0' + frame("peer_open { channel: 1 bytes: 100 header: 'h' sequence: 1 }"),
      '\0' + frame("peer_credit { channel: 2 }"),
      '\0' + frame("cancel {}"),
  };
}

const Registration kFrame({"frame", FrameSeeds, AcceptsFrame});

// ------------------------------------------------------------------------ messages of an island

bool AcceptsGroupFrame(std::string_view bytes) {
  const auto frame = ParseGroupFrame({bytes.data(), bytes.size()});
  if (!frame.ok()) return false;
  worker::Describe(*frame);
  if (const GetLayerCall* call = worker::BodyIf<GetLayerCall>(*frame)) {
    ATOLL_CHECK(call->shard.rank < std::ssize(call->shard.tensor_split_ratios), call->shard.rank);
  }
  if (const GroupReply* reply = worker::BodyIf<GroupReply>(*frame)) {
    (void)worker::StatusFromReply(*reply);
  }
  // A frame that was taken can be sent on.
  const auto again = ParseGroupFrame(worker::Serialize(*frame));
  ATOLL_CHECK(again.ok(), again.status().ToString());
  return true;
}

std::vector<std::string> GroupFrameSeeds() {
  const LayerShard shard{1, 1, {3, 5}};
  const std::vector<ShardPlacement> shards = {{0, 1, 0, 64, "s", "tcp://127.0.0.1:1"}};
  const OuterTag tag{4, ContributionId{1, 2, 3, 4}, {5, 6}};
  const std::vector<ShardPart> parts = {{shards[0], 8, 16}};
  GroupReply reply{.code = 3, .message = "x"};
  reply.held = {{.shard = shard, .elements = 9, .owned = {1, 3}}};
  reply.saves = {{1, 2, {{{shard, {0, 4}}, 4, Tier::kDisk}}}};
  reply.outer = {tag, {{1, {0, 8}, {}}}, Encoding::kInt4, shards};
  reply.memory = {{.peak_bytes = 3}};
  reply.handover.emplace().leadership.island = 1;
  std::vector<std::string> seeds;
  for (const GroupBody& body : std::vector<GroupBody>{
           ConfigureCall{{{"sync/0", "v"}}},
           FetchCall{{{shard, {{shard, "b", 1, {0, 9}}}}}, 3},
           StepCall{3, {{0, 8}}, 0.1},
           EvaluateCall{3, 1, 2, {0.5}},
           ReferenceCall{3, {{0, 8}}, true},
           GetLayerCall{shard, 1, false, {0, 9}},
           SetStepsCall{2},
           SharedLinkCall{SharedLinkEvent::kGo, 2, {3, 0, 0, 0}},
           DrainCall{StepSums{1, 2, {0.5}}},
           reply,
           SaveCall{2, {{{shard, {0, 4}}}, {{{shard, {0, 4}}, "b"}}}, Tier::kDisk, 0, 1},
           ForgetSaves{1},
           OuterLayoutCall{{{1, {0, 8}, {"a", "b"}}}, tag, Encoding::kInt8, shards},
           CaptureDelta{*tag.captured, Encoding::kBfloat16, shards},
           FinishCall{tag},
           PushShards{"j-1", *tag.captured, Encoding::kFloat32, parts},
           StartPull{"j-1", 3, 4, parts},
           PushShardDone{{"j-1", 1, 2, 3, 4, 5}},
           PullDone{3, 1},
           PullFailed{3}}) {
    seeds.push_back(worker::Serialize({.call = 5, .epoch = 1, .body = body}));
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
  // The receiver makes room for this.
  ATOLL_CHECK(payload_bytes % 4 == 0 && payload_bytes / 4 <= worker::kChunkElements, payload_bytes);
  return true;
}

std::vector<std::string> GroupHeaderSeeds() {
  return {'\0' + Wire<v1::TensorHeader>("part { step: 1 replica: 2 stage: 3 } from: 'a' to: 'b' "
                                        "element_bytes: 4"),
          '\0' + Wire<v1::TensorHeader>("votes { step: 1 sender: 2 } from: 'a' to: 'b' "
                                        "element_bytes: 8"),
          '\1' + ToBytes(int64_t{4096}) + Wire<v1::ChunkHeader>("part: 1 offset: 4096")};
}

const Registration kGroupHeader({"group_header", GroupHeaderSeeds, AcceptsGroupHeader});

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

// Handles, as an end of a link does, a frame that comes before there is a session. A welcome or a
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
