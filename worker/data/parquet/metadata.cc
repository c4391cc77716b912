#include "worker/data/parquet/metadata.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/data/parquet/thrift.h"

namespace atl::parquet {
namespace {

constexpr int kDepthMax = 16;
constexpr size_t kNodesMax = 10'000;

absl::Status Bad(absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("its Parquet metadata ", problem));
}

// An enumeration's value, or a number that is none.
int Code(const ThriftValue& value, int otherwise) {
  return static_cast<int>(std::clamp<int64_t>(value.Int(otherwise), -1, 99));
}

// One of the schema's list, where children follow their parent.
struct Element {
  Node node;
  int64_t children = 0;
};

Element ReadElement(const ThriftValue& value) {
  Element element;
  Node& node = element.node;
  node.name = value[4].bytes;
  node.type = static_cast<ValueType>(std::clamp(Code(value[1], 6), 0, 8));
  node.repetition = static_cast<Repetition>(std::clamp(Code(value[3], 0), 0, 2));
  element.children = value[5].Int(0);
  for (const ThriftValue& logical : value[10].children) {  // the annotation, a union
    node.is_text |= logical.id == 1 || logical.id == 4 || logical.id == 11;
    node.is_map |= logical.id == 2;
    node.is_list |= logical.id == 3;
  }
  const int older = Code(value[6], -1);  // the older annotation
  node.is_text |= older == 0 || older == 4 || older == 19;
  node.is_map |= older == 1 || older == 2;
  node.is_list |= older == 3;
  return element;
}

// Makes the tree of elements from *at on.
absl::StatusOr<Node> MakeTree(std::vector<Element>& elements, size_t* at, const Node& parent,
                              int depth, int* leaves) {
  if (*at >= elements.size() || depth > kDepthMax) return Bad("has no whole schema");
  Element& element = elements[(*at)++];
  Node node = std::move(element.node);
  const bool is_root = depth == 0;
  node.definition_level = parent.definition_level;
  node.repetition_level = parent.repetition_level;
  if (!is_root && node.repetition != Repetition::kRequired) ++node.definition_level;
  if (!is_root && node.repetition == Repetition::kRepeated) ++node.repetition_level;
  if (element.children <= 0) {
    if (is_root) return Bad("has no columns");
    node.leaf = (*leaves)++;
    return node;
  }
  for (int64_t i = 0; i < element.children; ++i) {
    ATOLL_ASSIGN_OR_RETURN(Node child, MakeTree(elements, at, node, depth + 1, leaves));
    node.children.push_back(std::move(child));
  }
  return node;
}

absl::StatusOr<RowGroup> ReadGroup(const ThriftValue& value, int64_t file_bytes) {
  RowGroup group;
  group.rows = value[3].Int(0);
  bool outside = group.rows < 0;
  for (const ThriftValue& column : value[1].List()) {
    if (column[1].present() || column[8].present()) {
      return Bad("has columns that are encrypted or in another file");
    }
    const ThriftValue& place = column[3];
    Chunk chunk{place[9].Int(0), place[7].Int(0), place[5].Int(0), std::max(0, Code(place[4], 0))};
    // Some writers give 0 where there is no dictionary.
    const int64_t dictionary = place[11].Int(0);
    if (dictionary > 0) chunk.begin = std::min(chunk.begin, dictionary);
    outside |= chunk.begin < 0 || chunk.bytes < 0 || chunk.values < 0 || chunk.begin > file_bytes ||
               chunk.bytes > file_bytes - chunk.begin;
    group.chunks.push_back(chunk);
  }
  if (outside) return Bad("places a column outside of the file");
  return group;
}

}  // namespace

absl::StatusOr<Metadata> ParseMetadata(std::string_view footer, int64_t file_bytes) {
  Metadata metadata;
  const std::optional<ThriftStruct> parsed = ParseThrift(footer);
  if (!parsed.has_value()) return Bad("is damaged");
  const ThriftValue& all = parsed->value;
  metadata.rows = all[3].Int(0);
  std::vector<Element> elements;
  for (const ThriftValue& element : all[2].List()) {
    if (elements.size() < kNodesMax) elements.push_back(ReadElement(element));
  }
  for (const ThriftValue& value : all[4].List()) {
    ATOLL_ASSIGN_OR_RETURN(metadata.groups.emplace_back(), ReadGroup(value, file_bytes));
  }
  size_t at = 0;
  ATOLL_ASSIGN_OR_RETURN(metadata.root, MakeTree(elements, &at, Node(), 0, &metadata.leaves));
  if (at != elements.size()) return Bad("has a schema with more than one root");
  for (const RowGroup& group : metadata.groups) {
    if (std::ssize(group.chunks) != metadata.leaves) {
      return Bad(absl::StrCat("has a row group of ", group.chunks.size(), " columns, not ",
                              metadata.leaves));
    }
  }
  return metadata;
}

absl::StatusOr<PageHeader> ParsePageHeader(std::string_view bytes) {
  const std::optional<ThriftStruct> parsed = ParseThrift(bytes);
  if (!parsed.has_value()) return absl::OutOfRangeError("a page's head goes on");
  const ThriftValue& head = parsed->value;
  const ThriftValue &data = head[5], &dictionary = head[7], &data2 = head[8];
  const ThriftValue& own = data.present() ? data : dictionary.present() ? dictionary : data2;
  PageHeader header;
  const int type = Code(head[1], -1);
  header.bytes = head[2].Int(0);
  header.packed_bytes = head[3].Int(0);
  header.values = own[1].Int(0);
  header.encoding = Code(own[&own == &data2 ? 4 : 2], 0);
  header.definition_encoding = Code(data[3], header.definition_encoding);
  header.definition_bytes = data2[5].Int(0);
  header.repetition_bytes = data2[6].Int(0);
  header.packed = data2[7].Int(1) != 0;
  if (type < 0 || type > 3 || header.bytes < 0 || header.packed_bytes < 0 || header.values < 0 ||
      header.definition_bytes < 0 || header.repetition_bytes < 0) {
    return absl::InvalidArgumentError("one of its Parquet pages has a damaged head");
  }
  header.type = static_cast<PageHeader::Type>(type);
  header.header_bytes = static_cast<int64_t>(parsed->bytes);
  return header;
}

}  // namespace atl::parquet
