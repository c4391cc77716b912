// Code that waits in virtual time: it runs on a stack of its own, in the one thread of the
// simulation, until it waits or ends. So the product's code that blocks runs here as it is.

#ifndef ATOLL_TESTS_SIM_FIBER_H_
#define ATOLL_TESTS_SIM_FIBER_H_

#include <ucontext.h>

#include <functional>
#include <memory>
#include <vector>

namespace atl::sim {

class Fiber : public std::enable_shared_from_this<Fiber> {
 public:
  // Runs `body` at once, until it first waits. What it captures must live until it has ended.
  static void Start(std::function<void()> body);
  // The one that runs now; null: none does.
  static std::shared_ptr<Fiber> Current();
  // Gives control back from the fiber that runs until Resume.
  static void Wait();
  // REQUIRES: it waits. Returns when it waits again, or has ended.
  void Resume();

  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

 private:
  explicit Fiber(std::function<void()> body);
  static void Run();

  std::function<void()> body_;
  std::unique_ptr<char[]> stack_;
  ucontext_t own_{}, caller_{};
  bool ended_ = false;
};

}  // namespace atl::sim

#endif  // ATOLL_TESTS_SIM_FIBER_H_
