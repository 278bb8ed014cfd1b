#include <elrun/session.hpp>

#include <unistd.h>

#include <cstdlib>

#include "lib/base/digest.hpp"
#include "lib/link/environment.hpp"
#include "lib/link/link_session.hpp"
#include "lib/link/request_store.hpp"

namespace elrun::inline v0 {
namespace {

/// A world of one: no socket, no thread.
class AloneSession final : public Session {
 public:
  AloneSession() {
    random_bytes(std::as_writable_bytes(std::span{place_.membership.generation.lineage.bits}));
    random_bytes(place_.key);
    place_.membership.generation.number = 1;
    place_.address = "127.0.0.1";
    shared_ = std::make_unique<SharedStore>(clock_, place_.membership.generation);
    store_ = shared_->of(Rank{0});
  }
  [[nodiscard]] const Place& place() const override { return place_; }
  [[nodiscard]] Store& store() override { return *store_; }
  void on_generation_over(OnOver) override {}  // it never is: there is nobody to lose
  void progress(const StepProgress&) override {}
  Result<void> finished(Deadline) override { return {}; }

 private:
  SteadyClock clock_;
  Place place_;
  std::unique_ptr<SharedStore> shared_;
  std::unique_ptr<Store> store_;
};

}  // namespace

Result<void> Session::next_generation(Deadline) {
  return Failure{.code = Code::refused,
                 .remedy = Remedy::exit_process,
                 .what = "there is no next generation without elrun",
                 .rank = place().membership.rank};
}

Result<std::unique_ptr<Session>> Session::open(WorkerKind kind, Deadline deadline) {
  ELRUN_TRY_ASSIGN(const LaunchEnvironment environment, read_launch_environment([](const char* name) -> std::optional<std::string> {
                     const char* value = std::getenv(name);
                     return value == nullptr ? std::nullopt : std::optional<std::string>{value};
                   }));
  if (const auto* agent = std::get_if<UnderAgent>(&environment)) return open_under_agent(*agent, kind, deadline);
  if (const auto* job = std::get_if<InOperatorsJob>(&environment)) return open_in_operators_job(*job, kind, deadline);
  return std::unique_ptr<Session>{std::make_unique<AloneSession>()};
}

}  // namespace elrun::inline v0
