#include "tests/support/object_tier.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace elrun::test {

// --- the server ---

std::vector<std::string> Bucket::all_names() const {
  std::vector<std::string> names;
  for (const auto& [name, object] : objects_)
    if (!name.ends_with('/')) names.push_back(name);
  return names;
}

Result<void> Bucket::put_if_none(const std::string& name, const ByteVector& bytes, int client) {
  const auto [at, is_new] = objects_.try_emplace(name, Object{bytes, client, clock_.now(), ++versions_});
  // 412: somebody's, or one's own whose reply was lost. Its content tells.
  if (!is_new && at->second.bytes != bytes) return Failure{Code::already_exists, Remedy::fix_config, name_in(where_, name) + " is there"};
  return {};
}

void Bucket::put_over(const std::string& name, const ByteVector& bytes, int client) {
  objects_[name] = Object{bytes, client, clock_.now(), ++versions_};
}

void Bucket::remove(const std::string& name, int client) {
  if (objects_.erase(name) > 0) removed_[name] = {client, clock_.now()};
}

void Bucket::lose(const std::string& name) {
  objects_.erase(name);
  std::erase_if(under_way_, [&](const UnderWay& one) { return one.name == name; });
}

void Bucket::let_in() {
  for (std::size_t i = 0; i < under_way_.size();) {
    if (under_way_[i].comes > clock_.now()) {
      ++i;
      continue;
    }
    const auto request = std::move(under_way_[i].request);
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(i));
    request();
  }
}

void Bucket::settle() {
  for (const UnderWay& one : std::exchange(under_way_, {})) one.request();
}

/// 503: it was not looked at. A lost reply: it was, and nobody knows. A lost request: it comes in later, or never is missed.
Result<void> Bucket::answered(const char* verb, const std::string& name, const std::function<Result<void>()>& request, bool is_change) {
  return operation(verb, Path{where_} / name, is_change, [&](bool) -> Result<void> {
    constexpr int tries_max = 4;
    let_in();
    for (int tries = 0; tries < tries_max; ++tries) {
      if (rng.chance(busy)) continue;
      if (is_change && rng.chance(late)) {
        const Duration delay{static_cast<Duration::rep>(rng.below(static_cast<std::uint64_t>(late_by.count()) + 1))};
        under_way_.push_back({name, clock_.now() + delay, [request] { (void)request(); }});
        continue;
      }
      auto reply = request();
      if (!rng.chance(lost)) return reply;
    }
    mark_fired();
    return Failure{Code::unreachable, Remedy::retry, fmt::format("{} {}: the object store does not answer", verb, name_in(where_, name))};
  });
}

Result<void> Bucket::ask(const char* verb, const std::string& name, const std::function<Result<void>()>& look) {
  return answered(verb, name, look, false);
}
Result<void> Bucket::change(const char* verb, const std::string& name, const std::function<Result<void>()>& request) {
  return answered(verb, name, request, true);
}

// --- its client ---

class ObjectReadable final : public ReadableFile {
 public:
  ObjectReadable(Bucket& bucket, std::string name, std::uint64_t bytes) : bucket_{bucket}, name_{std::move(name)}, bytes_{bytes} {}

  Result<std::uint64_t> size() override { return bytes_; }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) override {
    return bucket_.ask("get", name_, [&]() -> Result<void> {
      const auto at = bucket_.objects_.find(name_);
      if (at == bucket_.objects_.end())
        return Failure{Code::not_found, Remedy::fix_config, name_in(bucket_.where_, name_) + " is not there"};
      const ByteVector& bytes = at->second.bytes;
      if (offset > bytes.size() || out.size() > bytes.size() - offset)
        return Failure{Code::corrupt, Remedy::fix_config, name_in(bucket_.where_, name_) + " ends too early"};
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
      return {};
    });
  }

 private:
  Bucket& bucket_;
  const std::string name_;
  const std::uint64_t bytes_;
};

/// An upload in parts: the object is there, whole, when it is completed.
class ObjectWritable final : public WritableFile {
 public:
  ObjectWritable(Bucket& bucket, int client, std::string name) : bucket_{bucket}, client_{client}, name_{std::move(name)} {}

  Result<void> write_at(std::uint64_t offset, ByteSpan data) override {
    return bucket_.ask("upload a part of", name_, [&]() -> Result<void> {  // of this upload alone: no name is changed by it
      if (bytes_.size() < offset + data.size()) bytes_.resize(offset + data.size());
      std::copy(data.begin(), data.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset));
      return {};
    });
  }
  Result<void> reserve(Bytes) override { return {}; }
  Result<void> sync() override {
    return bucket_.change("complete", name_, [&bucket = bucket_, name = name_, bytes = bytes_, client = client_] {
      return bucket.put_if_none(name, bytes, client);
    });
  }
  Result<void> close() override { return {}; }

 private:
  Bucket& bucket_;
  const int client_;
  const std::string name_;
  ByteVector bytes_;
};

Result<std::unique_ptr<ReadableFile>> ObjectTier::open(const std::string& name) {
  std::uint64_t bytes = 0;
  ELRUN_TRY(bucket_.ask("look at", name, [&]() -> Result<void> {
    const auto at = bucket_.objects_.find(name);
    if (at == bucket_.objects_.end()) return Failure{Code::not_found, Remedy::fix_config, where(name) + " is not there"};
    bytes = at->second.bytes.size();
    return {};
  }));
  return std::unique_ptr<ReadableFile>{std::make_unique<ObjectReadable>(bucket_, name, bytes)};
}

Result<std::vector<std::string>> ObjectTier::list(const std::string& directory) {
  if (waits_) bucket_.clock_.advance(bucket_.stale_for);
  std::set<std::string> names;
  bool is_made = false;
  const std::string prefix = name_in(directory, "");
  const auto add = [&](const std::string& name) {
    if (!name.starts_with(prefix)) return;
    is_made = true;
    if (name.size() > prefix.size()) names.insert(name.substr(prefix.size(), name.find('/', prefix.size()) - prefix.size()));
  };
  ELRUN_TRY(bucket_.ask("list", directory, [&]() -> Result<void> {
    names.clear();
    is_made = false;
    const auto is_old = [&](int by, Instant since) { return by == client_ || since + bucket_.stale_for <= bucket_.clock_.now(); };
    for (const auto& [name, object] : bucket_.objects_)
      if (is_old(object.writer, object.since) || bucket_.rng.chance(0.5)) add(name);
    for (const auto& [name, gone] : bucket_.removed_)
      if (!is_old(gone.remover, gone.since) && bucket_.rng.chance(0.5)) add(name);
    return {};
  }));
  if (!is_made) return Failure{Code::not_found, Remedy::fix_config, where(directory) + " is not there"};
  return std::vector<std::string>{names.begin(), names.end()};
}

Result<Bytes> ObjectTier::space_left() { return Bytes{std::uint64_t{1} << 60}; }

/// As people's tools make them: an empty object whose name ends in `/`.
Result<void> ObjectTier::make_directories(const std::string& directory) {
  if (directory.empty()) return {};
  return publish(directory + "/", {});
}

Result<void> ObjectTier::make_directory(const std::string& directory) {
  return publish(directory + "/", as_bytes(fmt::format("made by {}, {}", client_, ++made_)));
}

Result<void> ObjectTier::publish(const std::string& name, ByteSpan bytes) {
  return bucket_.change("put", name, [&bucket = bucket_, name, kept = ByteVector{bytes.begin(), bytes.end()}, client = client_] {
    return bucket.put_if_none(name, kept, client);
  });
}

Result<std::unique_ptr<WritableFile>> ObjectTier::create(const std::string& name) {
  ELRUN_TRY(bucket_.ask("begin to upload", name, [&]() -> Result<void> {
    if (bucket_.objects_.contains(name)) return Failure{Code::already_exists, Remedy::fix_config, where(name) + " is there"};
    return {};
  }));
  return std::unique_ptr<WritableFile>{std::make_unique<ObjectWritable>(bucket_, client_, name)};
}

Result<void> ObjectTier::remove(const std::string& name) {
  return bucket_.change("remove", name, [&bucket = bucket_, name, client = client_]() -> Result<void> {
    bucket.remove(name, client);
    return {};
  });
}

Result<void> ObjectTier::remove_all(const std::string& directory) {
  const auto names = list(directory);
  if (!names.ok()) return names.failure().code == Code::not_found ? Result<void>{} : Result<void>{names.failure()};
  for (const std::string& name : *names) ELRUN_TRY(remove(name_in(directory, name)));
  return remove(directory + "/");
}

/// Removed only if it is what was copied: what somebody else has made there since stays.
Result<void> ObjectTier::set_aside(const std::string& name, const std::string& other) {
  Bucket::Object damaged;
  ELRUN_TRY(bucket_.ask("get", name, [&]() -> Result<void> {
    const auto at = bucket_.objects_.find(name);
    if (at == bucket_.objects_.end()) return Failure{Code::not_found, Remedy::fix_config, where(name) + " is not there"};
    damaged = at->second;
    return {};
  }));
  ELRUN_TRY(bucket_.change("put", other, [&bucket = bucket_, other, bytes = damaged.bytes, client = client_]() -> Result<void> {
    bucket.put_over(other, bytes, client);
    return {};
  }));
  return bucket_.change("remove", name, [&bucket = bucket_, name, version = damaged.version, client = client_]() -> Result<void> {
    const auto at = bucket.objects_.find(name);
    if (at != bucket.objects_.end() && at->second.version == version) bucket.remove(name, client);
    return {};
  });
}

}  // namespace elrun::test
