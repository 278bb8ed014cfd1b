#include "rendezvous/net/grpc_access.hpp"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

namespace elrun::inline v0 {

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const Credentials& credentials) {
  if (!credentials.has_tls()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({credentials.ca, credentials.key.reveal(), credentials.certificate});
}

void expect_certificate_for(const std::string& host, const Credentials& credentials, grpc::ChannelArguments& arguments) {
  if (credentials.has_tls()) arguments.SetSslTargetNameOverride(host);
}

Result<std::shared_ptr<grpc::ServerCredentials>> server_credentials(const Access& access) {
  ELRUN_TRY_ASSIGN(const Credentials now, read_credentials(access));  // what is wrong is said here, not by each handshake
  if (!now.has_tls()) return grpc::InsecureServerCredentials();
  constexpr unsigned seconds_between_looks = 5;
  auto files = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(access.key_file, access.certificate_file,
                                                                                    access.ca_file, seconds_between_looks);
  grpc::experimental::TlsServerCredentialsOptions options{std::move(files)};
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace elrun::inline v0
