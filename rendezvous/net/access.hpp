#pragma once
/// \file Who may take part: mutual TLS, a shared token, both or neither. The files are named here and read when a
/// connection is opened, so that what a rotation put in their place is used.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <elrun/result.hpp>

#include "lib/base/digest.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// A text that nobody is to see. Nothing prints it: a log or a message gets it by `reveal` alone, and none asks for it.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string text) : text_{std::move(text)} {}
  [[nodiscard]] bool empty() const { return text_.empty(); }
  [[nodiscard]] const std::string& reveal() const { return text_; }

 private:
  std::string text_;
};

/// What a person gave. All empty: whoever reaches the port takes part.
struct Access {
  std::string ca_file;           ///< PEM. Whose certificates are believed.
  std::string certificate_file;  ///< PEM, with what leads to the CA behind it. Of this node, shown in both directions.
  std::string key_file;          ///< PEM, without a password. The certificate's private key.
  std::string token_file;        ///< The token, with blanks and line ends around it ignored.
  Secret token;                  ///< The token itself, instead of a file.

  [[nodiscard]] bool has_tls() const { return !ca_file.empty() || !certificate_file.empty() || !key_file.empty(); }
  [[nodiscard]] bool has_token() const { return !token_file.empty() || !token.empty(); }
  [[nodiscard]] bool is_open() const { return !has_tls() && !has_token(); }
};

/// What a person gave, as read at one moment.
struct Credentials {
  std::string ca;           ///< PEM; empty: no TLS
  std::string certificate;  ///< PEM; empty: shows no certificate of its own (etcd may allow that)
  Secret key;               ///< PEM
  Secret token;             ///< Empty: none

  [[nodiscard]] bool has_tls() const { return !ca.empty(); }
};

/// With whom the access is used: elrun's own coordinator wants a certificate of both sides, etcd may be content with its own.
enum class AccessPeer { coordinator, etcd };

constexpr Bytes access_file_max = 1_MiB;
constexpr std::size_t token_size_max = 4096, token_size_advised = 16;

/// Fails with all that is wrong, and what to do about it; never with a byte of what is secret.
[[nodiscard]] Result<Credentials> read_credentials(const Access& access, AccessPeer peer = AccessPeer::coordinator);
/// What is allowed and not wise: a key that others can read, a token that can be guessed, a certificate that ends soon.
/// `wall_seconds`: since 1970.
[[nodiscard]] std::vector<std::string> access_warnings(const Access& access, std::int64_t wall_seconds);

/// What is said once where a coordinator listens at `endpoint`, which others can reach, and asks for no proof.
[[nodiscard]] std::string open_access_warning(std::string_view endpoint);

/// What goes over the wire for a token: a digest in hex, so that the token itself, which may be used elsewhere, never does.
[[nodiscard]] std::string token_proof(const Secret& token);

/// Why the coordinator does not let a node in by its token, for people, with the remedy; nothing when it does. Takes the
/// same time whatever is wrong with the proof. `shown` is empty when the node shows none.
[[nodiscard]] std::optional<std::string> token_refusal(const Secret& wanted, std::string_view shown);

}  // namespace elrun::inline v0
