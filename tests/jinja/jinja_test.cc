// Templates against their peers. oracle.txt: digests of what npm's @huggingface/jinja makes of the
// templates in templates/ with 600 conversations (`oracle` makes them). cases.jsonl: what Python's
// Jinja 3.1 makes of small templates, set up as transformers does.

#include "common/jinja/jinja.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::ordered_json;

constexpr size_t kRenderingsPerDigest = 50;

const jinja::RenderOptions kOptions = {.now = absl::CivilSecond(2026, 3, 4, 5, 6, 7)};

std::string TestFile(const std::string& name) { return "tests/jinja/" + name; }

std::vector<std::string> ReadLines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string Whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::StatusOr<std::string> Rendered(const std::string& text, const Json& variables = {},
                                     const jinja::RenderOptions& options = kOptions) {
  const auto chat = jinja::Template::Parse(text);
  if (!chat.ok()) return chat.status();
  jinja::Variables values;
  for (const auto& [name, json] : variables.items()) {
    const auto value = jinja::FromJson(json);
    if (!value.ok()) return value.status();
    values.emplace_back(name, *value);
  }
  return (*chat)->Render(values, options);
}

std::string WhyNot(const std::string& text, const jinja::RenderOptions& options = kOptions) {
  const auto made = Rendered(text, Json::object(), options);
  CAPTURE(text);
  REQUIRE_FALSE(made.ok());
  return std::string(made.status().message());
}

// FNV-1a of 50 renderings at a time, as digests.py has it.
std::vector<std::string> ComputeDigests(const std::string& text,
                                        const std::vector<std::string>& conversations) {
  std::vector<std::string> digests;
  uint64_t digest = 0xcbf29ce484222325;
  for (size_t i = 0; i < conversations.size(); ++i) {
    const auto made = Rendered(text, Json::parse(conversations[i]));
    for (const char c : (made.ok() ? *made : "(refused)") + "\n") {
      digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
    if ((i + 1) % kRenderingsPerDigest != 0) continue;
    digests.push_back(absl::StrFormat("%016x", digest));
    digest = 0xcbf29ce484222325;
  }
  return digests;
}

TEST_CASE("published_templates_make_of_600_conversations_what_the_peer_makes") {
  std::map<std::string, std::vector<std::string>> expected;
  for (const std::string& line : ReadLines(TestFile("oracle.txt"))) {
    std::istringstream words(line);
    std::string name, index, digest;
    words >> name >> index >> digest;
    expected[name].push_back(digest);
  }
  REQUIRE(expected.size() >= 20);
  const std::vector<std::string> conversations = ReadLines(TestFile("conversations.jsonl"));
  REQUIRE(conversations.size() == 600);
  for (const auto& [name, digests] : expected) {
    CAPTURE(name);
    CHECK(ComputeDigests(Whole(TestFile("templates/" + name + ".jinja")), conversations) ==
          digests);
  }
}

TEST_CASE("small_templates_make_what_python_makes_of_them") {
  const std::vector<std::string> lines = ReadLines(TestFile("cases.jsonl"));
  REQUIRE(lines.size() > 60);
  for (const std::string& line : lines) {
    const Json expected = Json::parse(line);
    const std::string text = expected["template"];
    CAPTURE(text);
    const auto made = Rendered(text);
    INFO(made.status().message());
    CHECK(made.ok() == expected.contains("text"));
    if (!made.ok() || !expected.contains("text")) continue;
    CHECK(*made == expected["text"].get<std::string>());
  }
}

TEST_CASE("errors_name_the_line") {
  CHECK_THAT(WhyNot("a\n{{ 1 +"), Contains("line 2: "));
  CHECK_THAT(WhyNot("a\n\n{{ x.y }}"), Contains("line 3: \"x\" is undefined"));
  CHECK_THAT(WhyNot("{{ raise_exception('Roles must alternate') }}"),
             Contains("the template refuses the conversation: Roles must alternate"));
  CHECK_THAT(WhyNot("{% if x %}\n"), Contains("there is no {% endif %}"));
  CHECK_THAT(WhyNot("{% endif %}"), Contains("endif"));
  CHECK_THAT(WhyNot("{{ 'a }}"), Contains("no closing quote"));
  CHECK_THAT(WhyNot("{{ (1 }}"), Contains("line 1"));
  CHECK_THAT(WhyNot("{{ \xff }}"), Contains("not UTF-8"));
}

TEST_CASE("what_is_not_implemented_is_refused_by_name") {
  for (const auto& [text, name] : std::map<std::string, std::string>{
           {"{{ x|frobnicate }}", "\"frobnicate\""},
           {"{{ x is frobnicated }}", "\"frobnicated\""},
           {"{% include 'x' %}", "\"include\""},
           {"{% call f() %}{% endcall %}", "\"call\""},
           {"{% for x in y recursive %}{% endfor %}", "recursive"},
           {"{{ 2 ** 3 }}", "**"},
           {"{{ f(*x) }}", "from a list"},
           {"{{ 'a%s' % 1 }}", "\"%\""},
           {"{{ 'a'.zfill(3) }}", "\"zfill\""},
           {"{{ [1].index(1) }}", "\"index\""},
           {"{{ 'ß'|upper }}", "the case of a letter"},
           {"{{ '\\N{DASH}' }}", "escape"},
           {"{% for x in [1] %}{{ loop.cycle('a') }}{% endfor %}", "\"loop.cycle\""},
           {"{{ namespace() }}", "printing"},
           {"{{ range }}", "printing"},
           {"{{ strftime_now('%c') }}", "strftime_now"}}) {
    CHECK_THAT(WhyNot(text), Contains(name));
  }
  CHECK_THAT(WhyNot("{{ strftime_now('%Y') }}", {}), Contains("today's date"));
}

TEST_CASE("templates_without_an_end_are_ended_by_their_limits") {
  const jinja::RenderOptions small{.steps_max = 200'000, .bytes_max = 4 << 20};
  for (const char* text :
       {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(90) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}{{ ns.x|length }}",
        "{{ 'a' * 9000000000000000000 }}", "{{ [0] * 9000000000000000000 }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor "
        "%}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}",
        "{% for i in range(100) %}{% for j in range(1000) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' }}{% endfor %}{% endfor %}",
        "{{ range(1000000000) }}", "{{ 9223372036854775807 + 1 }}",
        "{{ 'a'|indent(1000000000) }}"}) {
    WhyNot(text, small);
  }
  std::string deep(100'000, '('), sum = "{{ 1", filters = "{{ 'a'";
  for (int i = 0; i < 100'000; ++i) {
    sum += "+1";
    filters += "|trim";
  }
  WhyNot("{{ " + deep + " }}", small);
  WhyNot(sum + " }}", small);
  WhyNot(filters + " }}", small);
  std::string ifs;
  for (int i = 0; i < 10'000; ++i) ifs += "{% if 1 %}";
  WhyNot(ifs, small);
  WhyNot(std::string(2 << 20, 'a'), small);
}

TEST_CASE("names_of_a_template_are_known") {
  const auto chat =
      jinja::Template::Parse("tools {{ bos_token }}{% if add %}{{ f(now) }}{% endif %}");
  REQUIRE(chat.ok());
  CHECK((*chat)->Mentions("bos_token"));
  CHECK((*chat)->Mentions("now"));
  CHECK_FALSE((*chat)->Mentions("tools"));
}

}  // namespace
}  // namespace atl
