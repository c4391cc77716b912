#include "tests/sim/fiber.h"

#include <utility>

#include "common/check.h"

namespace atl::sim {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kPooledMax = 64;

std::shared_ptr<Fiber>& Running() {
  static std::shared_ptr<Fiber> running;
  return running;
}

std::vector<std::unique_ptr<char[]>>& Stacks() {
  static std::vector<std::unique_ptr<char[]>> stacks;
  return stacks;
}

std::unique_ptr<char[]> TakeStack() {
  if (Stacks().empty()) return std::unique_ptr<char[]>(new char[kStackBytes]);
  std::unique_ptr<char[]> stack = std::move(Stacks().back());
  Stacks().pop_back();
  return stack;
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(TakeStack()) {
  ATOLL_CHECK(getcontext(&own_) == 0);
  own_.uc_stack.ss_sp = stack_.get();
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  makecontext(&own_, &Fiber::Run, 0);
}

Fiber::~Fiber() {
  if (ended_ && Stacks().size() < kPooledMax) Stacks().push_back(std::move(stack_));
}

void Fiber::Start(std::function<void()> body) {
  const std::shared_ptr<Fiber> fiber(new Fiber(std::move(body)));
  fiber->Resume();
}

std::shared_ptr<Fiber> Fiber::Current() { return Running(); }

void Fiber::Run() {
  Fiber* const self = Running().get();  // nothing here may need destruction: it never returns
  self->body_();
  self->body_ = nullptr;
  self->ended_ = true;
  Wait();
}

void Fiber::Wait() {
  Fiber* const self = Running().get();
  ATOLL_CHECK(self != nullptr);
  ATOLL_CHECK(swapcontext(&self->own_, &self->caller_) == 0);
}

void Fiber::Resume() {
  ATOLL_CHECK(!ended_);
  // One may start another one.
  const std::shared_ptr<Fiber> self = shared_from_this();
  const std::shared_ptr<Fiber> before = std::exchange(Running(), self);
  ATOLL_CHECK(before != self);
  ATOLL_CHECK(swapcontext(&caller_, &own_) == 0);
  Running() = before;
}

}  // namespace atl::sim
