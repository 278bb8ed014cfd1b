#pragma once
/// \file Access as gRPC takes it. The files are read here, for each channel anew; a server looks at them again by itself.

#include <memory>
#include <string>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "rendezvous/net/access.hpp"

namespace elrun::inline v0 {

/// The metadata of a stream that carries a token's proof, and what a refusal for its sake carries back.
constexpr const char* token_metadata = "elrun-token";
constexpr const char* refusal_metadata = "elrun-refused";

/// Plain without TLS.
[[nodiscard]] std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const Credentials& credentials);
/// The certificate at the other end must be for `host`, whatever address the name led to. Without effect without TLS.
void expect_certificate_for(const std::string& host, const Credentials& credentials, grpc::ChannelArguments& arguments);

/// Plain without TLS. With it both sides show a certificate; files that were replaced are taken up within five seconds.
[[nodiscard]] Result<std::shared_ptr<grpc::ServerCredentials>> server_credentials(const Access& access);

}  // namespace elrun::inline v0
