#include "worker/collectives/gloo.h"

#include <gloo/allreduce.h>
#include <gloo/context.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/device.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/event_loop.h"
#include "common/net/security.h"
#include "kernels/bfloat16.h"

namespace atl::worker {
namespace {

class TcpDevice final : public GlooDevice {
 public:
  explicit TcpDevice(std::shared_ptr<::gloo::transport::Device> device)
      : device(std::move(device)) {}
  const std::shared_ptr<::gloo::transport::Device> device;
};

std::chrono::milliseconds Milliseconds(Duration d) {
  return std::max(std::chrono::milliseconds(1), std::chrono::ceil<std::chrono::milliseconds>(d));
}

// Gloo's messages begin with the place in its source: "[/.../pair.cc:598] ".
absl::Status StatusFromException(const std::exception& exception) {
  absl::string_view message = exception.what();
  if (absl::StartsWith(message, "[")) {
    const size_t end = message.find("] ");
    if (end != absl::string_view::npos) message.remove_prefix(end + 2);
  }
  const bool late = absl::StrContains(message, "imed out") || absl::StrContains(message, "imeout");
  return late ? absl::DeadlineExceededError(message) : absl::UnavailableError(message);
}

// Runs something of Gloo's, whose errors are exceptions.
template <typename Body>
absl::Status Guarded(const Body& body) {
  try {
    body();
  } catch (const std::exception& exception) {
    return StatusFromException(exception);
  }
  return absl::OkStatus();
}

template <typename T>
void Add(void* out, const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    static_cast<T*>(out)[i] = static_cast<const T*>(a)[i] + static_cast<const T*>(b)[i];
  }
}

template <typename T>
void Largest(void* out, const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const T x = static_cast<const T*>(a)[i], y = static_cast<const T*>(b)[i];
    static_cast<T*>(out)[i] = x > y || x != x ? x : y;  // a NaN of either stays
  }
}

// A connection to every other member. Gloo's own (rendezvous::Context) cannot be aborted while it
// connects, and trusts the size of what it finds in the store.
class Mesh final : public ::gloo::Context {
 public:
  Mesh(const std::shared_ptr<::gloo::transport::Device>& device, int rank, int size,
       std::chrono::milliseconds timeout)
      : ::gloo::Context(rank, size) {
    setTimeout(timeout);
    device_ = device;
    transportContext_ = device->createContext(rank, size);
    transportContext_->setTimeout(timeout);
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      const std::vector<char> address = transportContext_->createPair(other)->address().bytes();
      addresses_.append(address.begin(), address.end());
    }
  }

  // Where the others reach us: for each of them, by rank, an address of one size.
  const std::string& addresses() const { return addresses_; }

  absl::Status Connect(int other, const std::string& addresses) {
    if (addresses.size() != addresses_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", other, " sent addresses of ",
                                                     addresses.size(), " bytes; expected ",
                                                     addresses_.size()));
    }
    const size_t bytes = addresses_.size() / (size - 1);
    const auto begin = addresses.begin() + bytes * (rank < other ? rank : rank - 1);
    return Guarded([&] { getPair(other)->connect(std::vector<char>(begin, begin + bytes)); });
  }

  // Ends what waits on any connection, and closes them all. A wait that runs into its timeout does
  // that in Gloo; so one is made that nothing can end. For any thread.
  void Close() {
    char nothing = 0;
    const auto buffer = createUnboundBuffer(&nothing, 1);
    (void)Guarded([&] { buffer->waitRecv(nullptr, std::chrono::milliseconds(1)); });
  }

 private:
  std::string addresses_;
};

// Sees members go, also while we wait for another one. Every member waits for a byte of every other
// one, which it sends when it leaves in good order: then what others still have to do together
// goes on. A connection that breaks without it is a member lost.
class Watch {
 public:
  // REQUIRES: connected. `lost` is called at most once, on the watch's thread.
  Watch(Mesh& mesh, std::function<void(const absl::Status&)> lost)
      : mesh_(mesh),
        bytes_(mesh.size),
        buffer_(mesh.createUnboundBuffer(bytes_.data(), bytes_.size())) {
    for (int other = 0; other < mesh.size; ++other) {
      if (other != mesh.rank) buffer_->recv(other, kSlot, other, 1);
    }
    thread_ = std::thread([this, lost = std::move(lost)] { Run(lost); });
  }

  ~Watch() {
    buffer_->abortWaitRecv();
    thread_.join();
  }

  void AnnounceLeave() {
    char bye = 0;
    const auto buffer = mesh_.createUnboundBuffer(&bye, 1);
    for (int other = 0; other < mesh_.size; ++other) {
      if (other == mesh_.rank) continue;
      // A failed or unreachable member does not need it.
      const bool sent = Guarded([&] {
                          buffer->send(other, kSlot);
                          buffer->waitSend(nullptr, kLeaveTimeout);
                        }).ok();
      if (!sent) return;  // if it timed out, the connections are closed
    }
  }

 private:
  static constexpr uint64_t kSlot = uint64_t{0xa7} << 56;  // no collective's
  static constexpr std::chrono::milliseconds kLeaveTimeout{100};
  static constexpr std::chrono::hours kForEver{24 * 365};

  void Run(const std::function<void(const absl::Status&)>& lost) {
    for (int left = 0; left < mesh_.size - 1; ++left) {
      bool received = false;
      const absl::Status status = Guarded([&] { received = buffer_->waitRecv(nullptr, kForEver); });
      if (!status.ok()) return lost(status);
      if (!received) return;  // ours to leave
    }
  }

  Mesh& mesh_;
  std::vector<char> bytes_;
  const std::unique_ptr<::gloo::transport::UnboundBuffer> buffer_;
  std::thread thread_;
};

class Member final : public GlooCommunicator {
 public:
  Member(std::shared_ptr<GlooDevice> device, GlooGroup group)
      : device_(std::move(device)), group_(std::move(group)) {}
  ~Member() override {
    if (watch_ != nullptr && failure().ok()) watch_->AnnounceLeave();
  }

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  absl::Status Join(Rendezvous& rendezvous) override {
    if (group_.size == 1) return failure();
    std::shared_ptr<Mesh> mesh;
    ATOLL_RETURN_IF_ERROR(RecordOutcome(Guarded([&] {
      mesh = std::make_shared<Mesh>(static_cast<TcpDevice&>(*device_).device, group_.rank,
                                    group_.size, Milliseconds(group_.timeout));
    })));
    {
      std::lock_guard lock(mutex_);
      if (!failure_.ok()) return failure_;
      mesh_ = mesh;  // from here on Abort finds it
    }
    ATOLL_RETURN_IF_ERROR(RecordOutcome(Meet(*mesh, rendezvous)));
    return RecordOutcome(Guarded([&] {
      watch_ = std::make_unique<Watch>(
          *mesh, [this](const absl::Status& lost) { (void)RecordOutcome(lost); });
    }));
  }

  void Abort(const std::string& reason) override {
    std::shared_ptr<Mesh> mesh;
    {
      std::lock_guard lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = absl::AbortedError(reason);
      mesh = mesh_;
    }
    if (mesh != nullptr) mesh->Close();
  }

 private:
  absl::Status Meet(Mesh& mesh, Rendezvous& rendezvous) {
    const auto key = [&](int rank) { return absl::StrCat(group_.name, "/", rank); };
    ATOLL_RETURN_IF_ERROR(rendezvous.Set(key(group_.rank), mesh.addresses()));
    const Instant deadline = SteadyNow() + group_.timeout;
    for (int other = 0; other < group_.size; ++other) {
      if (other == group_.rank) continue;
      ATOLL_ASSIGN_OR_RETURN(const std::string addresses, Find(rendezvous, key(other), deadline));
      ATOLL_RETURN_IF_ERROR(mesh.Connect(other, addresses));
    }
    return absl::OkStatus();
  }

  // Waits in short intervals, so that Abort ends it.
  absl::StatusOr<std::string> Find(Rendezvous& rendezvous, const std::string& key,
                                   Instant deadline) const {
    constexpr Duration kWaitSlice = std::chrono::milliseconds(20);
    for (;;) {
      ATOLL_RETURN_IF_ERROR(failure());
      const Instant until = std::min(deadline, SteadyNow() + kWaitSlice);
      absl::StatusOr<std::string> value = rendezvous.Get(key, until);
      if (value.ok() || until == deadline || !absl::IsDeadlineExceeded(value.status())) {
        return value;
      }
    }
  }

  absl::Status ReduceOnHost(const Tensor& x, Reduction reduction) override {
    const bool sum = reduction == Reduction::kSum;
    ATOLL_RETURN_IF_ERROR(failure());
    if (group_.size == 1 || x.size() == 0) return absl::OkStatus();
    switch (x.dtype) {
      case DType::kFloat32:
        return Ring(x.as<float>(), x.size(), sum);
      case DType::kFloat64:
        return Ring(x.as<double>(), x.size(), sum);
      case DType::kBfloat16:
        return Widened(x.as<Bfloat16>(), x.size(), sum);
      case DType::kInt32:
        break;
    }
    ATOLL_CHECK(false, "collectives reduce reals");
    return absl::OkStatus();
  }

  // Gloo's own collectives for parts require equal ones, or send them everywhere: these go straight
  // from member to member.
  absl::Status ReduceScatterOnHost(const Tensor& x, const Cuts& cuts) override {
    ATOLL_RETURN_IF_ERROR(failure());
    if (group_.size == 1 || x.size() == 0) return absl::OkStatus();
    switch (x.dtype) {
      case DType::kFloat32:
        return AddParts<float>(x, cuts);
      case DType::kFloat64:
        return AddParts<double>(x, cuts);
      case DType::kBfloat16:
      case DType::kInt32:
        return ReduceOnHost(x, Reduction::kSum);
    }
    __builtin_unreachable();
  }

  absl::Status AllGatherOnHost(const Tensor& x, const Cuts& cuts, const Routes& routes) override {
    ATOLL_RETURN_IF_ERROR(failure());
    if (group_.size == 1 || x.size() == 0) return absl::OkStatus();
    const auto bytes = [&](int64_t elements) {
      return static_cast<size_t>(elements * GetElementSize(x.dtype));
    };
    std::vector<Part> sends, receives;
    for (int other = 0; other < group_.size; ++other) {
      if (other == rank()) continue;
      if (routes(rank(), other)) {
        sends.push_back({other, bytes(cuts[rank()]), bytes(cuts[rank() + 1] - cuts[rank()])});
      }
      if (routes(other, rank())) {
        receives.push_back({other, bytes(cuts[other]), bytes(cuts[other + 1] - cuts[other])});
      }
    }
    return Exchange(x, sends, x, receives);
  }

  // Of a tensor, in bytes, to or from another member.
  struct Part {
    int member = 0;
    size_t begin = 0, bytes = 0;
  };

  absl::Status Exchange(const Tensor& from, const std::vector<Part>& sends, const Tensor& into,
                        const std::vector<Part>& receives) {
    const auto size = [](const Tensor& x) {
      return static_cast<size_t>(x.size() * GetElementSize(x.dtype));
    };
    const uint64_t slot = kParts | ++exchanges_;
    return RecordOutcome(Guarded([&] {
      const auto out = mesh_->createUnboundBuffer(from.data, size(from));
      const auto in = mesh_->createUnboundBuffer(into.data, size(into));
      int sent = 0, received = 0;
      for (const Part& part : receives) {
        if (part.bytes == 0) continue;
        in->recv(part.member, slot, part.begin, part.bytes);
        ++received;
      }
      for (const Part& part : sends) {
        if (part.bytes == 0) continue;
        out->send(part.member, slot, part.begin, part.bytes);
        ++sent;
      }
      for (; received > 0; --received) in->waitRecv(nullptr, Milliseconds(group_.timeout));
      for (; sent > 0; --sent) out->waitSend(nullptr, Milliseconds(group_.timeout));
    }));
  }

  // The own part of x <- its sum, in the order of ranks.
  template <typename T>
  absl::Status AddParts(const Tensor& x, const Cuts& cuts) {
    const int64_t begin = cuts[rank()], own = cuts[rank() + 1] - begin;
    const auto bytes = [](int64_t elements) { return static_cast<size_t>(elements) * sizeof(T); };
    others_.resize(bytes(own * group_.size));
    const Tensor others(others_.data(), x.dtype, 1, own * group_.size);
    std::vector<Part> sends, receives;
    for (int other = 0; other < group_.size; ++other) {
      if (other == rank()) continue;
      sends.push_back({other, bytes(cuts[other]), bytes(cuts[other + 1] - cuts[other])});
      receives.push_back({other, bytes(own * other), bytes(own)});
    }
    ATOLL_RETURN_IF_ERROR(Exchange(x, sends, others, receives));
    T* const sum = x.as<T>() + begin;
    T* const all = others.as<T>();
    std::copy_n(sum, own, all + own * rank());
    std::copy_n(all, own, sum);
    for (int member = 1; member < group_.size; ++member) {
      const T* const part = all + own * member;
      for (int64_t i = 0; i < own; ++i) sum[i] += part[i];
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Ring(T* data, int64_t n, bool sum) {
    return RecordOutcome(Guarded([&] {
      ::gloo::AllreduceOptions options(mesh_);
      options.setAlgorithm(::gloo::AllreduceOptions::Algorithm::RING);
      options.setTimeout(Milliseconds(group_.timeout));
      options.setReduceFunction(sum ? &Add<T> : &Largest<T>);
      options.setOutput(data, static_cast<size_t>(n));
      ::gloo::allreduce(options);
    }));
  }

  absl::Status Widened(Bfloat16* data, int64_t n, bool sum) {
    wide_.resize(n);
    std::transform(data, data + n, wide_.begin(), WidenBfloat16);
    ATOLL_RETURN_IF_ERROR(Ring(wide_.data(), n, sum));
    std::transform(wide_.begin(), wide_.end(), data, RoundToBfloat16);
    return absl::OkStatus();
  }

  absl::Status failure() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  // The outcome of a step: the first failure stays, and the other members must not wait for us.
  absl::Status RecordOutcome(const absl::Status& status) {
    std::shared_ptr<Mesh> mesh;
    {
      std::lock_guard lock(mutex_);
      if (status.ok() || !failure_.ok()) return failure_;
      failure_ = Annotate(status, absl::StrCat("rank ", group_.rank, " of ", group_.size,
                                               " in group ", group_.name));
      mesh = mesh_;
    }
    if (mesh != nullptr) mesh->Close();
    return failure();
  }

  // Of exchanges of parts: no collective's of Gloo, and not the watch's.
  static constexpr uint64_t kParts = uint64_t{0xa8} << 56;

  const std::shared_ptr<GlooDevice> device_;
  const GlooGroup group_;
  std::vector<float> wide_;
  std::vector<std::byte> others_;  // parts of other members
  uint64_t exchanges_ = 0;

  mutable std::mutex mutex_;
  std::shared_ptr<Mesh> mesh_;  // written once, by Join
  absl::Status failure_;

  std::unique_ptr<Watch> watch_;  // of mesh_, and dies before it
};

// Gloo writes to connections that may be closed, without MSG_NOSIGNAL: by default a member that
// goes would take this process with it.
void IgnoreBrokenPipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
  }
}

// Whether this machine has the address. Gloo would not say what is wrong, and lose memory.
absl::Status CheckAddress(const std::string& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.c_str(), nullptr, &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  int why = EADDRNOTAVAIL;
  for (const addrinfo* a = found; a != nullptr && why != 0; a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    why = fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  return why == 0 ? absl::OkStatus() : absl::UnavailableError(strerror(why));
}

}  // namespace

absl::StatusOr<std::shared_ptr<GlooDevice>> GlooDevice::Create(
    const std::string& address, bool allow_plaintext_beyond_loopback) {
  const bool v6 = absl::StrContains(address, ":");
  const std::string endpoint = absl::StrCat("tcp://", v6 ? "[" : "", address, v6 ? "]" : "", ":0");
  if (!allow_plaintext_beyond_loopback && !IsLoopback(endpoint)) {
    return absl::InvalidArgumentError(absl::StrCat(
        address,
        ": collectives between workers are not encrypted and confined to loopback addresses; plan "
        "islands without data or tensor parallelism between machines, or allow plaintext where the "
        "network is private by other means"));
  }
  IgnoreBrokenPipes();
  std::shared_ptr<::gloo::transport::Device> device;
  absl::Status status = CheckAddress(address);
  if (status.ok()) {
    status = Guarded([&] {
      ::gloo::transport::tcp::attr attr;
      attr.hostname = address;
      device = ::gloo::transport::tcp::CreateDevice(attr);
    });
  }
  if (!status.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen at ", address, " for collectives: ", status.message()));
  }
  return std::make_shared<TcpDevice>(std::move(device));
}

std::unique_ptr<GlooCommunicator> GlooCommunicator::Create(std::shared_ptr<GlooDevice> device,
                                                           GlooGroup group) {
  ATOLL_CHECK(group.size >= 1 && group.rank >= 0 && group.rank < group.size && device != nullptr);
  return std::make_unique<Member>(std::move(device), std::move(group));
}

}  // namespace atl::worker
