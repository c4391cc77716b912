#include "worker/evaluation/task.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "worker/data/formats/json_line.h"

namespace atl {
namespace {

using Json = nlohmann::json;

constexpr size_t kChoicesMax = 256;
constexpr int64_t kTaskBytesMax = int64_t{256} << 20;  // of text
constexpr int64_t kReadBytes = int64_t{1} << 20;
constexpr const char* kNames[] = {"choices", "exact", "perplexity"};

// One line of the file.
class LineReader {
 public:
  LineReader(const std::string& file, int64_t line, const Json& object)
      : file_(file), line_(line), object_(object) {}

  absl::StatusOr<TaskKind> FindKind() const {
    if (object_.contains("choices")) return TaskKind::kChoices;
    if (object_.contains("answer")) return TaskKind::kExact;
    if (object_.contains("text")) return TaskKind::kPerplexity;
    return Bad(
        "has no field of a task: it needs \"prompt\" with \"choices\" and \"answer\", \"prompt\" "
        "with \"answer\", or \"text\"");
  }

  absl::StatusOr<TaskItem> Read(TaskKind kind) const {
    TaskItem item;
    item.line = line_;
    if (kind == TaskKind::kPerplexity) {
      ATOLL_ASSIGN_OR_RETURN(std::string text, ReadText(object_, "text"));
      item.answers.push_back(std::move(text));
      return item;
    }
    if (!object_.contains("prompt") || !object_["prompt"].is_string()) {
      return Bad("\"prompt\" must be a text");
    }
    item.prompt = object_["prompt"].get<std::string>();
    if (kind == TaskKind::kExact) {
      ATOLL_ASSIGN_OR_RETURN(std::string answer, ReadText(object_, "answer"));
      item.answers.push_back(std::move(answer));
      return item;
    }
    ATOLL_RETURN_IF_ERROR(ReadChoices(&item));
    return item;
  }

 private:
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ":", line_, ": ", what));
  }

  absl::StatusOr<std::string> ReadText(const Json& object, const char* field) const {
    if (!object.contains(field) || !object[field].is_string() ||
        object[field].get_ref<const std::string&>().empty()) {
      return Bad(absl::StrCat("\"", field, "\" must be a text that is not empty"));
    }
    return object[field].get<std::string>();
  }

  absl::Status ReadChoices(TaskItem* item) const {
    const auto choices = object_.find("choices");
    if (choices == object_.end() || !choices->is_array() || choices->size() < 2 ||
        choices->size() > kChoicesMax) {
      return Bad(absl::StrCat("\"choices\" must be a list of 2 to ", kChoicesMax, " texts"));
    }
    for (const Json& choice : *choices) {
      if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
        return Bad("\"choices\" must be texts that are not empty");
      }
      item->answers.push_back(choice.get<std::string>());
    }
    const Json answer = object_.value("answer", Json());
    if (answer.is_number_integer()) {
      item->right = answer.get<int64_t>();
      if (answer.get<double>() >= 0 &&
          answer.get<double>() < static_cast<double>(choices->size())) {
        return absl::OkStatus();
      }
    } else if (answer.is_string()) {
      const auto found = std::find(item->answers.begin(), item->answers.end(), answer);
      item->right = found - item->answers.begin();
      if (found != item->answers.end()) return absl::OkStatus();
    }
    return Bad(absl::StrCat("\"answer\" must be the number of a choice, 0 to ", choices->size() - 1,
                            ", or one of them"));
  }

  const std::string& file_;
  const int64_t line_;
  const Json& object_;
};

}  // namespace

const char* Name(TaskKind kind) { return kNames[static_cast<int>(kind)]; }

std::optional<TaskKind> FindTaskKind(std::string_view name) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<TaskKind>(found - std::begin(kNames));
}

absl::StatusOr<Task> ParseTask(std::string_view text, const std::string& name,
                               std::optional<TaskKind> kind) {
  Task task;
  int64_t line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    ATOLL_ASSIGN_OR_RETURN(const auto object,
                           ParseJsonLine<Json>(text.substr(at, end - at), name, ++line));
    at = end + 1;
    if (!object.has_value()) continue;
    const LineReader reader(name, line, *object);
    if (!kind.has_value()) {
      ATOLL_ASSIGN_OR_RETURN(kind, reader.FindKind());
    }
    ATOLL_ASSIGN_OR_RETURN(TaskItem item, reader.Read(*kind));
    task.items.push_back(std::move(item));
  }
  if (task.items.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": has no line: nothing to score"));
  }
  task.kind = *kind;
  return task;
}

absl::StatusOr<Task> ReadTask(const std::string& path, std::optional<TaskKind> kind,
                              const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(const auto reader,
                         TextReader::Open(path, {.cancelled = cancelled, .jsonl = true}));
  std::string text;
  while (!reader->ended()) {
    ATOLL_RETURN_IF_ERROR(reader->Read(kReadBytes, &text));
    if (std::ssize(text) <= kTaskBytesMax) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": is larger than ", kTaskBytesMax,
                                                   " bytes: keep fewer items of the task"));
  }
  return ParseTask(text, path, kind);
}

std::string JoinAnswer(const std::string& prompt, const std::string& answer) {
  const bool has_space =
      prompt.empty() || absl::ascii_isspace(prompt.back()) || absl::ascii_isspace(answer.front());
  return absl::StrCat(has_space ? "" : " ", answer);
}

}  // namespace atl
