#pragma once
/// \file FaultyFiles for several threads.

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/faulty_files.hpp"

namespace elrun::test {

/// A storage of memory that several writers use at one time.
class SharedFiles final : public Files {
  template <class Call>
  auto locked(Call call) {
    const std::lock_guard lock{mutex_};
    return call();
  }

 public:
  explicit SharedFiles(FaultyFiles& files) : files_{files} {}
  Result<std::unique_ptr<WritableFile>> create(const Path& path) override {
    const std::lock_guard lock{mutex_};
    auto file = files_.create(path);
    if (!file.ok()) return file;
    return std::unique_ptr<WritableFile>{std::make_unique<Writing>(*this, std::move(*file))};
  }
  Result<std::unique_ptr<ReadableFile>> open(const Path& path) override {
    return locked([&] { return files_.open(path); });
  }
  Result<void> link(const Path& from, const Path& to) override {
    return locked([&] { return files_.link(from, to); });
  }
  Result<void> rename(const Path& from, const Path& to) override {
    return locked([&] { return files_.rename(from, to); });
  }
  Result<void> remove_file(const Path& path) override {
    return locked([&] { return files_.remove_file(path); });
  }
  Result<void> make_directory(const Path& path) override {
    return locked([&] { return files_.make_directory(path); });
  }
  Result<void> remove_directory(const Path& path) override {
    return locked([&] { return files_.remove_directory(path); });
  }
  Result<std::vector<std::string>> list(const Path& path) override {
    return locked([&] { return files_.list(path); });
  }
  Result<void> sync_directory(const Path& path) override {
    return locked([&] { return files_.sync_directory(path); });
  }
  Result<Bytes> space_left(const Path& path) override {
    return locked([&] { return files_.space_left(path); });
  }

 private:
  class Writing final : public WritableFile {
   public:
    Writing(SharedFiles& all, std::unique_ptr<WritableFile> file) : all_{all}, file_{std::move(file)} {}
    Result<void> write_at(std::uint64_t offset, ByteSpan data) override {
      return all_.locked([&] { return file_->write_at(offset, data); });
    }
    Result<void> reserve(Bytes size) override {
      return all_.locked([&] { return file_->reserve(size); });
    }
    Result<void> sync() override {
      return all_.locked([&] { return file_->sync(); });
    }
    Result<void> close() override {
      return all_.locked([&] { return file_->close(); });
    }

   private:
    SharedFiles& all_;
    std::unique_ptr<WritableFile> file_;
  };
  FaultyFiles& files_;
  std::mutex mutex_;
};

}  // namespace elrun::test
