// Reports every Catch2 test case to $XML_OUTPUT_FILE, which Bazel sets, beside the ordinary console
// output. `./dev test` counts cases from these files, so a target with ten cases counts ten.

#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "tests/catch/skip.h"

namespace {

std::string skip_reason;  // of the running case; empty: it runs

std::string EscapeXml(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

class JunitListener : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    cases_.push_back({stats.testInfo.name, stats.totals.assertions.allOk(), skip_reason});
    skip_reason.clear();
  }

  void testRunEnded(const Catch::TestRunStats&) override {
    const char* path = std::getenv("XML_OUTPUT_FILE");
    if (path == nullptr) return;
    std::ofstream out(path);
    out << "<testsuites><testsuite name=\"catch2\" tests=\"" << cases_.size() << "\">\n";
    for (const Case& c : cases_) {
      out << "<testcase name=\"" << EscapeXml(c.name) << "\"";
      if (!c.passed) {
        out << "><failure message=\"see the log\"/></testcase>\n";
      } else if (!c.skip_reason.empty()) {
        out << "><skipped message=\"" << EscapeXml(c.skip_reason) << "\"/></testcase>\n";
      } else {
        out << "/>\n";
      }
    }
    out << "</testsuite></testsuites>\n";
  }

 private:
  struct Case {
    std::string name;
    bool passed;
    std::string skip_reason;
  };
  std::vector<Case> cases_;
};

}  // namespace

void atl::testing::SkipCase(std::string_view reason) {
  skip_reason = reason;
  std::cout << "SKIPPED: " << reason << "\n";
}

CATCH_REGISTER_LISTENER(JunitListener)
