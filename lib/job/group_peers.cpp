#include "lib/job/group_peers.hpp"

#include <elrun/process_group.hpp>

namespace elrun::inline v0 {
namespace {

class GroupPeers final : public Peers {
 public:
  explicit GroupPeers(ProcessGroup group) : group_{std::move(group)} {}
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives) override {
    return group_.exchange(sends, receives);
  }
  Result<void> share(const SharedBuffer& memory) override { return group_.share(memory); }
  void revoke(const Failure& why) override { group_.revoke(why); }
  void set_label(Call call) override { group_.set_label(static_cast<std::uint16_t>(call), name_of_call); }
  void wait_at_most(Duration limit) override { group_.set_deadline(limit); }

 private:
  ProcessGroup group_;
};

}  // namespace

Result<std::unique_ptr<Peers>> join_process_group(Session& session) {
  // A peer that stays may have to come back from a long slot first. Its agent knows how long that may take, and kills it
  // when it takes longer.
  GroupOptions options;
  if (session.place().elastic && session.place().membership.generation.number > 1) options.connect = options.collective;
  ELRUN_TRY_ASSIGN(ProcessGroup group, ProcessGroup::join(session, options));
  return std::unique_ptr<Peers>{std::make_unique<GroupPeers>(std::move(group))};
}

}  // namespace elrun::inline v0
