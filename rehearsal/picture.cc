#include "rehearsal/picture.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace atl::rehearsal {
namespace {

constexpr int kLeft = 150, kWidth = 700, kRow = 26, kCurve = 90, kMargin = 10;
constexpr int kShareText = 45;  // is as wide as "100.0%"
constexpr const char* kFills[kUses] = {"#57a773", "#4a90d9", "#e07a5f",
                                       "#9b72b0", "#c9a227", "#d9d9d9"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}});
}

class Picture {
 public:
  explicit Picture(const std::vector<Drawn>& answers) {
    for (const Drawn& drawn : answers) {
      for (const RunResult& run : drawn.answer->runs) longest_ = std::max(longest_, GetTime(run));
      longest_ = std::max(longest_, GetTime(drawn.answer->bound));
    }
    Legend();
    for (const Drawn& drawn : answers) Shares(drawn);
    y_ += kRow;
    for (const Drawn& drawn : answers) Finish(drawn);
    Text(kLeft, y_ + 14, "0");
    const bool days = longest_ >= 86'400;
    Text(kLeft + kWidth - 60, y_ + 14,
         absl::StrFormat("%.1f %s", longest_ / (days ? 86'400 : 3600), days ? "days" : "hours"));
    Text(kLeft + kWidth / 2 - 120, y_ + 14, "time; dashed: without failures, with free links");
    y_ += kRow;
  }

  std::string text() const {
    return absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n",
        kLeft + kWidth + kMargin, y_, svg_);
  }

 private:
  static double GetTime(const RunResult& run) { return Seconds(run.took); }
  double X(double seconds) const {
    return kLeft + kWidth * (longest_ > 0 ? seconds / longest_ : 0);
  }

  void Text(int x, int y, const std::string& text) {
    absl::StrAppendFormat(&svg_, "<text x=\"%d\" y=\"%d\">%s</text>\n", x, y, Escape(text));
  }

  void Legend() {
    for (int u = 0; u < kUses; ++u) {
      const int x = kMargin + (u % 3) * 280, y = y_ + (u / 3) * 18;
      absl::StrAppendFormat(&svg_,
                            "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                            y, kFills[u]);
      Text(x + 18, y + 11, ToWords(static_cast<Use>(u)));
    }
    y_ += 2 * 18 + kMargin;
  }

  void Shares(const Drawn& drawn) {
    Text(kMargin, y_ + 15, drawn.name.empty() ? "device-time" : drawn.name);
    double x = kLeft;
    for (int u = 0; u < kUses; ++u) {
      const double share = drawn.answer->shares[static_cast<size_t>(u)];
      absl::StrAppendFormat(&svg_,
                            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\">"
                            "<title>%s %.1f%%</title></rect>\n",
                            x, y_, share * kWidth, kRow - 6, kFills[u],
                            ToWords(static_cast<Use>(u)), 100 * share);
      if (share * kWidth > kShareText) {
        Text(static_cast<int>(x) + 4, y_ + 14, absl::StrFormat("%.1f%%", 100 * share));
      }
      x += share * kWidth;
    }
    y_ += kRow;
  }

  // The share of runs that have finished, by time; and the bound.
  void Finish(const Drawn& drawn) {
    std::vector<double> times;
    for (const RunResult& run : drawn.answer->runs) {
      if (run.finished) times.push_back(GetTime(run));
    }
    std::sort(times.begin(), times.end());
    const double step = static_cast<double>(kCurve - kMargin) /
                        static_cast<double>(std::max<size_t>(1, drawn.answer->runs.size()));
    double y = y_ + kCurve - kMargin;
    std::string path = absl::StrFormat("M%d %.2f", kLeft, y);
    for (const double time : times) {
      absl::StrAppendFormat(&path, "H%.2f", X(time));
      y -= step;
      absl::StrAppendFormat(&path, "V%.2f", y);
    }
    absl::StrAppendFormat(&path, "H%d", kLeft + kWidth);
    Text(kMargin, y_ + 15, drawn.name.empty() ? "finished" : drawn.name);
    Text(kMargin, y_ + 31,
         absl::StrCat(drawn.answer->finished, " of ", drawn.answer->runs.size(), " runs"));
    absl::StrAppendFormat(&svg_, "<path d=\"%s\" fill=\"none\" stroke=\"#333333\"/>\n", path);
    if (drawn.answer->bound.finished) {
      absl::StrAppendFormat(&svg_,
                            "<path d=\"M%.2f %dv%d\" stroke=\"#333333\" stroke-dasharray=\"4 3\">"
                            "<title>bound</title></path>\n",
                            X(GetTime(drawn.answer->bound)), y_, kCurve - kMargin);
    }
    y_ += kCurve;
  }

  std::string svg_;
  int y_ = kMargin;
  double longest_ = 0;  // of the time axis, in seconds
};

}  // namespace

std::string RenderPicture(const std::vector<Drawn>& answers) { return Picture(answers).text(); }

}  // namespace atl::rehearsal
