#include "checkpoint/tiers/files_tier.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/format/names.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/storage/in_parallel.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::string_view preparation = ".tmp-";

}  // namespace

std::string FilesTier::where(std::string_view name) const { return path_of(name).string(); }
std::string FilesTier::missing_mount() { return files_.missing_mount(root_); }
Result<Bytes> FilesTier::space_left() { return files_.space_left(root_); }
Result<std::unique_ptr<ReadableFile>> FilesTier::open(const std::string& name) { return files_.open(path_of(name)); }
Result<std::unique_ptr<WritableFile>> FilesTier::create(const std::string& name) { return files_.create(path_of(name)); }

Result<std::vector<std::string>> FilesTier::list(const std::string& directory) {
  auto names = files_.list(path_of(directory));
  if (names.ok()) std::erase_if(*names, [](const std::string& name) { return name.find(preparation) != std::string::npos; });
  return names;
}

// --- what is kept ---

Result<void> FilesTier::make_directories(const std::string& directory) { return files_.make_directories(path_of(directory)); }

Result<void> FilesTier::make_directory(const std::string& directory) {
  const Path path = path_of(directory);
  ELRUN_TRY(files_.make_directory(path));
  return files_.sync_directory(path.parent_path());
}

/// Whether it is a second name that is refused, and not any new one.
bool FilesTier::can_make_file(const Path& directory) {
  const Path probe = directory / fmt::format("probe{}{}", preparation, unique_);
  const bool is_made = files_.write_durably(probe, as_bytes(std::string_view{"probe"})).ok();
  (void)files_.remove_file(probe);
  return is_made;
}

Result<void> FilesTier::publish(const std::string& name, ByteSpan bytes) {
  const Path path = path_of(name), directory = path.parent_path();
  const Path prepared = directory / fmt::format("{}{}{}", path.filename().string(), preparation, unique_);
  auto written = files_.write_durably(prepared, bytes);
  if (!written.ok() && written.failure().code == Code::already_exists) {  // left by an earlier try of this very writer
    ELRUN_TRY(files_.remove_file(prepared));
    written = files_.write_durably(prepared, bytes);
  }
  if (!written.ok()) {
    (void)files_.remove_file(prepared);  // a full disk must not stay full of us
    return written;
  }
  auto linked = files_.link(prepared, path);
  if (!linked.ok())
    if (const auto there = files_.read_all(path, manifest_bytes_max); there.ok() && std::ranges::equal(*there, bytes)) linked = {};
  if (!linked.ok() && linked.failure().code == Code::not_permitted && can_make_file(directory))
    linked = Failure{Code::invalid_argument, Remedy::fix_config,
                     fmt::format("{} is on a file system without hard links, which checkpoints need ({}): choose another directory",
                                 directory.string(), linked.failure().what)};
  const auto synced = linked.ok() ? files_.sync_directory(directory) : Result<void>{};
  (void)files_.remove_file(prepared);
  return linked.ok() ? synced : linked;
}

Result<void> FilesTier::put(const std::string& name, ByteSpan bytes) {
  const Path path = path_of(name);
  ELRUN_TRY(files_.write_durably(path, bytes));
  return files_.sync_directory(path.parent_path());
}

Result<void> FilesTier::make_durable(const std::string& directory) { return files_.sync_directory(path_of(directory)); }

// --- what is removed ---

Result<void> FilesTier::remove(const std::string& name) {
  const Path path = path_of(name), directory = path.parent_path();
  const bool is_of_checkpoint = std::count(name.begin(), name.end(), '/') > 1;
  if (is_of_checkpoint && files_.remove_file(directory).ok())
    return files_.sync_directory(directory.parent_path());  // a link; a directory is not removed so
  const auto removed = files_.remove_file(path);
  if (!removed.ok() && removed.failure().code != Code::not_found) return removed;
  auto synced = files_.sync_directory(directory);  // Also where it is gone already: whoever removed it may have failed before this.
  if (!synced.ok() && synced.failure().code == Code::not_found) return {};
  return synced;
}

Result<void> FilesTier::discard(const std::string& name) {
  auto removed = files_.remove_file(path_of(name));
  if (!removed.ok() && removed.failure().code == Code::not_found) return {};
  return removed;
}

Result<void> FilesTier::remove_all(const std::string& directory) { return remove_tree(path_of(directory)); }

Result<void> FilesTier::throw_away(const std::string& directory) {
  const Path path = path_of(directory), trash = root_ / trash_directory;
  (void)files_.remove_file(trash);  // a link: what it leads to is not this root's
  ELRUN_TRY(files_.make_directories(trash));
  auto moved = files_.rename(path, trash / path.filename());
  if (!moved.ok()) return moved.failure().code == Code::not_found ? Result<void>{} : moved;
  return remove_tree(trash / path.filename());
}

Result<void> FilesTier::empty_trash() {
  const Path trash = root_ / trash_directory;
  (void)files_.remove_file(trash);
  const auto names = files_.list(trash);
  Result<void> first;
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>{}) {
    if (!parse_checkpoint_id(name)) continue;
    auto removed = remove_tree(trash / name);
    if (!removed.ok() && first.ok()) first = std::move(removed);
  }
  return first;
}

/// A directory of plain files, or a symbolic link that is there instead: the link, not what it leads to. What is already gone is no failure, nor is one file that will not go before
/// the others have.
Result<void> FilesTier::remove_tree(const Path& directory) {
  if (const auto link = files_.remove_file(directory); link.ok() || link.failure().code == Code::not_found)
    return link.ok() ? link : Result<void>{};
  auto names = files_.list(directory);
  if (!names.ok() && names.failure().code == Code::not_found) return {};
  if (!names.ok()) return std::move(names).failure();
  std::vector<Result<void>> removals(names->size());
  in_parallel(names->size(), at_once_,
              [&](std::size_t i) { removals[i] = with_memory([&] { return files_.remove_file(directory / (*names)[i]); }); });
  for (Result<void>& removal : removals)
    if (!removal.ok() && removal.failure().code != Code::not_found) return std::move(removal);
  auto removed = files_.remove_directory(directory);
  if (!removed.ok() && removed.failure().code == Code::not_found) return {};
  return removed;
}

Result<void> FilesTier::set_aside(const std::string& name, const std::string& other) {
  return files_.rename(path_of(name), path_of(other));
}

}  // namespace elrun::inline v0
