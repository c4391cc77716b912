#include "worker/island/messages/outer_wire.h"

#include <algorithm>
#include <cmath>

namespace atl::worker {
namespace {

constexpr int64_t kCountMax = int64_t{1} << 60;
constexpr int64_t kElementsMax = int64_t{1} << 42;

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " out of range"));
}

absl::Status CheckRange(int32_t layer, int64_t begin, int64_t end) {
  if (layer < 0) return Bad("layer");
  return begin < 0 || end <= begin || end > kElementsMax ? Bad("elements") : absl::OkStatus();
}

absl::Status Check(const v1::ContributionName& name, Version least = kNoVersion) {
  const bool ok = name.island() >= 0 && name.generation() >= 0 && name.incarnation() >= 0 &&
                  name.base_version() >= least && name.base_version() <= kCountMax;
  return ok ? absl::OkStatus() : Bad("contribution");
}

absl::Status Check(const v1::OuterTag& tag) {
  if (tag.base() < kNoVersion || tag.base() > kCountMax) return Bad("version");
  return Check(tag.captured());
}

absl::Status CheckEncoding(int32_t encoding) {
  return IsEncoding(encoding) ? absl::OkStatus() : Bad("encoding");
}

absl::Status Check(const v1::ShardCut& shard) {
  if (shard.shard() < 0) return Bad("shard");
  if (shard.begin() < 0 || shard.begin() > kElementsMax || shard.elements() < 1 ||
      shard.elements() > kElementsMax) {
    return Bad("a shard's elements");
  }
  return CheckRange(shard.layer(), shard.begin(), shard.begin() + shard.elements());
}

ShardPlacement FromWire(const v1::ShardCut& shard) {
  return {shard.shard(), shard.layer(), shard.begin(), shard.elements()};
}

void NameToWire(const ContributionId& id, v1::ContributionName* out) {
  out->set_island(id.island);
  out->set_generation(id.generation);
  out->set_incarnation(id.incarnation);
  out->set_base_version(id.base_version);
}

ContributionId NameFrom(const v1::ContributionName& name) {
  return {name.island(), name.generation(), name.incarnation(), name.base_version()};
}

void PartsToWire(const std::vector<ShardPart>& parts, v1::TransferCall* out) {
  std::vector<std::pair<std::string, std::string>> servers;
  for (const ShardPart& part : parts) {
    const std::pair<std::string, std::string> server{part.endpoint, part.public_key};
    auto found = std::find(servers.begin(), servers.end(), server);
    if (found == servers.end()) {
      found = servers.insert(servers.end(), server);
      v1::TransferCall::Server* to = out->add_servers();
      to->set_name(part.server);
      to->set_endpoint(part.endpoint);
      to->set_public_key(part.public_key);
    }
    v1::TransferCall::Part* to = out->add_parts();
    ToWire(part, to->mutable_shard());
    to->set_begin(part.part_begin);
    to->set_elements(part.part_elements);
    to->set_server(static_cast<int32_t>(found - servers.begin()));
  }
}

std::vector<ShardPart> PartsFrom(const v1::TransferCall& call) {
  std::vector<ShardPart> parts;
  for (const v1::TransferCall::Part& from : call.parts()) {
    ShardPart& part = parts.emplace_back();
    static_cast<ShardPlacement&>(part) = FromWire(from.shard());
    const v1::TransferCall::Server& server = call.servers(from.server());
    part.server = server.name();
    part.endpoint = server.endpoint();
    part.public_key = server.public_key();
    part.part_begin = from.begin();
    part.part_elements = from.elements();
  }
  return parts;
}

}  // namespace

void ToWire(const ShardPlacement& shard, v1::ShardCut* out) {
  out->set_shard(shard.shard);
  out->set_layer(shard.layer);
  out->set_begin(shard.begin);
  out->set_elements(shard.elements);
}

std::vector<ShardPlacement> ShardsFrom(const v1::OuterCall& call) {
  std::vector<ShardPlacement> shards;
  for (const v1::ShardCut& shard : call.shards()) shards.push_back(FromWire(shard));
  return shards;
}

void ToWire(const OuterTag& tag, v1::OuterTag* out) {
  out->set_base(tag.base);
  if (tag.captured) NameToWire(*tag.captured, out->mutable_captured());
  out->mutable_since()->set_generation(tag.since.generation);
  out->mutable_since()->set_change(tag.since.change);
}

OuterTag FromWire(const v1::OuterTag& tag) {
  OuterTag result{tag.base(), std::nullopt, {tag.since().generation(), tag.since().change()}};
  if (tag.has_captured()) result.captured = NameFrom(tag.captured());
  return result;
}

void ToWire(const OuterOrder& order, v1::OuterCall* out) {
  out->set_what(v1::OuterCall::LAYOUT);
  for (const KeptPart& from : order.layout) {
    v1::OuterCall::Part* part = out->add_parts();
    part->set_layer(from.layer);
    part->set_begin(from.range.begin);
    part->set_end(from.range.end);
    for (const NodeId& holder : from.holders) part->add_holders(holder);
  }
  ToWire(order.tag, out->mutable_tag());
  out->set_encoding(static_cast<int32_t>(order.encoding));
  for (const ShardPlacement& shard : order.shards) ToWire(shard, out->add_shards());
  for (const OuterSource& from : order.sources) {
    v1::OuterCall::Source* source = out->add_sources();
    source->set_from(from.from);
    source->set_layer(from.layer);
    source->set_begin(from.range.begin);
    source->set_end(from.range.end);
  }
}

OuterOrder OrderFrom(const v1::OuterCall& call) {
  OuterOrder order;
  for (const v1::OuterCall::Part& from : call.parts()) {
    KeptPart& part = order.layout.emplace_back();
    part.layer = from.layer();
    part.range = {from.begin(), from.end()};
    part.holders.assign(from.holders().begin(), from.holders().end());
  }
  order.tag = FromWire(call.tag());
  order.encoding = static_cast<Encoding>(call.encoding());
  order.shards = ShardsFrom(call);
  for (const v1::OuterCall::Source& from : call.sources()) {
    order.sources.push_back({from.from(), from.layer(), {from.begin(), from.end()}});
  }
  return order;
}

void ToWire(const CaptureDelta& command, v1::OuterCall* out) {
  NameToWire(command.contribution, out->mutable_tag()->mutable_captured());
  out->set_encoding(static_cast<int32_t>(command.encoding));
  for (const ShardPlacement& shard : command.shards) ToWire(shard, out->add_shards());
}

CaptureDelta CaptureFrom(const v1::OuterCall& call) {
  return {NameFrom(call.tag().captured()), static_cast<Encoding>(call.encoding()),
          ShardsFrom(call)};
}

void ToWire(const OuterHoldings& held, v1::OuterHeld* out) {
  ToWire(held.tag, out->mutable_tag());
  for (const OwnedPart& from : held.parts) {
    v1::OuterCall::Part* part = out->add_parts();
    part->set_layer(from.layer);
    part->set_begin(from.range.begin);
    part->set_end(from.range.end);
  }
  out->set_encoding(static_cast<int32_t>(held.encoding));
  for (const ShardPlacement& shard : held.shards) ToWire(shard, out->add_shards());
}

OuterHoldings FromWire(const v1::OuterHeld& held) {
  OuterHoldings result{FromWire(held.tag()), {}, static_cast<Encoding>(held.encoding()), {}};
  for (const v1::OuterCall::Part& part : held.parts()) {
    result.parts.push_back({part.layer(), {part.begin(), part.end()}});
  }
  for (const v1::ShardCut& shard : held.shards()) result.shards.push_back(FromWire(shard));
  return result;
}

void ToWire(const StartPull& pull, v1::TransferCall* out) {
  out->set_what(v1::TransferCall::PULL);
  out->set_job(pull.job);
  out->set_pull(pull.pull);
  out->set_version(pull.version);
  out->set_encoding(static_cast<int32_t>(pull.encoding));
  out->set_fragments(pull.fragments);
  PartsToWire(pull.shards, out);
}

StartPull PullFrom(const v1::TransferCall& call) {
  return {call.job(),
          call.pull(),
          call.version(),
          PartsFrom(call),
          static_cast<Encoding>(call.encoding()),
          std::max<int64_t>(1, call.fragments())};
}

void ToWire(const PushShards& push, v1::TransferCall* out) {
  out->set_what(v1::TransferCall::PUSH);
  out->set_job(push.job);
  NameToWire(push.contribution, out->mutable_contribution());
  out->set_encoding(static_cast<int32_t>(push.encoding));
  PartsToWire(push.shards, out);
}

PushShards PushFrom(const v1::TransferCall& call) {
  return {call.job(), NameFrom(call.contribution()), static_cast<Encoding>(call.encoding()),
          PartsFrom(call)};
}

void ToWire(const PushShardDone& done, v1::TransferCall* out) {
  out->set_what(v1::TransferCall::PUSHED);
  out->set_job(done.push.job);
  NameToWire(ToContributionId(done.push), out->mutable_contribution());
  v1::TransferCall::Part* part = out->add_parts();
  part->mutable_shard()->set_shard(done.push.shard);
  part->mutable_shard()->set_elements(1);
  part->set_begin(done.push.begin);
  part->set_elements(done.push.elements);
  out->set_outcome(static_cast<int32_t>(done.status));
  out->set_reason(done.reason.substr(0, 4096));
  out->set_bytes(done.bytes);
}

PushShardDone PushDoneFrom(const v1::TransferCall& call) {
  const ContributionId c = NameFrom(call.contribution());
  PushShardDone done;
  done.push = {call.job(), c.island, c.generation, c.incarnation, c.base_version};
  if (call.parts_size() == 1) {
    done.push.shard = call.parts(0).shard().shard();
    done.push.begin = call.parts(0).begin();
    done.push.elements = call.parts(0).elements();
  }
  done.status = static_cast<PushStatus>(call.outcome());
  done.reason = call.reason();
  done.bytes = call.bytes();
  return done;
}

absl::Status Check(const v1::OuterCall& call) {
  if (call.what() <= v1::OuterCall::UNSPECIFIED || call.what() > v1::OuterCall::INITIAL) {
    return Bad("what a call requests");
  }
  if (call.kind() < 0 || call.kind() > static_cast<int32_t>(kLastOuterKind) || call.target() < 0 ||
      call.target() > 3) {
    return Bad("what a call applies");
  }
  ATOLL_RETURN_IF_ERROR(Check(call.tag()));
  ATOLL_RETURN_IF_ERROR(CheckEncoding(call.encoding()));
  for (const v1::OuterCall::Part& part : call.parts()) {
    ATOLL_RETURN_IF_ERROR(CheckRange(part.layer(), part.begin(), part.end()));
    if (part.holders_size() == 0) return Bad("holders");
  }
  for (const v1::OuterCall::Source& source : call.sources()) {
    ATOLL_RETURN_IF_ERROR(CheckRange(source.layer(), source.begin(), source.end()));
  }
  for (const v1::ShardCut& shard : call.shards()) ATOLL_RETURN_IF_ERROR(Check(shard));
  return absl::OkStatus();
}

absl::Status Check(const v1::OuterHeld& held) {
  ATOLL_RETURN_IF_ERROR(Check(held.tag()));
  ATOLL_RETURN_IF_ERROR(CheckEncoding(held.encoding()));
  for (const v1::OuterCall::Part& part : held.parts()) {
    ATOLL_RETURN_IF_ERROR(CheckRange(part.layer(), part.begin(), part.end()));
  }
  for (const v1::ShardCut& shard : held.shards()) ATOLL_RETURN_IF_ERROR(Check(shard));
  return absl::OkStatus();
}

absl::Status Check(const v1::TransferCall& call) {
  if (call.what() <= v1::TransferCall::UNSPECIFIED || call.what() > v1::TransferCall::CANCEL) {
    return Bad("what a transfer is");
  }
  ATOLL_RETURN_IF_ERROR(Check(call.contribution(), FillBase(kCountMax)));
  ATOLL_RETURN_IF_ERROR(CheckEncoding(call.encoding()));
  if (call.version() < kNoVersion || call.newer() < kNoVersion || call.bytes() < 0) {
    return Bad("version");
  }
  if (call.outcome() < 0 || call.outcome() > 3) return Bad("outcome");
  if (call.fragments() < 0 || call.fragments() > kCountMax) return Bad("fragments");
  for (const v1::TransferCall::Part& part : call.parts()) {
    ATOLL_RETURN_IF_ERROR(Check(part.shard()));
    const bool report = call.what() == v1::TransferCall::PUSHED;
    if (part.begin() < 0 || part.begin() > kElementsMax || part.elements() < 0 ||
        part.elements() > kElementsMax) {
      return Bad("a part's elements");
    }
    if (!report && (part.server() < 0 || part.server() >= call.servers_size())) {
      return Bad("server");
    }
    if (!report && part.begin() + part.elements() > part.shard().elements()) {
      return Bad("a part's elements");
    }
  }
  return absl::OkStatus();
}

std::string Describe(const v1::OuterCall& call) {
  switch (call.what()) {
    case v1::OuterCall::LAYOUT:
      return "fetch what it is to push and pull";
    case v1::OuterCall::CAPTURE:
      return "copy what it is to push";
    case v1::OuterCall::MAKE:
      return "make a pseudo-gradient";
    case v1::OuterCall::APPLY:
      return "adopt a version";
    case v1::OuterCall::FINISH:
      return "end the adoption of a version";
    case v1::OuterCall::PUT_BASE_IN:
      return "put theta_base in";
    case v1::OuterCall::PUT_BACK:
      return "put its parameters back";
    case v1::OuterCall::INITIAL:
      return "make the initial weights";
    case v1::OuterCall::TABLES:
      return "fetch its copy of the table";
    default:
      return "a call about the exchange with the servers";
  }
}

}  // namespace atl::worker
