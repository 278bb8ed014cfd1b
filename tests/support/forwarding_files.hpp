#pragma once
/// \file A storage in front of another one: a test looks at each operation before it happens, and may refuse it.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/files.hpp"

namespace elrun::test {

/// Thread-safe where the storage behind it and `before` are.
class ForwardingFiles : public Files {
 public:
  using Before = std::function<Result<void>(const char* verb, const Path& path)>;
  explicit ForwardingFiles(Files& behind, Before call = {}) : before{std::move(call)}, behind_{behind} {}

  /// Called before each operation; a failure is the operation's.
  Before before;
  std::atomic<std::uint64_t> bytes_read{0};

  Result<std::unique_ptr<WritableFile>> create(const Path& path) override {
    ELRUN_TRY(look("create", path));
    ELRUN_TRY_ASSIGN(auto file, behind_.create(path));
    return std::unique_ptr<WritableFile>{std::make_unique<Writable>(*this, std::move(file), path)};
  }
  Result<std::unique_ptr<ReadableFile>> open(const Path& path) override {
    ELRUN_TRY(look("open", path));
    ELRUN_TRY_ASSIGN(auto file, behind_.open(path));
    return std::unique_ptr<ReadableFile>{std::make_unique<Readable>(*this, std::move(file), path)};
  }
  Result<void> link(const Path& from, const Path& to) override {
    ELRUN_TRY(look("link", to));
    return behind_.link(from, to);
  }
  Result<void> rename(const Path& from, const Path& to) override {
    ELRUN_TRY(look("rename", to));
    return behind_.rename(from, to);
  }
  Result<void> remove_file(const Path& path) override {
    ELRUN_TRY(look("remove", path));
    return behind_.remove_file(path);
  }
  Result<void> make_directory(const Path& path) override {
    ELRUN_TRY(look("make directory", path));
    return behind_.make_directory(path);
  }
  Result<void> remove_directory(const Path& path) override {
    ELRUN_TRY(look("remove directory", path));
    return behind_.remove_directory(path);
  }
  Result<std::vector<std::string>> list(const Path& path) override {
    ELRUN_TRY(look("list", path));
    return behind_.list(path);
  }
  Result<void> sync_directory(const Path& path) override {
    ELRUN_TRY(look("sync directory", path));
    return behind_.sync_directory(path);
  }
  Result<Bytes> space_left(const Path& path) override {
    ELRUN_TRY(look("ask for space", path));
    return behind_.space_left(path);
  }
  std::string missing_mount(const Path& path) override { return behind_.missing_mount(path); }

 private:
  [[nodiscard]] Result<void> look(const char* verb, const Path& path) const { return before ? before(verb, path) : Result<void>{}; }

  class Writable final : public WritableFile {
   public:
    Writable(ForwardingFiles& files, std::unique_ptr<WritableFile> behind, Path path)
        : files_{files}, behind_{std::move(behind)}, path_{std::move(path)} {}
    Result<void> write_at(std::uint64_t offset, ByteSpan data) override {
      ELRUN_TRY(files_.look("write", path_));
      return behind_->write_at(offset, data);
    }
    Result<void> reserve(Bytes size) override {
      ELRUN_TRY(files_.look("reserve", path_));
      return behind_->reserve(size);
    }
    Result<void> sync() override {
      ELRUN_TRY(files_.look("sync", path_));
      return behind_->sync();
    }
    Result<void> close() override {
      ELRUN_TRY(files_.look("close", path_));
      return behind_->close();
    }

   private:
    ForwardingFiles& files_;
    std::unique_ptr<WritableFile> behind_;
    Path path_;
  };

  class Readable final : public ReadableFile {
   public:
    Readable(ForwardingFiles& files, std::unique_ptr<ReadableFile> behind, Path path)
        : files_{files}, behind_{std::move(behind)}, path_{std::move(path)} {}
    Result<std::uint64_t> size() override {
      ELRUN_TRY(files_.look("size", path_));
      return behind_->size();
    }
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) override {
      ELRUN_TRY(files_.look("read", path_));
      files_.bytes_read += out.size();
      return behind_->read_at(offset, out);
    }

   private:
    ForwardingFiles& files_;
    std::unique_ptr<ReadableFile> behind_;
    Path path_;
  };

  Files& behind_;
};

}  // namespace elrun::test
