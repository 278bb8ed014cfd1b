#include "lib/job/group_peers.hpp"

#include <atomic>

#include "lib/comm/environment.hpp"
#include "lib/comm/host_collectives.hpp"

namespace elrun::inline v0 {
namespace {

class GroupPeers final : public Peers {
 public:
  GroupPeers(std::unique_ptr<Collectives> group, Duration limit) : group_{std::move(group)}, limit_{limit} {}
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives) override {
    return group_->exchange(sends, receives, {.limit = limit_.load(std::memory_order_relaxed), .label = label_});
  }
  Result<void> share(const SharedBuffer& memory) override { return group_->share(memory); }
  void revoke(const Failure& why) override { group_->revoke(why); }
  std::function<std::optional<Rank>()> lost_peer() const override {
    return [weak = std::weak_ptr{group_}]() -> std::optional<Rank> {
      const auto alive = weak.lock();
      return alive ? alive->lost_peer() : std::nullopt;
    };
  }
  void set_label(Call call) override { label_ = {static_cast<std::uint16_t>(call), name_of_call}; }
  void wait_at_most(Duration limit) override { limit_.store(limit, std::memory_order_relaxed); }

 private:
  const std::shared_ptr<Collectives> group_;  // a device group asks it for lost peers, as long as it lives
  std::atomic<Duration> limit_;
  CallLabel label_;
};

}  // namespace

Result<std::unique_ptr<Peers>> join_process_group(Session& session) {
  const GroupOptions options;
  ELRUN_TRY_ASSIGN(const Transport transport, transport_of_process(options.transport));
  ELRUN_TRY_ASSIGN(auto group, join_host_collectives(session, {.transport = transport,
                                                               .connect = options.connect,
                                                               .whole = session.place().elastic ? peers_come_within : options.connect}));
  return std::unique_ptr<Peers>{std::make_unique<GroupPeers>(std::move(group), options.collective)};
}

}  // namespace elrun::inline v0
