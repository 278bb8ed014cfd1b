#pragma once
/// \file Certificates of a test's own: a CA, and what it signs. Made in milliseconds, believed by nobody else.

#include <memory>
#include <string>
#include <vector>

namespace elrun::test {

struct CertificateFiles {
  std::string ca, certificate, key;
};

/// An authority that signs for names like "localhost" and addresses like "127.0.0.1".
class CertificateAuthority {
 public:
  explicit CertificateAuthority(std::string directory, const std::string& name = "ca");
  ~CertificateAuthority();
  CertificateAuthority(const CertificateAuthority&) = delete;
  CertificateAuthority& operator=(const CertificateAuthority&) = delete;

  /// Writes DIRECTORY/NAME.crt and .key (mode 0600), in one step each where they exist. `valid_seconds` from now; below
  /// zero: over already.
  [[nodiscard]] CertificateFiles sign(const std::string& name, const std::vector<std::string>& for_hosts, long valid_seconds = 3600) const;
  [[nodiscard]] const std::string& file() const { return file_; }

 private:
  struct Keys;
  std::string directory_, file_;
  std::unique_ptr<Keys> keys_;
};

/// Writes a file of this mode, replacing what is there in one step.
void write_file(const std::string& path, const std::string& text, unsigned mode = 0600);

}  // namespace elrun::test
