// render TEMPLATE CASES: renders the template for each line of CASES, a JSON object of variables,
// and writes a line each: {"text": ...} or {"error": ...}.

#include <fstream>
#include <iostream>
#include <sstream>

#include "common/jinja/jinja.h"

namespace atl {
namespace {

using Json = nlohmann::ordered_json;

Json Render(const jinja::Template& chat, const Json& variables) {
  jinja::Variables values;
  for (const auto& [name, json] : variables.items()) {
    const auto value = jinja::FromJson(json);
    if (!value.ok()) return {{"error", value.status().message()}};
    values.emplace_back(name, *value);
  }
  const auto text = chat.Render(values, {.now = absl::CivilSecond(2026, 3, 4, 5, 6, 7)});
  return text.ok() ? Json{{"text", *text}} : Json{{"error", text.status().message()}};
}

int Run(const char* path, const char* cases) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const auto chat = jinja::Template::Parse(text.str());
  if (!chat.ok()) {
    std::cerr << path << ": " << chat.status().message() << "\n";
    return 1;
  }
  std::ifstream lines(cases);
  for (std::string line; std::getline(lines, line);) {
    std::cout << Render(**chat, Json::parse(line)).dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace atl

int main(int argc, char** argv) { return argc == 3 ? atl::Run(argv[1], argv[2]) : 2; }
