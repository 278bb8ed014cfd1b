#pragma once
/// \file LocalWorld: several ranks in one process. Their sessions share one store; nothing else of the link is there.

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <elrun/session.hpp>

#include "lib/base/clock.hpp"
#include "lib/link/request_store.hpp"

namespace elrun::test {

/// One generation of `world` ranks at 127.0.0.1. A test may change a rank's place before it is used.
class LocalWorld {
 public:
  explicit LocalWorld(std::uint32_t world, std::uint64_t generation_number = 1)
      : generation_{generation_number, {{0x1234, generation_number}}}, store_{clock_, generation_} {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      Place place;
      place.membership = {generation_, Rank{rank}, WorldSize{world}};
      place.local_rank = LocalRank{rank};
      place.local_world = world;
      place.run = RunId{"test"};
      place.node = NodeId{"local"};
      place.address = "127.0.0.1";
      place.key.fill(std::byte{7});
      sessions_.push_back(std::make_unique<LocalSession>(std::move(place), store_.of(Rank{rank})));
    }
  }

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(sessions_.size()); }
  [[nodiscard]] Session& session(std::uint32_t rank) { return *sessions_[rank]; }
  [[nodiscard]] Place& place(std::uint32_t rank) { return sessions_[rank]->place_; }
  [[nodiscard]] const Clock& clock() const { return clock_; }

  /// What an agent does when a member is lost: every rank hears of it, on the calling thread.
  void end_generation(const Failure& why) {
    store_.begin_generation({generation_.number + 1, generation_.lineage});
    for (auto& session : sessions_) session->end(why);
  }

  /// Runs `body(rank, session)` on a thread per rank and waits for all.
  template <class Body>
  void run(Body body) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < size(); ++rank) threads.emplace_back([&, rank] { body(rank, session(rank)); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  class LocalSession final : public Session {
   public:
    LocalSession(Place place, std::unique_ptr<Store> store) : place_{std::move(place)}, store_{std::move(store)} {}
    [[nodiscard]] const Place& place() const override { return place_; }
    [[nodiscard]] Store& store() override { return *store_; }
    void on_generation_over(OnOver call) override {
      const std::lock_guard lock{mutex_};
      if (over_) return call(*over_);
      calls_.push_back(std::move(call));
    }
    void progress(const StepProgress& progress) override { decided_ = progress.decided; }
    Result<void> finished(Deadline) override { return {}; }
    void end(const Failure& why) {
      const std::lock_guard lock{mutex_};
      if (over_) return;
      over_ = why;
      for (const OnOver& call : calls_) call(why);
    }

    Place place_;
    std::unique_ptr<Store> store_;
    StepNumber decided_{};
    std::mutex mutex_;
    std::optional<Failure> over_;
    std::vector<OnOver> calls_;
  };

  SteadyClock clock_;
  Generation generation_;
  SharedStore store_;
  std::vector<std::unique_ptr<LocalSession>> sessions_;
};

}  // namespace elrun::test
