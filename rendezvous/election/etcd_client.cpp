// A call is an Rpc: it is started on a channel, and started again on that of the server's next address, or of the next server, when nobody answers there.
// gRPC's threads post one task per attempt and own nothing. The client's destructor cancels all attempts and waits until each has posted.

#include "rendezvous/election/etcd_client.hpp"

#include <grpcpp/grpcpp.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <condition_variable>
#include <mutex>
#include <set>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "etcd.grpc.pb.h"
#include "rendezvous/net/grpc.hpp"
#include "rendezvous/net/lookup.hpp"

namespace elrun::inline v0 {
namespace {

using Loop = boost::asio::io_context;
namespace pb = etcdserverpb;

constexpr std::size_t addresses_max = 8;  // of one server
constexpr Bytes answer_max = 1_MiB;       // the two keys of an election are a few hundred bytes

using Done = std::function<void(const grpc::Status&)>;  // on one of gRPC's threads, as the last thing of an attempt

class Rpc {
 public:
  virtual ~Rpc() = default;
  void start(const std::shared_ptr<grpc::Channel>& channel, Done done) {
    context_ = std::make_unique<grpc::ClientContext>();
    begin(channel, *context_, std::move(done));
  }
  void cancel() {
    if (context_) context_->TryCancel();
  }
  virtual void answer(const Result<void>& result) = 0;

 private:
  virtual void begin(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context, Done done) = 0;
  std::unique_ptr<grpc::ClientContext> context_;  // of the attempt at hand
};

template <class Service, class Request, class Response>
class UnaryRpc final : public Rpc {
 public:
  using Method = void (*)(typename Service::Stub&, grpc::ClientContext*, const Request*, Response*, Done);
  using Receiver = std::function<void(Result<const Response*>)>;
  UnaryRpc(Request request, Method method, Receiver receiver)
      : request_{std::move(request)}, method_{method}, receiver_{std::move(receiver)} {}
  void answer(const Result<void>& result) override {
    receiver_(result.ok() ? Result<const Response*>{&response_} : Result<const Response*>{result.failure()});
  }

 private:
  void begin(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context, Done done) override {
    response_.Clear();
    stub_ = Service::NewStub(channel);
    method_(*stub_, &context, &request_, &response_, std::move(done));
  }
  Request request_;
  Response response_;
  Method method_;
  Receiver receiver_;
  std::unique_ptr<typename Service::Stub> stub_;
};

// One question and one answer on a stream, which then ends.
class KeepAliveRpc final : public Rpc {
 public:
  KeepAliveRpc(LeaseId lease, EtcdClient::Answer<Duration> answer) : answer_{std::move(answer)} { request_.set_id(lease.value()); }
  void answer(const Result<void>& result) override {
    if (!result.ok()) return answer_(result.failure());
    if (!stream_->has_read()) return answer_(Failure{Code::unreachable, Remedy::retry, "etcd ended the stream without an answer"});
    answer_(Duration{std::chrono::seconds{std::max<std::int64_t>(stream_->response().ttl(), 0)}});
  }

 private:
  class Stream final : public grpc::ClientBidiReactor<pb::LeaseKeepAliveRequest, pb::LeaseKeepAliveResponse> {
   public:
    Stream(pb::Lease::Stub& stub, grpc::ClientContext& context, const pb::LeaseKeepAliveRequest& request, Done done)
        : done_{std::move(done)} {
      stub.async()->LeaseKeepAlive(&context, this);
      StartWriteLast(&request, {});
      StartRead(&response_);
      StartCall();
    }
    [[nodiscard]] bool has_read() const { return has_read_; }
    [[nodiscard]] const pb::LeaseKeepAliveResponse& response() const { return response_; }

   private:
    void OnReadDone(bool ok) override { has_read_ = ok; }
    void OnDone(const grpc::Status& status) override {
      const Done done = std::move(done_);  // the task that it posts may destroy this
      done(status);
    }
    Done done_;
    pb::LeaseKeepAliveResponse response_;
    bool has_read_ = false;  // OnDone comes after it, and the posted task after that
  };

  void begin(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context, Done done) override {
    stub_ = pb::Lease::NewStub(channel);
    stream_ = std::make_unique<Stream>(*stub_, context, request_, std::move(done));
  }
  pb::LeaseKeepAliveRequest request_;
  EtcdClient::Answer<Duration> answer_;
  std::unique_ptr<pb::Lease::Stub> stub_;
  std::unique_ptr<Stream> stream_;
};

std::optional<EtcdValue> first_of(const pb::RangeResponse& range) {
  if (range.kvs().empty()) return {};
  const pb::KeyValue& found = range.kvs(0);
  return EtcdValue{found.value(), Revision{found.create_revision()}, LeaseId{found.lease()}};
}

class Client final : public EtcdClient {
 public:
  Client(Loop& loop, std::vector<Endpoint> servers, Duration limit, Access access, Resolver resolver)
      : loop_{loop}, servers_{std::move(servers)}, limit_{limit}, access_{std::move(access)}, lookup_{loop, std::move(resolver)} {
    quiet_grpc();
  }
  ~Client() override {
    alive_.reset();
    for (const auto& call : calls_) call->rpc->cancel();
    flights_->wait_for_none();
  }

  void read(const std::string& key, Answer<std::optional<EtcdValue>> answer) override {
    pb::RangeRequest request;
    request.set_key(key);
    ask<pb::KV, pb::RangeRequest, pb::RangeResponse>(
        std::move(request),
        [](pb::KV::Stub& stub, auto* context, auto* in, auto* out, Done done) { stub.async()->Range(context, in, out, std::move(done)); },
        [answer = std::move(answer)](Result<const pb::RangeResponse*> got) {
          if (!got.ok()) return answer(got.failure());
          answer(first_of(**got));
        });
  }
  void transact(const EtcdTransaction& transaction, Answer<EtcdOutcome> answer) override {
    pb::TxnRequest request;
    pb::Compare& compare = *request.add_compare();
    compare.set_target(pb::Compare::CREATE);
    compare.set_result(pb::Compare::EQUAL);
    compare.set_key(transaction.guard);
    compare.set_create_revision(transaction.created.value());
    if (transaction.created != Revision{}) {
      pb::Compare& owner = *request.add_compare();
      owner.set_target(pb::Compare::LEASE);
      owner.set_result(pb::Compare::EQUAL);
      owner.set_key(transaction.guard);
      owner.set_lease(transaction.lease.value());
    }
    for (const EtcdTransaction::Write& write : transaction.writes) {
      pb::PutRequest& put = *request.add_success()->mutable_request_put();
      put.set_key(write.key);
      put.set_value(write.value);
      put.set_lease(write.lease.value());
    }
    for (const std::string& key : transaction.reads) {
      request.add_success()->mutable_request_range()->set_key(key);
      request.add_failure()->mutable_request_range()->set_key(key);
    }
    ask<pb::KV, pb::TxnRequest, pb::TxnResponse>(
        std::move(request),
        [](pb::KV::Stub& stub, auto* context, auto* in, auto* out, Done done) { stub.async()->Txn(context, in, out, std::move(done)); },
        [answer = std::move(answer), reads = transaction.reads.size()](Result<const pb::TxnResponse*> got) {
          if (!got.ok()) return answer(got.failure());
          EtcdOutcome outcome{(*got)->succeeded(), {}};
          for (const pb::ResponseOp& response : (*got)->responses())
            if (response.has_response_range()) outcome.read.push_back(first_of(response.response_range()));
          if (outcome.read.size() != reads)
            return answer(Failure{Code::protocol, Remedy::fix_config, "what answers as etcd left parts of a transaction out"});
          answer(std::move(outcome));
        });
  }
  void grant(Duration lease, Answer<Lease> answer) override {
    pb::LeaseGrantRequest request;
    request.set_ttl(std::chrono::ceil<std::chrono::seconds>(lease).count());
    ask<pb::Lease, pb::LeaseGrantRequest, pb::LeaseGrantResponse>(
        std::move(request),
        [](pb::Lease::Stub& stub, auto* context, auto* in, auto* out, Done done) {
          stub.async()->LeaseGrant(context, in, out, std::move(done));
        },
        [answer = std::move(answer)](Result<const pb::LeaseGrantResponse*> got) {
          if (!got.ok()) return answer(got.failure());
          if ((*got)->id() == 0 || (*got)->ttl() <= 0)
            return answer(Failure{Code::refused, Remedy::fix_config, "etcd granted no lease: " + (*got)->error()});
          answer(Lease{LeaseId{(*got)->id()}, std::chrono::seconds{(*got)->ttl()}});
        });
  }
  void keep_alive(LeaseId lease, Answer<Duration> answer) override { begin(std::make_shared<KeepAliveRpc>(lease, std::move(answer))); }
  void revoke(LeaseId lease, Answer<Lease> answer) override {
    pb::LeaseRevokeRequest request;
    request.set_id(lease.value());
    ask<pb::Lease, pb::LeaseRevokeRequest, pb::LeaseRevokeResponse>(
        std::move(request),
        [](pb::Lease::Stub& stub, auto* context, auto* in, auto* out, Done done) {
          stub.async()->LeaseRevoke(context, in, out, std::move(done));
        },
        [answer = std::move(answer), lease](Result<const pb::LeaseRevokeResponse*> got) {
          if (!got.ok() && got.failure().code != Code::not_found) return answer(got.failure());
          answer(Lease{lease, Duration{0}});
        });
  }
  [[nodiscard]] std::string local_address() const override { return local_address_; }

 private:
  // Attempts that gRPC still knows of.
  class Flights {
   public:
    void one_more() {
      const std::lock_guard lock{mutex_};
      ++count_;
    }
    void one_less() {
      const std::lock_guard lock{mutex_};
      if (--count_ == 0) none_.notify_all();
    }
    void wait_for_none() {
      std::unique_lock lock{mutex_};
      none_.wait(lock, [this] { return count_ == 0; });
    }

   private:
    std::mutex mutex_;
    std::condition_variable none_;
    std::size_t count_ = 0;
  };
  struct Call {
    Call(Loop& loop, std::shared_ptr<Rpc> what, std::size_t servers) : rpc{std::move(what)}, timer{loop}, servers_left{servers} {}
    std::shared_ptr<Rpc> rpc;
    boost::asio::steady_timer timer;
    std::size_t servers_left;
    std::size_t server = 0;                  // that is, or was last, asked,
    std::uint64_t visit = 0;                 // in which visit to it, and
    std::string address;                     // at which of its addresses
    std::shared_ptr<grpc::Channel> channel;  // none while it waits for the lookup
    bool late = false;                       // this attempt was given up
  };

  template <class Service, class Request, class Response>
  void ask(Request request, typename UnaryRpc<Service, Request, Response>::Method method,
           typename UnaryRpc<Service, Request, Response>::Receiver receiver) {
    begin(std::make_shared<UnaryRpc<Service, Request, Response>>(std::move(request), method, std::move(receiver)));
  }
  void begin(std::shared_ptr<Rpc> rpc) {
    const auto call = std::make_shared<Call>(loop_, std::move(rpc), servers_.size());
    calls_.insert(call);
    visit(call);
  }
  // All addresses of a server have one limit: a machine that is silent must not cost one for each of its addresses.
  void visit(const std::shared_ptr<Call>& call) {
    call->late = false;
    set_timer(call);
    attempt(call);
  }
  void set_timer(const std::shared_ptr<Call>& call) {
    call->timer.expires_after(limit_);
    call->timer.async_wait([this, weak = std::weak_ptr{call}, alive = std::weak_ptr{alive_}](const boost::system::error_code& error) {
      const auto there = weak.lock();
      if (error || alive.expired() || !there || !calls_.contains(there)) return;
      there->late = true;
      if (there->channel) return there->rpc->cancel();
      if (there->visit == visit_) turn_to_next_server();
      fail(there, too_late());
    });
  }
  void attempt(const std::shared_ptr<Call>& call) {
    call->server = at_;
    call->visit = visit_;
    call->address.clear();
    call->channel.reset();
    if (channel_) return go(call);
    if (addresses_.empty()) return look_up();
    if (const std::string problem = open(); !problem.empty()) {
      turn_to_next_server();
      return fail(call, problem);
    }
    go(call);
  }
  void look_up() {
    if (std::exchange(looking_up_, true)) return;
    lookup_.start(servers_[at_], [this](Resolved found) {
      boost::asio::post(loop_, [this, alive = std::weak_ptr{alive_}, server = at_, found = std::move(found)] {
        if (!alive.expired() && looking_up_ && server == at_) connect(found);
      });
    });
  }
  void connect(const Resolved& found) {
    looking_up_ = false;
    addresses_ = found.addresses;
    if (addresses_.size() > addresses_max) addresses_.resize(addresses_max);
    if (!addresses_.empty()) places_[at_] %= addresses_.size();
    const std::string problem = addresses_.empty() ? found.problem : open();
    if (!problem.empty()) turn_to_next_server();
    for (const std::shared_ptr<Call>& call : std::vector(calls_.begin(), calls_.end())) {
      if (call->channel || call->late) continue;
      if (problem.empty()) go(call);
      else fail(call, problem);
    }
  }
  // Opens a channel to the address whose turn it is. Returns why it cannot.
  std::string open() {
    const Address& address = address_at_hand();
    auto credentials = grpc::InsecureChannelCredentials();
    grpc::ChannelArguments arguments;
    if (access_.has_tls()) {
      const Result<Credentials> read = read_credentials(access_, AccessPeer::etcd);
      if (!read.ok()) return read.failure().what;
      credentials =
          grpc::SslCredentials({.pem_root_certs = read->ca, .pem_private_key = read->key.reveal(), .pem_cert_chain = read->certificate});
      arguments.SetSslTargetNameOverride(servers_[at_].host);  // the channel itself knows only the address
    }
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // no connection, and no back-off, of an attempt before
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    arguments.SetMaxReceiveMessageSize(static_cast<int>(answer_max.value()));
    channel_ = grpc::CreateCustomChannel(address.target, credentials, arguments);
    has_answered_ = false;
    return {};
  }
  void go(const std::shared_ptr<Call>& call) {
    if (call->visit != visit_) set_timer(call);  // while it waited for a name, another call turned to the next server
    call->channel = channel_;
    call->server = at_;
    call->visit = visit_;
    call->address = address_at_hand().text;
    flights_->one_more();
    call->rpc->start(channel_, [&loop = loop_, flights = flights_, alive = std::weak_ptr{alive_}, weak = std::weak_ptr{call},
                                this](const grpc::Status& status) {
      boost::asio::post(loop, [this, alive, weak, status] {
        if (const auto there = weak.lock(); there && !alive.expired()) ended(there, status);
      });
      flights->one_less();
    });
  }
  void ended(const std::shared_ptr<Call>& call, const grpc::Status& status) {
    using grpc::StatusCode;
    if (status.ok()) {
      if (call->channel == channel_) note_source();
      return answer(call, {});
    }
    const StatusCode code = status.error_code();
    if (!call->late && code == StatusCode::NOT_FOUND)
      return answer(call, Failure{Code::not_found, Remedy::retry, said(*call, status.error_message())});
    if (!call->late && code != StatusCode::UNAVAILABLE && code != StatusCode::DEADLINE_EXCEEDED)
      return answer(call, Failure{Code::refused, Remedy::fix_config, said(*call, status.error_message())});
    if (call->channel == channel_) turn();  // else another call has turned already
    if (call->late && call->visit == visit_) turn_to_next_server();
    fail(call, call->late ? too_late() : status.error_message());
  }
  // Where etcd only might be, packets can leave from another address than the one by which peers know this machine.
  void note_source() {
    if (std::exchange(has_answered_, true)) return;
    if (std::string source = source_address(address_at_hand()); !source.empty()) local_address_ = std::move(source);
  }
  [[nodiscard]] const Address& address_at_hand() const { return addresses_[places_[at_]]; }
  // Turns to the next address of this server, or to the next server, with a channel of its own.
  void turn() {
    channel_.reset();
    places_[at_] = (places_[at_] + 1) % addresses_.size();
    if (++tried_ >= addresses_.size()) turn_to_next_server();
  }
  // The place in this server's list stays: where it was silent, the next visit does not begin.
  void turn_to_next_server() {
    channel_.reset();
    looking_up_ = false;
    addresses_.clear();
    tried_ = 0;
    at_ = (at_ + 1) % servers_.size();
    ++visit_;
  }
  void fail(const std::shared_ptr<Call>& call, const std::string& why) {
    // No call comes twice to one channel, so none asks one server for ever.
    if (call->visit == visit_) return attempt(call);
    if (--call->servers_left > 0) return visit(call);
    answer(call, Failure{Code::unreachable, Remedy::retry, said(*call, why)});
  }
  void answer(const std::shared_ptr<Call>& call, const Result<void>& result) {
    call->timer.cancel();
    calls_.erase(call);
    boost::asio::post(loop_, [call, result, alive = std::weak_ptr{alive_}] {
      if (!alive.expired()) call->rpc->answer(result);  // may destroy the client
    });
  }
  [[nodiscard]] std::string said(const Call& call, const std::string& what) const {
    const Endpoint& server = servers_[call.server];
    const bool is_name = !call.address.empty() && !literal_address(server.host, server.port);
    return fmt::format("etcd at {}:{}{}: {}", server.host, server.port, is_name ? fmt::format(" ({})", call.address) : "", what);
  }
  [[nodiscard]] std::string too_late() const {
    return fmt::format("no answer within {:.3g} s", std::chrono::duration<double>(limit_).count());
  }

  Loop& loop_;
  std::vector<Endpoint> servers_;
  Duration limit_;
  Access access_;
  std::size_t at_ = 0;                                                           // the server that is asked, and
  std::uint64_t visit_ = 0;                                                      // how many were before it
  std::vector<Address> addresses_;                                               // of that server; none before its name was looked up
  std::vector<std::size_t> places_ = std::vector<std::size_t>(servers_.size());  // of each server's addresses, the one that is asked next
  std::size_t tried_ = 0;                                                        // how many of them had no answer in this visit
  NameLookup lookup_;
  bool looking_up_ = false;
  std::shared_ptr<grpc::Channel> channel_;
  bool has_answered_ = false;  // something came through it
  std::string local_address_;
  std::set<std::shared_ptr<Call>> calls_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // posted tasks hold it weakly
  std::shared_ptr<Flights> flights_ = std::make_shared<Flights>();
};

}  // namespace

std::unique_ptr<EtcdClient> EtcdClient::create(Loop& loop, std::vector<Endpoint> servers, Duration limit, Access access,
                                               Resolver resolver) {
  return std::make_unique<Client>(loop, std::move(servers), limit, std::move(access), std::move(resolver));
}

}  // namespace elrun::inline v0
