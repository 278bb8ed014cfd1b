#include "launcher/http/ask_tls.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr int record_max = 16384;  // bytes of a TLS record

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* connection) const { SSL_free(connection); }
};

std::string newest_error() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  if (error == 0) return "the connection was closed";
  std::array<char, 256> text{};
  ERR_error_string_n(error, text.data(), text.size());
  return text.data();
}

// One question: a non-blocking socket, OpenSSL on it, and a deadline for all of it.
class TlsQuestion {
 public:
  TlsQuestion(const TlsPeer& peer, Duration timeout, const Clock& clock)
      : peer_{peer}, timeout_{timeout}, deadline_{Deadline::after(clock.now(), timeout)}, clock_{clock} {}

  Result<void> connect() {
    ERR_clear_error();
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (!context_ || SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION) != 1) return broken("set up TLS");
    if (SSL_CTX_load_verify_file(context_.get(), peer_.ca_file.c_str()) != 1)
      return invalid(fmt::format("the authority's certificates in {} cannot be read: {}", peer_.ca_file.native(), newest_error()));
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    ELRUN_TRY_ASSIGN(socket_, connect_begin(peer_.where));
    if (!wait_for(POLLOUT)) return late();
    ELRUN_TRY(connect_result(socket_.get(), peer_.where));
    connection_.reset(SSL_new(context_.get()));
    if (!connection_ || SSL_set_fd(connection_.get(), socket_.get()) != 1) return broken("set up TLS");
    SSL_set_hostflags(connection_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (literal_address(peer_.host, 1)) {
      if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(connection_.get()), peer_.host.c_str()) != 1) return broken("set up TLS");
    } else if (SSL_set1_host(connection_.get(), peer_.host.c_str()) != 1 ||
               SSL_set_tlsext_host_name(connection_.get(), peer_.host.c_str()) != 1) {
      return broken("set up TLS");
    }
    return repeat("shake hands with", [this] { return SSL_connect(connection_.get()); });
  }

  Result<void> send(std::string_view text) {
    while (!text.empty()) {
      int sent = 0;
      const int count = static_cast<int>(std::min<std::size_t>(text.size(), record_max));
      ELRUN_TRY(repeat("ask", [&] { return sent = SSL_write(connection_.get(), text.data(), count); }));
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return {};
  }

  Result<HttpReply> hear(Bytes most) {
    std::string reply;
    std::array<char, record_max> chunk;
    for (;;) {
      ERR_clear_error();
      const int count = SSL_read(connection_.get(), chunk.data(), record_max);
      if (count > 0) {
        reply.append(chunk.data(), static_cast<std::size_t>(count));
        if (reply.size() > http_request_max.value() + most.value())
          return Failure{Code::protocol, Remedy::fix_config, fmt::format("{} answers with more than {} bytes", name(), most.value())};
        if (is_whole_reply(reply)) return read_reply(reply);
        if (deadline_.passed(clock_.now())) return late();
        continue;
      }
      const int error = SSL_get_error(connection_.get(), count);
      // Only what is told as the end is one: a reply without a length that was cut would be read as whole.
      if (error == SSL_ERROR_ZERO_RETURN) return read_reply(reply);
      if (const auto ready = wait_for_error(error, "hear from"); !ready.ok()) return ready.failure();
    }
  }

 private:
  template <class Call>
  Result<void> repeat(std::string_view what, Call call) {
    for (;;) {
      ERR_clear_error();
      const int result = call();
      if (result > 0) return {};
      ELRUN_TRY(wait_for_error(SSL_get_error(connection_.get(), result), what));
      if (deadline_.passed(clock_.now())) return late();
    }
  }

  Result<void> wait_for_error(int error, std::string_view what) {
    if (error == SSL_ERROR_WANT_READ) return wait_for(POLLIN) ? Result<void>{} : late();
    if (error == SSL_ERROR_WANT_WRITE) return wait_for(POLLOUT) ? Result<void>{} : late();
    return broken(what);
  }

  bool wait_for(short events) {
    for (;;) {
      pollfd p{socket_.get(), events, 0};
      const Duration left = std::min<Duration>(deadline_.left(clock_.now()), 3600s);
      const int got = ::poll(&p, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
      if (got > 0) return true;
      if (got == 0 || errno != EINTR) return false;
    }
  }

  [[nodiscard]] std::string name() const { return fmt::format("{} ({})", peer_.host, to_string(peer_.where)); }
  [[nodiscard]] Failure late() const {
    return {Code::deadline_passed, Remedy::retry, fmt::format("{} did not answer within {:.1f} s", name(), seconds(timeout_))};
  }
  [[nodiscard]] Failure broken(std::string_view what) const {
    const long verdict = connection_ ? SSL_get_verify_result(connection_.get()) : X509_V_OK;
    if (verdict == X509_V_OK) return {Code::unreachable, Remedy::retry, fmt::format("{} {}: {}", what, name(), newest_error())};
    ERR_clear_error();
    return {Code::refused, Remedy::fix_config,
            fmt::format("{} is not believed: {} (its authority is {})", name(), X509_verify_cert_error_string(verdict),
                        peer_.ca_file.native())};
  }

  const TlsPeer& peer_;
  const Duration timeout_;
  const Deadline deadline_;
  const Clock& clock_;
  std::unique_ptr<SSL_CTX, Free> context_;
  Fd socket_;
  std::unique_ptr<SSL, Free> connection_;  // goes before its socket
};

}  // namespace

Result<HttpReply> ask_tls(const TlsPeer& peer, const HttpQuestion& question, Duration timeout, const Clock& clock, Bytes most) {
  TlsQuestion asked{peer, timeout, clock};
  ELRUN_TRY(asked.connect());
  const std::string host = peer.where.port() == 443 ? peer.host : fmt::format("{}:{}", peer.host, peer.where.port());
  ELRUN_TRY(asked.send(encode(question, host)));
  return asked.hear(most);
}

}  // namespace elrun::inline v0::launcher
