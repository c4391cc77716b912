#include "worker/data/parquet/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace atl::parquet {
namespace {

constexpr int64_t kTailBytes = 8;  // the metadata's length, and "PAR1"
constexpr int64_t kFooterBytesMax = 64 << 20;
constexpr size_t kRowBytesMax = size_t{1} << 30;

absl::Status Bad(absl::string_view problem) { return absl::InvalidArgumentError(problem); }

// Returns what is not read of a column; "": nothing.
std::string Unsupported(const Node& node) {
  if (node.is_map) return "a map";
  if (node.leaf >= 0 && node.type == ValueType::kInt96) return "96-bit numbers";
  if (node.leaf >= 0 && node.type == ValueType::kFixedBytes) return "bytes of fixed length";
  for (const Node& child : node.children) {
    if (std::string found = Unsupported(child); !found.empty()) return found;
  }
  return "";
}

absl::Status NotRead(const Node& column) {
  return Bad(absl::StrCat("its column \"", column.name, "\" holds ", Unsupported(column),
                          ", which is not read"));
}

absl::StatusOr<std::vector<const Node*>> FindColumns(const Node& root,
                                                     const std::vector<std::string>& wanted,
                                                     const std::vector<std::string>& used) {
  std::vector<const Node*> columns;
  std::vector<std::string> names;
  for (const Node& column : root.children) {
    names.push_back(column.name);
    const bool reads = Unsupported(column).empty();
    if (wanted.empty() && reads) columns.push_back(&column);
    if (!reads && std::find(used.begin(), used.end(), column.name) != used.end()) {
      return NotRead(column);
    }
  }
  for (const std::string& name : wanted) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return Bad(absl::StrCat("has no column \"", name,
                              "\" (data.field); its columns: ", absl::StrJoin(names, ", ")));
    }
    columns.push_back(&root.children[static_cast<size_t>(found - names.begin())]);
    if (!Unsupported(*columns.back()).empty()) return NotRead(*columns.back());
  }
  if (columns.empty()) return Bad("has no column that can be read");
  return columns;
}

const Node& FirstLeaf(const Node& node) {
  const Node* leaf = &node;
  while (leaf->leaf < 0) leaf = &leaf->children.front();
  return *leaf;
}

template <typename Visit>
void ForLeaves(const Node& node, const Visit& visit) {
  if (node.leaf >= 0) return visit(node);
  for (const Node& child : node.children) ForLeaves(child, visit);
}

void AppendText(std::string_view text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (byte < 0x20) {
      absl::StrAppendFormat(out, "\\u%04x", byte);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

// The element of a list in three levels: list group, repeated group, element. Older writers have
// two, where the repeated group is the element itself.
const Node& FindElement(const Node& repeated) {
  const bool wraps = repeated.leaf < 0 && repeated.children.size() == 1 &&
                     repeated.name != "array" && !absl::EndsWith(repeated.name, "_tuple");
  return wraps ? repeated.children.front() : repeated;
}

bool IsWrappedList(const Node& node) {
  return node.is_list && node.children.size() == 1 &&
         node.children.front().repetition == Repetition::kRepeated;
}

}  // namespace

Rows::Rows(ColumnCursor::Read read, Metadata metadata, std::vector<const Node*> columns)
    : read_(std::move(read)), metadata_(std::move(metadata)), columns_(std::move(columns)) {}

absl::StatusOr<std::unique_ptr<Rows>> Rows::Open(ColumnCursor::Read read, int64_t file_bytes,
                                                 const std::vector<std::string>& columns,
                                                 const std::vector<std::string>& used) {
  char tail[kTailBytes] = {};
  if (file_bytes < 12) return Bad("is a Parquet file that breaks off");
  ATOLL_RETURN_IF_ERROR(read(file_bytes - kTailBytes, tail, kTailBytes));
  uint32_t footer_bytes = 0;
  std::memcpy(&footer_bytes, tail, sizeof footer_bytes);
  if (std::memcmp(tail + 4, "PAR1", 4) != 0) return Bad("is a Parquet file that breaks off");
  if (footer_bytes > std::min(file_bytes - 12, kFooterBytesMax)) {
    return Bad(absl::StrCat("is a Parquet file whose metadata of ", footer_bytes,
                            " bytes do not fit into it"));
  }
  std::string footer(footer_bytes, '\0');
  ATOLL_RETURN_IF_ERROR(read(file_bytes - kTailBytes - footer_bytes, footer.data(), footer_bytes));
  ATOLL_ASSIGN_OR_RETURN(Metadata metadata, ParseMetadata(footer, file_bytes));
  int64_t rows = 0;
  for (const RowGroup& group : metadata.groups) {
    if (group.rows > INT64_MAX - rows) return Bad("has too many rows");
    rows += group.rows;
  }
  if (rows != metadata.rows) {
    return Bad(
        absl::StrCat("its Parquet metadata say ", metadata.rows, " rows, its row groups ", rows));
  }
  // Nodes are named by their places, which a move keeps.
  ATOLL_ASSIGN_OR_RETURN(std::vector<const Node*> nodes, FindColumns(metadata.root, columns, used));
  return std::unique_ptr<Rows>(new Rows(std::move(read), std::move(metadata), std::move(nodes)));
}

absl::Status Rows::BeginGroup() {
  const RowGroup& group = metadata_.groups[group_++];
  group_rows_left_ = group.rows;
  cursors_.clear();
  cursors_.resize(static_cast<size_t>(metadata_.leaves));
  for (const Node* column : columns_) {
    ForLeaves(*column, [&](const Node& leaf) {
      const auto number = static_cast<size_t>(leaf.leaf);
      cursors_[number] = std::make_unique<ColumnCursor>(leaf, group.chunks[number], read_);
    });
  }
  return absl::OkStatus();
}

absl::Status Rows::AppendRow(std::string* out) {
  while (group_rows_left_ == 0) ATOLL_RETURN_IF_ERROR(BeginGroup());
  const size_t begin = out->size();
  out->push_back('{');
  for (const Node* column : columns_) {
    if (out->back() != '{') out->push_back(',');
    AppendText(column->name, out);
    out->push_back(':');
    ATOLL_RETURN_IF_ERROR(Append(*column, out));
    if (out->size() - begin > kRowBytesMax) {
      return Bad(absl::StrCat("its row ", row_ + 1, " is longer than ", kRowBytesMax, " bytes"));
    }
  }
  out->append("}\n");
  ++row_;
  --group_rows_left_;
  return absl::OkStatus();
}

absl::StatusOr<ColumnCursor*> Rows::Next(const Node& node) {
  ColumnCursor* const cursor = cursors_[static_cast<size_t>(FirstLeaf(node).leaf)].get();
  ATOLL_ASSIGN_OR_RETURN(const bool there, cursor->HasNext());
  if (there) return cursor;
  return Bad(absl::StrCat("its column \"", FirstLeaf(node).name, "\" ends in row ", row_ + 1,
                          " of ", metadata_.rows));
}

absl::Status Rows::Skip(const Node& node) {
  absl::Status status;
  ForLeaves(node, [&](const Node& leaf) {
    if (!status.ok()) return;
    const auto cursor = Next(leaf);
    status = cursor.status();
    if (status.ok()) (*cursor)->Advance();
  });
  return status;
}

absl::Status Rows::Append(const Node& node, std::string* out) {
  if (node.repetition == Repetition::kRepeated) return AppendList(node, out);
  ATOLL_ASSIGN_OR_RETURN(const ColumnCursor* const cursor, Next(node));
  if (cursor->definition() >= node.definition_level) return AppendPresent(node, out);
  out->append("null");
  return Skip(node);
}

absl::Status Rows::AppendPresent(const Node& node, std::string* out) {
  if (node.leaf >= 0) return AppendLeaf(node, out);
  if (IsWrappedList(node)) return AppendList(node.children.front(), out);
  out->push_back('{');
  for (const Node& child : node.children) {
    if (out->back() != '{') out->push_back(',');
    AppendText(child.name, out);
    out->push_back(':');
    ATOLL_RETURN_IF_ERROR(Append(child, out));
  }
  out->push_back('}');
  return absl::OkStatus();
}

absl::Status Rows::AppendList(const Node& node, std::string* out) {
  const Node& element = FindElement(node);
  out->push_back('[');
  ATOLL_ASSIGN_OR_RETURN(const ColumnCursor* cursor, Next(node));
  if (cursor->definition() < node.definition_level) {
    out->push_back(']');
    return Skip(node);
  }
  while (true) {
    ATOLL_RETURN_IF_ERROR(&element == &node ? AppendPresent(node, out) : Append(element, out));
    // The next entry begins another element, or what comes after the list.
    ColumnCursor* const first = cursors_[static_cast<size_t>(FirstLeaf(node).leaf)].get();
    ATOLL_ASSIGN_OR_RETURN(const bool there, first->HasNext());
    if (!there || first->repetition() < node.repetition_level) break;
    if (first->repetition() > node.repetition_level) return Bad("has a Parquet list out of order");
    if (out->size() > kRowBytesMax) return Bad("has a row that is too long");
    out->push_back(',');
  }
  out->push_back(']');
  return absl::OkStatus();
}

absl::Status Rows::AppendLeaf(const Node& node, std::string* out) {
  ATOLL_ASSIGN_OR_RETURN(ColumnCursor* const cursor, Next(node));
  if (!cursor->has_value()) {
    out->append("null");
    cursor->Advance();
    return absl::OkStatus();
  }
  const Value& value = cursor->value();
  switch (node.type) {
    case ValueType::kBoolean:
      out->append(value.number != 0 ? "true" : "false");
      break;
    case ValueType::kFloat:
    case ValueType::kDouble:
      if (std::isfinite(value.real)) {
        absl::StrAppendFormat(out, "%.17g", value.real);
      } else {
        out->append(std::isnan(value.real) ? "NaN" : value.real > 0 ? "Infinity" : "-Infinity");
      }
      break;
    case ValueType::kBytes:
      AppendText(value.text, out);
      break;
    default:
      absl::StrAppend(out, value.number);
  }
  cursor->Advance();
  return absl::OkStatus();
}

}  // namespace atl::parquet
