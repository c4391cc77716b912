#include "common/net/control/attach_client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "common/event_loop.h"
#include "common/logging.h"
#include "common/net/control/leader.h"
#include "common/net/control/reachability.h"
#include "common/protocol/wire.h"
#include "common/rng.h"
#include "proto/control.grpc.pb.h"

namespace atl {
namespace {

constexpr auto kConnectLimit = std::chrono::seconds(10);
constexpr auto kLeaderLimit = std::chrono::seconds(5);
constexpr auto kLookAgain = std::chrono::milliseconds(10);       // whether there is a connection
constexpr auto kWhyLimit = std::chrono::seconds(1);              // to learn why there is none
constexpr Duration kLeaderBackoffMax = std::chrono::seconds(1);  // one takes over soon

struct WorkerSide {
  using Service = v1::WorkerControl;
  using WireUp = v1::FromWorker;
  using WireDown = v1::ToWorker;
};
struct ServerSide {
  using Service = v1::ServerControl;
  using WireUp = v1::FromServer;
  using WireDown = v1::ToServer;
};
template <class Up>
using SideOf = std::conditional_t<std::is_same_v<Up, FromWorker>, WorkerSide, ServerSide>;

FromWorker Envelope(const AttachOptions& o, WorkerMessage message) {
  return {o.name, o.incarnation, std::move(message)};
}
FromServer Envelope(const AttachOptions& o, ServerMessage message) {
  return {o.name, o.incarnation, std::move(message)};
}
const NodeId& Addressee(const ToWorker& message) { return message.worker; }
const NodeId& Addressee(const ToServer& message) { return message.server; }

}  // namespace

template <class Up, class Down>
class AttachClient<Up, Down>::Impl {
 public:
  using Side = SideOf<Up>;
  using Stream = grpc::ClientReaderWriter<typename Side::WireUp, typename Side::WireDown>;

  Impl(AttachOptions options, std::function<void(Event)> on_event)
      : options_(WithBackoff(std::move(options))),
        on_event_(std::move(on_event)),
        jitter_(std::hash<std::string>{}(options_.name), options_.incarnation),
        thread_([this] { Run(); }) {}

  bool Send(Message message) {
    const std::lock_guard lock(mutex_);
    if (!open_ || closing_ || queue_.size() >= options_.max_queued) return false;
    queue_.push_back(std::move(message));
    changed_.notify_all();
    return true;
  }

  void Close(Duration flush) {
    if (!thread_.joinable()) return;
    {
      std::unique_lock lock(mutex_);
      closing_ = true;
      changed_.notify_all();
      changed_.wait_for(lock, flush, [&] { return ended_; });
      if (context_ != nullptr) context_->TryCancel();
    }
    thread_.join();
  }

 private:
  static AttachOptions WithBackoff(AttachOptions options) {
    if (SplitAddresses(options.coordinator).size() > 1) {
      options.backoff_max = std::min(options.backoff_max, kLeaderBackoffMax);
    }
    return options;
  }

  // The reading thread: connection after connection.
  void Run() {
    Duration backoff = options_.backoff_min;
    while (!closing()) {
      const End end = Serve();
      if (closing()) break;
      on_event_(AttachLost{end.reason});
      backoff =
          std::min(backoff * 2, end.refused ? options_.refused_backoff_max : options_.backoff_max);
      if (end.served) backoff = options_.backoff_min;
      std::unique_lock lock(mutex_);
      // Spread, so that a thousand members do not come back in the same moment.
      const Duration wait = FromSeconds(Seconds(backoff) * (0.5 + 0.5 * jitter_.Uniform()));
      changed_.wait_for(lock, wait, [&] { return closing_; });
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  // The end of a connection.
  struct End {
    std::string reason;
    bool served = false;   // the coordinator said something
    bool refused = false;  // by who we are; it is not likely to change soon
  };

  // One connection from opening to end.
  End Serve() {
    const auto leader = OpenLeaderChannel(
        options_.tls, options_.coordinator, kLeaderLimit, [this] { return closing(); },
        kMemberKeepaliveMs);
    if (!leader.ok()) return {std::string(leader.status().message())};
    const grpc_connectivity_state connection = AwaitConnection(leader->channel.get());
    const auto stub = Side::Service::NewStub(leader->channel);
    grpc::ClientContext context;
    if (connection == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      context.set_deadline(std::chrono::system_clock::now() + kWhyLimit);
      const grpc::Status why = stub->Attach(&context)->Finish();
      if (why.error_code() == grpc::StatusCode::UNAVAILABLE) {
        return {Explained(leader->address, why.error_message())};
      }
    }
    if (connection != GRPC_CHANNEL_READY) {
      return {absl::StrCat(leader->address, ": no coordinator answers there")};
    }
    SetContext(&context);
    auto stream = stub->Attach(&context);
    Opened();
    std::thread writer([&] { Write(stream.get()); });
    End end;
    const std::string fault = Read(stream.get(), &end.served);
    if (!fault.empty()) context.TryCancel();
    const grpc::Status status = stream->Finish();  // before a cancel, which would hide the reason
    context.TryCancel();                           // frees a writer that waits for room
    StopWriter();
    writer.join();
    SetContext(nullptr);
    end.refused = status.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
                  status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
    if (!fault.empty()) {
      end.reason = fault;
    } else if (!end.served && status.error_code() == grpc::StatusCode::UNAVAILABLE &&
               !absl::StartsWith(status.error_message(), kStandbyText)) {
      end.reason = Explained(leader->address, status.error_message());
    } else {
      end.reason =
          absl::StrCat(leader->address, ": ",
                       status.ok() ? "the coordinator ended the stream" : status.error_message());
    }
    return end;
  }

  // Why there is no connection. What is known of the same failure is not looked at again.
  std::string Explained(const std::string& address, const std::string& said) {
    if (explanation_.empty() || said != explained_) {
      explained_ = said;
      explanation_ = ExplainConnection({address, !options_.tls.cert_path.empty()}, said);
    }
    return explanation_;
  }

  // The state of the channel when it is connected or has failed, or at the limit, or at Close. Not
  // by gRPC's own wait: the timer that ends that follows the wall clock, which may be set back by
  // years.
  grpc_connectivity_state AwaitConnection(grpc::Channel* channel) {
    const Instant deadline = SteadyNow() + kConnectLimit;
    grpc::CompletionQueue polls;  // whatever is ready of the process's channels
    for (;;) {
      const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
      const bool ends = state == GRPC_CHANNEL_READY || state == GRPC_CHANNEL_TRANSIENT_FAILURE;
      if (ends || closing() || SteadyNow() >= deadline) return state;
      void* tag;
      bool ok;
      (void)polls.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kLookAgain);
    }
  }

  // Until the stream ends; a non-empty text is a fault of the coordinator's.
  std::string Read(Stream* stream, bool* served) {
    typename Side::WireDown wire;
    while (stream->Read(&wire)) {
      if (wire.has_client_keys()) {
        if (options_.on_keys && !closing()) options_.on_keys(wire.client_keys());
        continue;
      }
      absl::StatusOr<Down> message = Decode(&wire);
      if (!message.ok()) {
        return absl::StrCat(options_.coordinator,
                            " sent a bad message: ", message.status().message());
      }
      if (Addressee(*message) != options_.name || message->incarnation != options_.incarnation) {
        continue;
      }
      *served = true;
      if (!closing()) on_event_(*std::move(message));
    }
    return "";
  }

  void Write(Stream* stream) {
    for (;;) {
      typename Side::WireUp wire;
      absl::Status status;
      grpc::WriteOptions options;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !open_ || closing_ || !queue_.empty(); });
        if (!open_) return;
        if (queue_.empty()) break;
        status = Encode(Envelope(options_, std::move(queue_.front())), &wire);
        queue_.pop_front();
        if (!queue_.empty()) options.set_buffer_hint();  // they go out together
      }
      if (!status.ok()) {
        // The coordinator would refuse it, and with it the connection.
        LogWarning("coordinator", "a message is not sent: ", status.message());
        continue;
      }
      if (!stream->Write(wire, options)) return;
    }
    stream->WritesDone();  // closing: the coordinator then ends the stream
  }

  void Opened() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    on_event_(AttachOpened{});
  }

  void StopWriter() {
    const std::lock_guard lock(mutex_);
    open_ = false;
    queue_.clear();
    changed_.notify_all();
  }

  void SetContext(grpc::ClientContext* context) {
    const std::lock_guard lock(mutex_);
    context_ = context;
  }

  bool closing() {
    const std::lock_guard lock(mutex_);
    return closing_;
  }

  const AttachOptions options_;
  const std::function<void(Event)> on_event_;
  Rng jitter_;  // of the reading thread, as the next two
  std::string explained_, explanation_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> queue_;               // all below guarded by mutex_
  grpc::ClientContext* context_ = nullptr;  // of the connection under way
  bool open_ = false;
  bool closing_ = false;
  bool ended_ = false;

  std::thread thread_;  // last: it uses all of the above
};

template <class Up, class Down>
absl::StatusOr<std::unique_ptr<AttachClient<Up, Down>>> AttachClient<Up, Down>::Open(
    AttachOptions options, std::function<void(Event)> on_event) {
  ATOLL_RETURN_IF_ERROR(CheckNodeName(options.name));
  ATOLL_RETURN_IF_ERROR(CheckAddresses(options.coordinator));
  for (const std::string& address : SplitAddresses(options.coordinator)) {
    ATOLL_RETURN_IF_ERROR(ClientCredentials(options.tls, address).status());
  }
  auto impl = std::make_unique<Impl>(std::move(options), std::move(on_event));
  return std::unique_ptr<AttachClient>(new AttachClient(std::move(impl)));
}

template <class Up, class Down>
AttachClient<Up, Down>::AttachClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

template <class Up, class Down>
AttachClient<Up, Down>::~AttachClient() {
  Close(Duration{0});
}

template <class Up, class Down>
bool AttachClient<Up, Down>::Send(Message message) {
  return impl_->Send(std::move(message));
}

template <class Up, class Down>
void AttachClient<Up, Down>::Close(Duration flush) {
  impl_->Close(flush);
}

template class AttachClient<FromWorker, ToWorker>;
template class AttachClient<FromServer, ToServer>;

}  // namespace atl
