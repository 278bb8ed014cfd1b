#include "tests/support/faulty_files.hpp"

#include <algorithm>
#include <cerrno>

#include "lib/base/failure.hpp"

namespace elrun::test {

/// A file or a directory, as it is and as a power loss would leave it at the least.
struct FaultyFiles::Node {
  bool directory = false;
  bool dead = false;  // a sync failed: the kernel may call later ones a success, but the pages are gone
  ByteVector now, durable;
  Names names, durable_names;
};

class FaultyWritable final : public WritableFile {
 public:
  FaultyWritable(FaultyFiles& files, std::shared_ptr<FaultyFiles::Node> node, Path path)
      : files_{files}, node_{std::move(node)}, path_{std::move(path)} {}

  Result<void> write_at(std::uint64_t offset, ByteSpan data) override {
    return files_.operation("write", path_, true, [&](bool half) -> Result<void> {
      const ByteSpan now = half ? data.first(data.size() / 2) : data;
      if (node_->now.size() < offset + now.size()) node_->now.resize(offset + now.size());
      std::copy(now.begin(), now.end(), node_->now.begin() + static_cast<std::ptrdiff_t>(offset));
      return {};
    });
  }
  Result<void> reserve(Bytes) override {
    return files_.operation("reserve", path_, true, [](bool) { return Result<void>{}; });
  }
  Result<void> sync() override {
    auto synced = files_.operation("sync", path_, true, [&](bool) {
      if (!node_->dead) node_->durable = node_->now;
      return Result<void>{};
    });
    if (!synced.ok()) node_->dead = true;
    return synced;
  }
  Result<void> close() override {
    return files_.operation("close", path_, true, [](bool) { return Result<void>{}; });
  }

 private:
  FaultyFiles& files_;
  std::shared_ptr<FaultyFiles::Node> node_;
  Path path_;
};

class FaultyReadable final : public ReadableFile {
 public:
  FaultyReadable(FaultyFiles& files, std::shared_ptr<FaultyFiles::Node> node, Path path)
      : files_{files}, node_{std::move(node)}, path_{std::move(path)} {}

  Result<std::uint64_t> size() override {
    ELRUN_TRY(files_.operation("size", path_, false, [](bool) { return Result<void>{}; }));
    return std::uint64_t{node_->now.size()};
  }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) override {
    return files_.operation("read", path_, false, [&](bool) -> Result<void> {
      if (offset > node_->now.size() || out.size() > node_->now.size() - offset)
        return Failure{Code::corrupt, Remedy::fix_config, path_.string() + " ends too early"};
      std::copy_n(node_->now.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
      files_.bytes_read += out.size();
      return {};
    });
  }

 private:
  FaultyFiles& files_;
  std::shared_ptr<FaultyFiles::Node> node_;
  Path path_;
};

FaultyFiles::FaultyFiles() : root_{std::make_shared<Node>()} { root_->directory = true; }

void Faults::arm(std::optional<Fault> fault) {
  fault_ = fault;
  operations_ = 0;
  fired_ = false;
}

Result<void> Faults::operation(const char* verb, const Path& path, bool takes_space, const std::function<Result<void>(bool)>& effect) {
  const std::lock_guard lock{mutex_};
  const std::uint64_t number = operations_++;
  if (before && !inside_) {
    struct Inside {
      bool& inside;
      ~Inside() { inside = false; }  // also when the call ends by an exception
    } const call{inside_ = true};
    before(number);
  }
  const bool hit = fault_ && (number == fault_->at || (fault_->sticky && number > fault_->at && (takes_space || fault_->error != ENOSPC)));
  if (broken)
    if (const int error = broken(path); error != 0) return from_errno(error, std::string{verb} + " " + path.string());
  if (!hit) return effect(false);
  fired_ = true;
  if (fault_->error == 0) {
    if (fault_->half_done) (void)effect(false);
    throw Killed{};
  }
  if (fault_->half_done && std::string_view{verb} == "write") (void)effect(true);
  return from_errno(fault_->error, std::string{verb} + " " + path.string());
}

std::shared_ptr<FaultyFiles::Node> FaultyFiles::find(const Path& path) const {
  std::shared_ptr<Node> node = root_;
  for (const Path& part : path.relative_path()) {
    if (!node->directory) return nullptr;
    const auto at = node->names.find(part.string());
    if (at == node->names.end()) return nullptr;
    node = at->second;
  }
  return node;
}

std::shared_ptr<FaultyFiles::Node> FaultyFiles::parent(const Path& path) const {
  auto node = find(path.parent_path());
  return node && node->directory ? node : nullptr;
}

Result<std::unique_ptr<WritableFile>> FaultyFiles::create(const Path& path) {
  std::shared_ptr<Node> made;
  ELRUN_TRY(operation("create", path, true, [&](bool) -> Result<void> {
    const auto in = parent(path);
    if (!in) return from_errno(ENOENT, "create " + path.string());
    if (in->names.contains(path.filename())) return from_errno(EEXIST, "create " + path.string());
    in->names[path.filename()] = made = std::make_shared<Node>();
    return {};
  }));
  return std::unique_ptr<WritableFile>{std::make_unique<FaultyWritable>(*this, made, path)};
}

Result<std::unique_ptr<ReadableFile>> FaultyFiles::open(const Path& path) {
  std::shared_ptr<Node> node;
  ELRUN_TRY(operation("open", path, false, [&](bool) -> Result<void> {
    node = find(path);
    if (!node) return from_errno(ENOENT, "open " + path.string());
    return {};
  }));
  return std::unique_ptr<ReadableFile>{std::make_unique<FaultyReadable>(*this, node, path)};
}

Result<void> FaultyFiles::link(const Path& from, const Path& to) {
  if (refuses_links != 0) return from_errno(refuses_links, "link " + to.string());
  return operation("link", to, true, [&](bool) -> Result<void> {
    const auto node = find(from), in = parent(to);
    if (!node || !in) return from_errno(ENOENT, "link " + to.string());
    if (!in->names.emplace(to.filename(), node).second) return from_errno(EEXIST, "link " + to.string());
    return {};
  });
}

Result<void> FaultyFiles::rename(const Path& from, const Path& to) {
  return operation("rename", to, true, [&](bool) -> Result<void> {
    const auto node = find(from), old_parent = parent(from), in = parent(to);
    if (!node || !in) return from_errno(ENOENT, "rename to " + to.string());
    in->names[to.filename()] = node;
    old_parent->names.erase(from.filename());
    return {};
  });
}

Result<void> FaultyFiles::remove_file(const Path& path) {
  return operation("remove", path, false, [&](bool) -> Result<void> {
    const auto node = find(path);
    if (!node) return from_errno(ENOENT, "remove " + path.string());
    if (node->directory) return from_errno(EISDIR, "remove " + path.string());
    parent(path)->names.erase(path.filename());
    return {};
  });
}

Result<void> FaultyFiles::make_directory(const Path& path) {
  return operation("make directory", path, true, [&](bool) -> Result<void> {
    const auto in = parent(path);
    if (!in) return from_errno(ENOENT, "make directory " + path.string());
    auto made = std::make_shared<Node>();
    made->directory = true;
    if (!in->names.emplace(path.filename(), made).second) return from_errno(EEXIST, "make directory " + path.string());
    return {};
  });
}

Result<void> FaultyFiles::remove_directory(const Path& path) {
  return operation("remove directory", path, false, [&](bool) -> Result<void> {
    const auto node = find(path);
    if (!node || !node->directory) return from_errno(ENOENT, "remove directory " + path.string());
    if (!node->names.empty()) return from_errno(ENOTEMPTY, "remove directory " + path.string());
    parent(path)->names.erase(path.filename());
    return {};
  });
}

Result<std::vector<std::string>> FaultyFiles::list(const Path& path) {
  std::vector<std::string> names;
  ELRUN_TRY(operation("list", path, false, [&](bool) -> Result<void> {
    const auto node = find(path);
    if (!node) return from_errno(ENOENT, "list " + path.string());
    if (!node->directory) return from_errno(ENOTDIR, "list " + path.string());
    for (const auto& [name, child] : node->names) names.push_back(name);
    return {};
  }));
  return names;
}

Result<void> FaultyFiles::sync_directory(const Path& path) {
  return operation("sync directory", path, true, [&](bool) -> Result<void> {
    const auto node = find(path);
    if (!node) return from_errno(ENOENT, "sync directory " + path.string());
    node->durable_names = node->names;
    return {};
  });
}

Result<Bytes> FaultyFiles::space_left(const Path& path) {
  ELRUN_TRY(operation("ask for space", path, false, [](bool) { return Result<void>{}; }));
  return disk ? Bytes{disk->value() - std::min(disk->value(), stored().value())} : space;
}

Bytes FaultyFiles::stored() const {
  std::uint64_t bytes = 0;
  for (const Path& path : all_files()) bytes += content(path).size();
  return Bytes{bytes};
}

void FaultyFiles::crash(Rng& rng) {
  constexpr std::size_t page = 4096;
  const std::function<void(Node&)> settle = [&](Node& node) {
    if (!node.directory) {
      // A mixture, page by page, of what was written and what was there; zeros where nothing was.
      ByteVector left = rng.chance(0.5) ? node.now : node.durable;
      for (std::size_t at = 0; at < left.size(); at += page) {
        const ByteVector& from = rng.chance(0.5) ? node.now : node.durable;
        for (std::size_t i = at; i < std::min(at + page, left.size()); ++i) left[i] = i < from.size() ? from[i] : std::byte{0};
      }
      if (node.now == node.durable) left = node.durable;
      node.now = node.durable = std::move(left);
      node.dead = false;
      return;
    }
    Names left;
    for (const auto& [name, child] : node.durable_names) {
      const auto at = node.names.find(name);
      const bool same = at != node.names.end() && at->second == child;
      if (same || rng.chance(0.5)) left[name] = child;
      else if (at != node.names.end()) left[name] = at->second;
    }
    for (const auto& [name, child] : node.names)
      if (!node.durable_names.contains(name) && rng.chance(0.5)) left[name] = child;
    node.names = node.durable_names = std::move(left);
    for (const auto& [name, child] : node.names) settle(*child);
  };
  settle(*root_);
  arm(std::nullopt);
}

ByteVector FaultyFiles::content(const Path& path) const { return find(path)->now; }

void FaultyFiles::overwrite(const Path& path, ByteVector content) { find(path)->now = find(path)->durable = std::move(content); }

std::vector<Path> FaultyFiles::all_files() const {
  std::vector<Path> all;
  const std::function<void(const Node&, const Path&)> walk = [&](const Node& node, const Path& at) {
    for (const auto& [name, child] : node.names) child->directory ? walk(*child, at / name) : all.push_back(at / name);
  };
  walk(*root_, "/");
  return all;
}

}  // namespace elrun::test
