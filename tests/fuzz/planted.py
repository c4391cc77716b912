"""One bug for each decoder: what `./dev fuzz --planted` makes of its source in a copy of the tree."""

# Decoder: (file, text that is there once, what stands there instead). Most take a check away.
PLANTED = {
    "frame": (
        "common/net/frame.cc",
        "  ATOLL_RETURN_IF_ERROR(CheckEncoding(open.encoding()));\n",
        ""),
    "group_frame": (
        "worker/island/messages/limits.cc",
        "return all && m.rank() < ratios.size() ?",
        "return all ?"),
    "group_header": (
        "worker/island/messages/wire.cc",
        "payload_bytes < 4 || payload_bytes % 4 != 0 || payload_bytes > 4 * kChunkElements",
        "payload_bytes < 4"),
    "job_toml": (
        "common/toml_message.cc",
        "if (integer == nullptr) {\n      return Error(node.source(), where, \"must be a whole",
        "if (false) {\n      return Error(node.source(), where, \"must be a whole"),
    "cluster_toml": (
        "common/toml_message.cc",
        "if (list == nullptr || !(list->empty() || list->is_homogeneous<toml::table>())) {",
        "if (list == nullptr) {"),
    "plan_request": (
        "coordinator/planning/request.cc",
        "if (request.members.empty()) return absl::InvalidArgumentError(\"the island has no members\");",
        ""),
    "pinned_layout": (
        "coordinator/planner/layout_cuts.cc",
        "if (layout.shape != Shape::kPlain) return CheckShape(schedule, *needed, layout);",
        ""),
    "described_cluster": (
        "coordinator/plan_io/profile_file.cc",
        "if (memory.layer() < 0 || memory.layer() >= layers) {",
        "if (memory.layer() < 0) {"),
    "config_json": (
        "common/model/json.cc",
        "const bool fits =\n      value.is_number_integer() &&\n",
        "const bool fits =\n"),
    "profile_json": (
        "coordinator/plan_io/profile_file.cc",
        "if (time.layer() < 0 || time.layer() >= layers) {",
        "if (time.layer() < 0) {"),
    "chat_json": (
        "worker/data/chat/conversation.cc",
        "    if (!arguments.is_string()) continue;\n",
        ""),
    "chat_template": (
        "common/jinja/evaluator.cc",
        "if (i >= 0 && i < count) return subject.items()[static_cast<size_t>(i)];",
        "if (i >= 0) return subject.items()[static_cast<size_t>(i)];"),
    "tokenizer_json": (
        "common/tokenizer/word_models.cc",
        "if (unknown < 0) return Bad(absl::StrCat(where, \".unk_token\"), \"must be given\");",
        ""),
    "sentencepiece": (
        "common/tokenizer/sentencepiece.cc",
        "!tokenizer::IsWellFormed(",
        "false && tokenizer::IsWellFormed("),
    "join_token": (
        "common/trust/token.cc",
        "bytes.size() != kBytes + kCheckBytes ||",
        ""),
    "s3_xml": (
        "common/object_store/xml.cc",
        "if (close == std::string_view::npos) break;\n    found.push_back(xml.substr(open + 1, close - open - 1));",
        "found.push_back({xml.data() + open + 1, close - open - 1});"),
    "safetensors": (
        "worker/model/safetensors.cc",
        "static_cast<uint64_t>(std::min(file_bytes - 8, kMaxHeaderBytes))",
        "static_cast<uint64_t>(INT64_MAX)"),
    "tokens": (
        "worker/data/formats/token_head.cc",
        "std::min<size_t>(head.size(), sizeof header)",
        "sizeof header + head.size()"),
    "file_kind": (
        "common/file_kind.cc",
        "if (head.size() >= at + bytes) std::memcpy(",
        "std::memcpy("),
    "packed_text": (
        "worker/data/formats/decompressor.cc",
        "std::min(wanted, in->size())",
        "wanted"),
    "json_line": (
        "worker/data/formats/json_line.cc",
        "    if (text_[first] == '0' && at_ > first + 1) return Fail(begin, \"a number that begins with 0\");\n",
        ""),
    "parquet": (
        "worker/data/parquet/page.cc",
        "    if (number >= dictionary_.size()) return Bad(\"has a value beyond its dictionary\");\n",
        ""),
    "hub_answer": (
        "common/object_store/hub.cc",
        "!path.is_string() || !size.is_number_unsigned() ||",
        "!path.is_string() ||"),
    "megatron": (
        "worker/data/token_file.cc",
        "index.sequences == 0 || index.sequences > rest / 12 || index.documents > rest / 8",
        "index.sequences > (rest | 8) / (index.documents % 8)"),
    "shard_index": (
        "worker/data/shards.cc",
        "if (field == json.end() || !field->is_number_unsigned() ||",
        "if (field == json.end() ||"),
    "idx": (
        "worker/data/images.cc",
        "if (std::ssize(bytes) != static_cast<int64_t>(header) + expected) {",
        "if (bytes.empty()) {"),
    "cifar": (
        "worker/data/images.cc",
        "if (bytes.empty() || std::ssize(bytes) % record != 0) {",
        "if (bytes.empty()) {"),
    "image_file": (
        "worker/data/image_codec.cc",
        "    ATOLL_RETURN_IF_ERROR(CheckSize(codec_.image_width, codec_.image_height));\n",
        ""),
    "log_record": (
        "paramserver/storage/codec.cc",
        "  if (!decoder.status().ok()) return Malformed(absl::StrCat(\": \", decoder.status().message()));\n"
        "  if (auto* push",
        "  if (!decoder.status().ok()) __builtin_trap();\n  if (auto* push"),
    "log": (
        "paramserver/storage/log.cc",
        "if (head.field_bytes > left || head.payload_bytes > left - head.field_bytes) return std::nullopt;",
        "if (left == 0 && head.field_bytes > left) return std::nullopt;"),
    "salvage": (
        "paramserver/storage/salvage.cc",
        "if (first == nullptr) {",
        "if (first == nullptr && states_.empty()) {"),
    "snapshot": (
        "paramserver/storage/snapshot.cc",
        "if (head.head_bytes > rest.size()) return absl::DataLossError(\"its head is cut off\");",
        ""),
    "coordinator_record": (
        "coordinator/wire.cc",
        "  ATOLL_RETURN_IF_ERROR(decoder.status());\n  return record;",
        "  ATOLL_CHECK(decoder.status().ok());\n  return record;"),
    "history": (
        "coordinator/history/history.cc",
        "    if (history.islands_.size() >= kMaxIslands) break;\n    history.IslandCurve(",
        "    if (island.island() < 0) __builtin_trap();\n    history.IslandCurve("),
    "cluster_mark": (
        "common/protocol/mark_file.cc",
        "words.size() == 8 && IsClusterId(words[1])",
        "IsClusterId(words[1])"),
    "control_wire": (
        "common/protocol/wire_limits.cc",
        "layer.values_size() != k * k &&",
        "layer.values_size() % k != 0 &&"),
    "job_spec": (
        "common/protocol/job_spec.cc",
        "  ATOLL_RETURN_IF_ERROR(IntInRange(\"model.heads\", m.heads, 1, 1 << 16));\n",
        ""),
    "plan_json": (
        "coordinator/plan_io/plan_message.cc",
        "  if (parsed.ok() && whole) return message;\n",
        "  ATOLL_CHECK(!parsed.ok() || whole);\n  if (parsed.ok()) return message;\n"),
    "delta": (
        "kernels/codecs/topk.cc",
        "    if (kept.index[i] < n) out[kept.index[i]] = kept.Number(i);\n",
        "    out[kept.index[i]] = kept.Number(i);\n"),
    "certificate": (
        "common/trust/pki.cc",
        "  if (at < 0) return \"\";\n",
        ""),
    "curve_keys": (
        "common/net/security.cc",
        "if (line.empty() || line.front() == '#') continue;",
        "if (line.front() == '#') continue;"),
    "flags_toml": (
        "common/flag_sources.cc",
        "  if (list == nullptr) return add(value);\n",
        "  if (value.is_string() || value.is_integer()) return add(value);\n"),
    "byte_size": (
        "common/parse_bytes.cc",
        "number < 0 ||\n      number > (std::numeric_limits<int64_t>::max() >> shift)) {",
        "number < 0) {"),
    "otlp_settings": (
        "coordinator/tracing/otlp.cc",
        "!absl::SimpleAtoi(text, &value) || value < 1 ||",
        "!absl::SimpleAtoi(text, &value) ||"),
    "save_manifest": (
        "worker/state/tier_store.cc",
        "      if (!IsShard(entry.unit.shard)) return bad(\"a shard that cannot be\");\n",
        ""),
    "profile_cache": (
        "worker/profiler/profile_cache.cc",
        "if (!profile.ok() || profile->layers.empty() ||",
        "if (profile->layers.empty() ||"),
    "digest_cache": (
        "worker/data/digest_cache.cc",
        "    if (fixed.key_bytes > end - at) return;\n",
        ""),
    "block_cache": (
        "worker/data/block_cache.cc",
        "if (!file.ok() || file->bytes() != bytes + static_cast<int64_t>(sizeof checksum) ||\n"
        "      !file->Read(0, block.data(), bytes).ok() ||",
        "if (!file.ok() || !file->Read(0, block.data(), file->bytes()).ok() ||"),
    "history_file": (
        "coordinator/history/history_files.cc",
        "  if (file.size() < kChecksumBytes) return false;\n",
        ""),
    "audit_log": (
        "coordinator/trust/audit_log.cc",
        "if (google::protobuf::util::JsonStringToMessage(std::string(line), &entry).ok()) {",
        "if (!google::protobuf::util::JsonStringToMessage(std::string(line), &entry).ok()) {\n"
        "        __builtin_trap();\n      } else {"),
    "trust_registry": (
        "coordinator/trust/registry.cc",
        "  if (member->revoked_unix_s() != 0) {\n    return {v1::TRUST_DENIAL_REVOKED,",
        "  if (member->revoked_unix_s() > now_unix_s) {\n    return {v1::TRUST_DENIAL_REVOKED,"),
    "etcd_steps": (
        "coordinator/etcd/stored.cc",
        "  if (!parsed || entry.checksum() != chain || entry.parts_left() < 0 ||",
        "  if (!parsed || entry.parts_left() < 0 ||"),
    "etcd_answer": (
        "coordinator/etcd/stored.cc",
        "answer.responses_size() != 1 || answer.responses(0)",
        "answer.responses(0)"),
    "page_request": (
        "common/http/http_server.cc",
        "return found == query.end() ? \"\" : found->second;",
        "return found->second;"),
    "http_answer": (
        "common/object_store/s3_store.cc",
        "if (static_cast<int64_t>(answer.body.size()) != bytes) {",
        "if (answer.body.empty()) {"),
    "aws_credentials": (
        "common/object_store/credentials.cc",
        "line.substr(1, line.find(']') - 1)",
        "line.substr(2, line.find(']') - 2)"),
    "peer_block": (
        "worker/collectives/peer_blocks.cc",
        "words.size() == 7 && words[0] == kHeaderKeyword &&",
        "words[0] == kHeaderKeyword &&"),
    "notice_output": (
        "worker/notice.cc",
        "if (words.empty() || !absl::SimpleAtod(words[0], &seconds)) return {};",
        "if (!absl::SimpleAtod(words[0], &seconds)) return {};"),
    "incarnation": (
        "common/state_folder.cc",
        "found < 0 || found > kClockIncarnationMax) return 0;",
        "found < 0) return 0;"),
    "address": (
        "coordinator/etcd/client.cc",
        "if (address.prefix.empty() || absl::StrContains(address.prefix, \"/\")) {",
        "if (absl::StrContains(address.prefix, \"/\")) {"),
    "restore": (
        "coordinator/store_sqlite.cc",
        "if (!record.ok() || MakeRecordKey(*record) != select.Bytes(0)) {",
        "if (MakeRecordKey(*record) != select.Bytes(0)) {"),
    "weight_index": (
        "worker/model/published_folder.cc",
        "if (!file.is_string() || absl::StrContains(file.get<std::string>(), '/')) {",
        "if (absl::StrContains(file.get<std::string>(), '/')) {"),
    "class_names": (
        "cli/model/model_folder.cc",
        "labels->is_object() && static_cast<int64_t>(labels->size()) == classes;",
        "labels->is_object();"),
    "client_config": (
        "common/toml_text.cc",
        "if (code < 0x20 || code == 0x7f) {",
        "if (code == 0x7f) {"),
    "doctor": (
        "cli/doctor/doctor_checks.cc",
        "if (!absl::SimpleAtoi(port, &number) || number < 1 || number > 65535) {",
        "if (!absl::SimpleAtoi(port, &number) || number < 0 || number > 65535) {"),
    "link_handshake": (
        "common/net/frame.cc",
        "                       {&hello.once(), kLinkKeyBytes},\n",
        ""),
    "link_session": (
        "common/net/session.cc",
        "hello.once(), hello.has_aes() ? \"a\" : \"-\");",
        "hello.once(), \"a\");"),
}
