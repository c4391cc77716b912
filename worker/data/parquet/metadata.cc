#include "worker/data/parquet/metadata.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/data/parquet/thrift.h"

namespace atl::parquet {
namespace {

using Type = ThriftReader::Type;

constexpr int kDepthMax = 16;
constexpr size_t kNodesMax = 10'000;

absl::Status Bad(absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("its Parquet metadata ", problem));
}

// Calls `take` for each field of a struct; it returns false for one that it has not read.
template <typename Take>
void ReadStruct(ThriftReader& reader, const Take& take) {
  for (auto field = reader.NextField(0); field.type != Type::kStop;
       field = reader.NextField(field.id)) {
    if (!take(field)) reader.Skip(field.type);
  }
}

// The same for the elements of a list of structs.
template <typename Read>
void ReadStructs(ThriftReader& reader, const Read& read) {
  const auto list = reader.BeginList();
  for (int64_t i = 0; reader.ok() && i < list.size; ++i) read();
}

bool IsInt(const ThriftReader::Field& field) {
  return field.type == Type::kInt32 || field.type == Type::kInt64;
}

// One of the schema's list, where children follow their parent.
struct Element {
  Node node;
  int64_t children = 0;
};

Element ReadElement(ThriftReader& reader) {
  Element element;
  ReadStruct(reader, [&](const ThriftReader::Field& field) {
    if (field.id == 4 && field.type == Type::kBinary) {
      element.node.name = reader.Binary();
      return true;
    }
    if (field.id == 10 && field.type == Type::kStruct) {  // the annotation, a union
      ReadStruct(reader, [&](const ThriftReader::Field& logical) {
        element.node.is_text |= logical.id == 1 || logical.id == 4 || logical.id == 11;
        element.node.is_map |= logical.id == 2;
        element.node.is_list |= logical.id == 3;
        return false;
      });
      return true;
    }
    if (!IsInt(field)) return false;
    const int64_t value = reader.Int();
    if (field.id == 1) element.node.type = static_cast<ValueType>(std::clamp<int64_t>(value, 0, 8));
    if (field.id == 3) {
      element.node.repetition = static_cast<Repetition>(std::clamp<int64_t>(value, 0, 2));
    }
    if (field.id == 5) element.children = value;
    if (field.id == 6) {  // the older annotation
      element.node.is_text |= value == 0 || value == 4 || value == 19;
      element.node.is_map |= value == 1 || value == 2;
      element.node.is_list |= value == 3;
    }
    return true;
  });
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

struct ChunkPlace {
  Chunk chunk;
  int64_t data = 0, dictionary = 0;
  bool elsewhere = false;  // in another file, or encrypted
};

void ReadColumnMetadata(ThriftReader& reader, ChunkPlace* place) {
  ReadStruct(reader, [&](const ThriftReader::Field& field) {
    if (!IsInt(field)) return false;
    const int64_t value = reader.Int();
    if (field.id == 4) place->chunk.codec = static_cast<int>(std::clamp<int64_t>(value, 0, 99));
    if (field.id == 5) place->chunk.values = value;
    if (field.id == 7) place->chunk.bytes = value;
    if (field.id == 9) place->data = value;
    if (field.id == 11) place->dictionary = value;
    return true;
  });
}

ChunkPlace ReadChunk(ThriftReader& reader) {
  ChunkPlace place;
  ReadStruct(reader, [&](const ThriftReader::Field& field) {
    if (field.id == 3 && field.type == Type::kStruct) {
      ReadColumnMetadata(reader, &place);
      return true;
    }
    if (field.id == 1 || field.id == 8) place.elsewhere = true;
    return false;
  });
  return place;
}

absl::StatusOr<RowGroup> ReadGroup(ThriftReader& reader, int64_t file_bytes) {
  RowGroup group;
  bool elsewhere = false, outside = false;
  ReadStruct(reader, [&](const ThriftReader::Field& field) {
    if (field.id == 1 && field.type == Type::kList) {
      ReadStructs(reader, [&] {
        ChunkPlace place = ReadChunk(reader);
        Chunk& chunk = place.chunk;
        elsewhere |= place.elsewhere;
        chunk.begin = place.data;
        // Some writers give 0 where there is no dictionary.
        if (place.dictionary > 0) chunk.begin = std::min(chunk.begin, place.dictionary);
        outside |= chunk.begin < 0 || chunk.bytes < 0 || chunk.values < 0 ||
                   chunk.begin > file_bytes || chunk.bytes > file_bytes - chunk.begin;
        group.chunks.push_back(chunk);
      });
      return true;
    }
    if (field.id != 3 || !IsInt(field)) return false;
    group.rows = reader.Int();
    return true;
  });
  if (elsewhere) return Bad("has columns that are encrypted or in another file");
  if (outside || group.rows < 0) return Bad("places a column outside of the file");
  return group;
}

}  // namespace

absl::StatusOr<Metadata> ParseMetadata(std::string_view footer, int64_t file_bytes) {
  Metadata metadata;
  ThriftReader reader(footer);
  std::vector<Element> elements;
  absl::Status status;
  ReadStruct(reader, [&](const ThriftReader::Field& field) {
    if (field.id == 2 && field.type == Type::kList) {
      ReadStructs(reader, [&] {
        if (elements.size() < kNodesMax)
          elements.push_back(ReadElement(reader));
        else
          reader.Skip(Type::kStruct);
      });
      return true;
    }
    if (field.id == 3 && IsInt(field)) {
      metadata.rows = reader.Int();
      return true;
    }
    if (field.id != 4 || field.type != Type::kList) return false;
    ReadStructs(reader, [&] {
      auto group = ReadGroup(reader, file_bytes);
      if (group.ok())
        metadata.groups.push_back(*std::move(group));
      else if (status.ok())
        status = group.status();
    });
    return true;
  });
  if (!reader.ok()) return Bad("is damaged");
  ATOLL_RETURN_IF_ERROR(status);
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
  PageHeader header;
  ThriftReader reader(bytes);
  int64_t type = -1;
  const auto values = [&](int values_id, int encoding_id, const auto& more) {
    ReadStruct(reader, [&](const ThriftReader::Field& field) {
      if (field.type == Type::kTrue || field.type == Type::kFalse) {
        more(field, ThriftReader::Bool(field) ? 1 : 0);
        return true;
      }
      if (!IsInt(field)) return false;
      const int64_t value = reader.Int();
      if (field.id == values_id) header.values = value;
      if (field.id == encoding_id)
        header.encoding = static_cast<int>(std::clamp<int64_t>(value, 0, 99));
      more(field, value);
      return true;
    });
    return true;
  };
  ReadStruct(reader, [&](const ThriftReader::Field& field) {
    if (field.type == Type::kStruct && field.id == 5) {
      return values(1, 2, [&](const auto& inner, int64_t value) {
        if (inner.id == 3) {
          header.definition_encoding = static_cast<int>(std::clamp<int64_t>(value, 0, 99));
        }
      });
    }
    if (field.type == Type::kStruct && field.id == 7) return values(1, 2, [](auto&, int64_t) {});
    if (field.type == Type::kStruct && field.id == 8) {
      return values(1, 4, [&](const auto& inner, int64_t value) {
        if (inner.id == 5) header.definition_bytes = value;
        if (inner.id == 6) header.repetition_bytes = value;
        if (inner.id == 7) header.packed = value != 0;
      });
    }
    if (!IsInt(field)) return false;
    const int64_t value = reader.Int();
    if (field.id == 1) type = value;
    if (field.id == 2) header.bytes = value;
    if (field.id == 3) header.packed_bytes = value;
    return true;
  });
  if (!reader.ok()) return absl::OutOfRangeError("a page's head goes on");
  if (type < 0 || type > 3 || header.bytes < 0 || header.packed_bytes < 0 || header.values < 0 ||
      header.definition_bytes < 0 || header.repetition_bytes < 0) {
    return absl::InvalidArgumentError("one of its Parquet pages has a damaged head");
  }
  header.type = static_cast<PageHeader::Type>(type);
  header.header_bytes = static_cast<int64_t>(reader.position());
  return header;
}

}  // namespace atl::parquet
