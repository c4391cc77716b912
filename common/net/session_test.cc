#include "common/net/session.h"

#include <zmq.h>

#include <catch2/catch.hpp>
#include <optional>
#include <set>
#include <vector>

namespace atl {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// A client and a server that know each other's keys.
struct Pair {
  explicit Pair(bool client_has_aes = true, bool server_has_aes = true) {
    Handshake handshake(client_keys, server_keys.public_key, client_has_aes);
    hello = handshake.hello();
    absl::StatusOr<Session> accepted = AcceptHello(server_keys, hello, &welcome, server_has_aes);
    REQUIRE(accepted.status().ToString() == "OK");
    absl::StatusOr<Session> welcomed = handshake.OnWelcome(welcome);
    REQUIRE(welcomed.status().ToString() == "OK");
    client.emplace(*std::move(welcomed));
    server.emplace(*std::move(accepted));
  }

  KeyPair client_keys = GenerateKeyPair().value(), server_keys = GenerateKeyPair().value();
  v1::LinkHello hello;
  v1::LinkWelcome welcome;
  std::optional<Session> client, server;
};

std::string SendHeader(Session& from, const std::string& header) {
  std::string sealed = from.SealHeader(header);
  from.HeaderSent();
  return sealed;
}

// A chunk as it goes over a link.
struct SealedChunk {
  v1::Frame frame;
  std::string payload;
};
SealedChunk SealChunk(Session& from, const std::string& plain, uint64_t transfer = 7,
                      int64_t index = 0) {
  SealedChunk chunk{MakeFrame(transfer), plain};
  chunk.frame.mutable_chunk()->set_index(index);
  const SealKey key = from.KeyForChunk(&chunk.frame);
  chunk.frame.mutable_chunk()->set_tag(Seal(key, chunk.frame.chunk().number(),
                                            Session::ChunkContext(chunk.frame), Bytes(plain),
                                            reinterpret_cast<std::byte*>(chunk.payload.data())));
  return chunk;
}
// Returns the chunk's content; nullopt: it does not open.
std::optional<std::string> OpenChunk(Session& to, const SealedChunk& chunk) {
  std::string plain = chunk.payload;
  const v1::Chunk& header = chunk.frame.chunk();
  const bool opened =
      Open(to.GetChunkKey(header), header.number(), Session::ChunkContext(chunk.frame),
           Bytes(chunk.payload), header.tag(), reinterpret_cast<std::byte*>(plain.data()));
  return opened ? std::optional(plain) : std::nullopt;
}

TEST_CASE("headers and chunks open at the other end, with either cipher") {
  const auto [client_has_aes, server_has_aes] =
      GENERATE(std::pair(true, true), std::pair(true, false), std::pair(false, true));
  Pair pair(client_has_aes, server_has_aes);
  for (auto [from, to] :
       {std::pair(&*pair.client, &*pair.server), std::pair(&*pair.server, &*pair.client)}) {
    for (const std::string text : {"a header", "", "another"}) {
      const std::string sealed = SendHeader(*from, text);
      REQUIRE(sealed.size() == text.size() + kSealedHeaderCost);
      REQUIRE(to->OpenHeader(sealed).value() == text);
    }
    const SealedChunk chunk = SealChunk(*from, "the payload");
    REQUIRE(chunk.payload != "the payload");
    REQUIRE(OpenChunk(*to, chunk) == "the payload");
  }
}

TEST_CASE("a header that is repeated, left out, reordered, cut or changed ends its session") {
  const auto broken_by = [](auto sin) {
    Pair pair;
    std::vector<std::string> sealed;
    for (int i = 0; i < 3; ++i) sealed.push_back(SendHeader(*pair.client, "header"));
    REQUIRE(pair.server->OpenHeader(sealed[0]).ok());
    const absl::Status refused = pair.server->OpenHeader(sin(pair, sealed)).status();
    REQUIRE(absl::IsDataLoss(refused));
    REQUIRE(refused.message().find("frame 1 of the session does not open") == 0);
    REQUIRE(!pair.server->OpenHeader(sealed[1]).ok());  // the one that was due does not any more
  };
  broken_by([](Pair&, auto& sealed) { return sealed[0]; });
  broken_by([](Pair&, auto& sealed) { return sealed[2]; });
  broken_by([](Pair&, auto& sealed) { return sealed[1].substr(0, sealed[1].size() - 1); });
  broken_by([](Pair&, auto& sealed) { return sealed[1].substr(0, kSessionNameBytes + 3); });
  broken_by([](Pair&, auto& sealed) { return sealed[1] + "x"; });
  for (size_t at = 0; at < 30; ++at) {  // the name, the text, the tag
    broken_by([at](Pair&, auto sealed) {
      sealed[1][at] = static_cast<char>(sealed[1][at] ^ 1);
      return sealed[1];
    });
  }
  // A header of the other direction; and one of another session of the same pair, by the name of
  // this one.
  broken_by([](Pair& pair, auto&) { return SendHeader(*pair.server, "header"); });
  broken_by([](Pair& pair, auto& sealed) {
    Handshake handshake(pair.client_keys, pair.server_keys.public_key);
    v1::LinkWelcome welcome;
    REQUIRE(AcceptHello(pair.server_keys, handshake.hello(), &welcome).ok());
    Session other = handshake.OnWelcome(welcome).value();
    SendHeader(other, "header");
    return sealed[1].substr(0, kSessionNameBytes) +
           SendHeader(other, "header").substr(kSessionNameBytes);
  });
}

TEST_CASE("a chunk opens in its place, its message, its direction and its session alone") {
  Pair pair, other;
  const SealedChunk chunk = SealChunk(*pair.client, "the payload");
  const SealedChunk next = SealChunk(*pair.client, "the second ", 7, 1);
  const auto refused = [&](auto change) {
    SealedChunk changed = chunk;
    change(changed);
    REQUIRE(OpenChunk(*pair.server, changed) == std::nullopt);
  };
  refused([](SealedChunk& c) { c.payload[3] = static_cast<char>(c.payload[3] ^ 4); });
  refused([](SealedChunk& c) { c.payload.pop_back(); });
  refused([](SealedChunk& c) { c.payload += "x"; });
  refused([](SealedChunk& c) { c.payload.clear(); });
  refused([](SealedChunk& c) { c.frame.set_transfer(8); });
  refused([](SealedChunk& c) { c.frame.mutable_chunk()->set_index(1); });
  refused([](SealedChunk& c) { c.frame.mutable_chunk()->set_number(1); });
  refused([](SealedChunk& c) { c.frame.mutable_chunk()->set_number(UINT64_MAX); });
  refused([](SealedChunk& c) { c.frame.mutable_chunk()->set_tag(std::string(16, 't')); });
  refused([](SealedChunk& c) { c.frame.mutable_chunk()->set_tag(""); });
  refused([&](SealedChunk& c) { c.payload = next.payload; });
  REQUIRE(OpenChunk(*pair.client, chunk) == std::nullopt);
  REQUIRE(OpenChunk(*other.server, chunk) == std::nullopt);
  REQUIRE(OpenChunk(*pair.server, next) == "the second ");  // in any order
  REQUIRE(OpenChunk(*pair.server, chunk) == "the payload");
}

TEST_CASE("keys are replaced after so many frames, and no two of a session are equal") {
  Session::Secrets secrets{.name = "12345678",
                           .headers_out = {1},
                           .headers_in = {2},
                           .chunks_out = {3},
                           .chunks_in = {4}};
  Session from(secrets, /*frames_a_key=*/3);
  std::swap(secrets.headers_out, secrets.headers_in);
  std::swap(secrets.chunks_out, secrets.chunks_in);
  Session to(secrets, 3);
  std::vector<SealedChunk> chunks;
  std::set<Secret> keys;
  for (int i = 0; i < 10; ++i) {
    REQUIRE(to.OpenHeader(SendHeader(from, "header")).value() == "header");
    v1::Frame frame = MakeFrame(1);
    keys.insert(from.KeyForChunk(&frame).secret);
    REQUIRE(frame.chunk().number() == static_cast<uint64_t>(2 * i));
    chunks.push_back(SealChunk(from, std::to_string(i)));
  }
  REQUIRE(keys.size() == 7);  // 20 numbers
  for (int i = 9; i >= 0; --i) REQUIRE(OpenChunk(to, chunks[i]) == std::to_string(i));
  // A header of one key's reign is none of another's.
  Session replayed(secrets, 3);
  Session again(Session::Secrets{.name = "12345678", .headers_out = {1}}, 3);
  const std::string first = SendHeader(again, "header");
  for (int i = 0; i < 3; ++i)
    REQUIRE(replayed.OpenHeader(i == 0 ? first : SendHeader(again, "h")).ok());
  REQUIRE(!replayed.OpenHeader(first).ok());
}

TEST_CASE("each session of a pair has keys of its own") {
  Pair pair;
  Handshake handshake(pair.client_keys, pair.server_keys.public_key);
  v1::LinkWelcome welcome;
  Session server = AcceptHello(pair.server_keys, handshake.hello(), &welcome).value();
  REQUIRE(!server.IsNamed(SendHeader(*pair.client, "header")));
  REQUIRE(OpenChunk(server, SealChunk(*pair.client, "payload")) == std::nullopt);
}

TEST_CASE("a hello is taken only of its key's holder, as it was said, by whom it is for") {
  Pair pair;
  v1::LinkWelcome welcome;
  const auto refused = [&](auto change) {
    v1::LinkHello hello = pair.hello;
    change(hello);
    REQUIRE(absl::IsInvalidArgument(AcceptHello(pair.server_keys, hello, &welcome).status()));
  };
  const auto raw = [](const std::string& z85) {
    std::string key(32, '\0');
    zmq_z85_decode(reinterpret_cast<uint8_t*>(key.data()), z85.c_str());
    return key;
  };
  refused([&](auto& hello) { hello.set_key(raw(GenerateKeyPair()->public_key)); });
  refused([&](auto& hello) { hello.set_once(raw(GenerateKeyPair()->public_key)); });
  refused([](auto& hello) { hello.set_has_aes(false); });
  refused([](auto& hello) { hello.mutable_tag()->front() ^= 1; });
  refused([](auto& hello) { hello.set_once(std::string(32, '\0')); });  // of small order
  refused([](auto& hello) { hello.set_key(std::string(32, '\0')); });
  REQUIRE(!AcceptHello(GenerateKeyPair().value(), pair.hello, &welcome).ok());
  // Repeated, it gets an answer that only its first sender can use.
  REQUIRE(AcceptHello(pair.server_keys, pair.hello, &welcome).ok());
  REQUIRE(ReadHelloKey(pair.hello) == pair.client_keys.public_key);
}

TEST_CASE("a welcome is taken only of the server's key's holder, for this hello, as it was said") {
  const KeyPair client = GenerateKeyPair().value(), server = GenerateKeyPair().value();
  const Handshake handshake(client, server.public_key);
  v1::LinkWelcome welcome, other;
  REQUIRE(AcceptHello(server, handshake.hello(), &welcome).ok());
  REQUIRE(AcceptHello(server, Handshake(client, server.public_key).hello(), &other).ok());
  REQUIRE(absl::IsInvalidArgument(handshake.OnWelcome(other).status()));
  v1::LinkWelcome changed = welcome;
  changed.set_has_aes(!welcome.has_aes());
  REQUIRE(!handshake.OnWelcome(changed).ok());
  changed = welcome;
  changed.set_once(std::string(32, '\0'));
  REQUIRE(!handshake.OnWelcome(changed).ok());
  REQUIRE(handshake.OnWelcome(welcome).ok());
}

TEST_CASE("a refusal counts only of the server's key's holder, for this hello") {
  const KeyPair client = GenerateKeyPair().value(), server = GenerateKeyPair().value();
  const Handshake handshake(client, server.public_key);
  REQUIRE(handshake.IsRefusal(RefuseHello(server, handshake.hello()).value()));
  REQUIRE(!handshake.IsRefusal(RefuseHello(GenerateKeyPair().value(), handshake.hello()).value()));
  const Handshake other(client, server.public_key);
  REQUIRE(!other.IsRefusal(RefuseHello(server, handshake.hello()).value()));
  REQUIRE(!handshake.IsRefusal(v1::LinkRefusal()));
}

TEST_CASE("the keys of ZeroMQ's CURVE are keys of X25519") {
  const KeyPair keys = GenerateKeyPair().value();
  Secret secret, public_key;
  zmq_z85_decode(secret.data(), keys.secret_key.c_str());
  zmq_z85_decode(public_key.data(), keys.public_key.c_str());
  REQUIRE(AgreementKey::FromSecret(secret).public_key() == public_key);
}

// RFC 7748, 6.1.
TEST_CASE("a key is agreed as the standard says") {
  const auto hex = [](const char* text) {
    Secret secret;
    for (size_t i = 0; i < secret.size(); ++i) {
      secret[i] = static_cast<uint8_t>(std::stoi(std::string(text + 2 * i, 2), nullptr, 16));
    }
    return secret;
  };
  const AgreementKey bob = AgreementKey::FromSecret(
      hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
  const Secret shared = hex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
  REQUIRE(bob.public_key() ==
          hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"));
  REQUIRE(
      bob.Agree(hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")).value() ==
      std::string(shared.begin(), shared.end()));
}

}  // namespace
}  // namespace atl
