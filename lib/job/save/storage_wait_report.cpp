#include "lib/job/save/storage_wait_report.hpp"

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lib/base/quiet_thread.hpp"
#include "lib/base/timed_files.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration margin = 60s;  // a failure that is due comes, and all ranks hear of it

Duration limit_of(Files& files, Duration wait) {
  const Duration of_operation = files.activity().limit;
  return (of_operation > Duration{0} ? of_operation : StorageLimits{}.longest()) + wait + margin;
}

}  // namespace

std::optional<std::string> StorageWaitReport::text(const StorageActivity& storage, Instant now) {
  if (storage.begun != begun_) begun_ = storage.begun, moved_ = now;
  if (now - moved_ > limit_) return std::nullopt;
  if (!storage.longest.empty() && storage.for_long >= trouble_after)
    return fmt::format("rank {}: {} has not returned for {}: is its server there, and the network to it?", rank_.value(), storage.longest,
                       for_people(storage.for_long));
  return why_;
}

StorageWaitReporter::StorageWaitReporter(Session& session, Files& files, Terms terms)
    : session_{session}, files_{files}, terms_{std::move(terms)}, report_{terms_.rank, limit_of(files, terms_.wait), clock_.now()} {
  try {
    thread_ = quiet_thread([this] { run(); });
  } catch (const std::system_error&) {  // no thread: the agent hears nothing, as before
  }
}

StorageWaitReporter::~StorageWaitReporter() {
  {
    const std::lock_guard lock{mutex_};
    is_over_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void StorageWaitReporter::moved() {
  const std::lock_guard lock{mutex_};
  report_.moved(clock_.now());
}

void StorageWaitReporter::between_tries(std::string why) {
  const std::lock_guard lock{mutex_};
  report_.between_tries(std::move(why), clock_.now());
}

void StorageWaitReporter::run() {
  for (std::unique_lock lock{mutex_}; !changed_.wait_for(lock, terms_.every, [this] { return is_over_; });)
    if (auto why = report_.text(files_.activity(), clock_.now())) session_.waits_for_storage({terms_.directory, *std::move(why)});
}

}  // namespace elrun::inline v0
