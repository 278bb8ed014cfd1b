#include "lib/job/save/async_saves.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/staging/save_keys.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/memory_left.hpp"
#include "lib/base/words.hpp"
#include "lib/job/declare/memory_table.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t record_slack = 1u << 20;     // a record grows with each checkpoint of the timeline
constexpr std::uint64_t slow_storage = 250'000'000;  // bytes per second, for a stall that is predicted
constexpr Duration word_wait = 1s;                   // for the store to take a word about a part that will not come
constexpr Duration others_wait = 70s;                // a little longer than ckptd gives a save whose generation is over

/// Of the memory that is left, what staging slots may take: the rest is for what the program and the system take later.
constexpr std::uint64_t staging_share(std::uint64_t left) { return left - left / 10; }

/// What a node has to hold, and what it has.
struct NodeMemory {
  std::uint64_t wanted = 0, left = ~std::uint64_t{0}, saved = 0;
};

}  // namespace

std::uint64_t AsyncSaves::record_bytes() const {
  SlotRecord record = saves_->slot_record(0, {});
  record.fragments = layout_.fragments;
  return encode(record).size() + (world_.leads() ? host_bytes_ : 0);
}

std::uint64_t AsyncSaves::record_room() const {
  const std::uint64_t record = record_bytes();
  return record + record / 4 + record_slack;
}

bool AsyncSaves::has_room() const { return staging_.has_room(record_bytes() + record_slack / 2, layout_.data_bytes); }

void AsyncSaves::open(const Saves& saves, std::uint64_t host_bytes) {
  saves_ = &saves;
  host_bytes_ = host_bytes;
  heard_.reset(), failed_to_begin_.reset();
  acted_fence_ = 0, acted_step_ = ~std::uint64_t{0};  // a member that is new has acted on nothing, and all have to act alike
  is_on_ = false;
  // The generation ended here in the moment in which others may have begun a save.
  if (const auto promised = staging_.break_promise())
    (void)tell_broken_promise(host_.session.store(), *promised, Deadline::after(host_.clock.now(), word_wait));
  layout_ = lay_out_slot(saves.slot_record(0, {}).model, saves.saved().fragments());
  staging_.settle();
}

void AsyncSaves::take_memory() {
  const bool needs_memory = !has_room();
  ByteWriter mine;
  mine.put(std::uint8_t{staging_.has_writer()});
  mine.put_text(host_.session.place().node.value());
  mine.put(needs_memory ? layout_.data_bytes + record_room() : std::uint64_t{0});
  mine.put(memory_left(text_of_system) + (needs_memory ? staging_.bytes() : 0));
  mine.put(layout_.data_bytes);
  bool have_writers = true;
  std::uint64_t all_bytes = 0;
  std::map<std::string, NodeMemory> nodes;
  for (const ByteVector& said : expect(world_, world_.all_gather(mine.bytes()))) {
    ByteReader in{said};
    have_writers &= in.get<std::uint8_t>() != 0;
    NodeMemory& node = nodes[in.get_text(4096)];
    node.wanted += in.get<std::uint64_t>();
    node.left = std::min(node.left, in.get<std::uint64_t>());
    const auto saved = in.get<std::uint64_t>();
    node.saved += saved, all_bytes += saved;
    expect(world_, in.finish("a rank's word on its staging slot"));
  }
  const auto full = std::find_if(nodes.begin(), nodes.end(), [](const auto& n) { return n.second.wanted > staging_share(n.second.left); });
  is_on_ = have_writers && full == nodes.end();
  if (world_.leads() && !is_on_) {
    const std::string why =
        !have_writers
            ? fmt::format(
                  "they need an elrun of this version, whose ckptd writes them (a program was started without it, by one that finds no /proc, or by one whose ckptd does not speak "
                  "version {} of staging slots: use one release of elrun)",
                  slot_version)
            : fmt::format("node {} would need {} of memory for them and has {}", full->first, human_bytes(full->second.wanted),
                          human_bytes(full->second.left));
    host_.log.warning(fmt::format(
        "saves are not asynchronous, for {}: each one stops training until it is written, for about {} where the storage takes 250 MB/s",
        why, for_people(Duration{1s} * (1 + all_bytes / slow_storage))));
  }
  constexpr auto seconds = static_cast<std::uint64_t>(save_deadline / 1s);
  const std::uint64_t rate = saves_->slot_record(0, {}).rate;  // any number
  const auto slow = std::find_if(nodes.begin(), nodes.end(), [&](const auto& n) { return n.second.saved / seconds >= rate; });
  if (world_.leads() && is_on_ && rate > 0 && slow != nodes.end())
    host_.log.warning(fmt::format(
        "no asynchronous save can be over in time: node {} has {} to save, and checkpoint.rate is {} per second, which makes {} in the {} that a save has",
        slow->first, human_bytes(slow->second.saved), human_bytes(rate), human_bytes(rate * seconds), for_people(save_deadline)));
  if (!is_on_ || !needs_memory || staging_.is_busy()) return;  // a rank that is busy takes it later
  if (const auto made = staging_.make_room(record_room(), layout_.data_bytes); !made.ok())
    host_.log.warning("saves block: " + message(made.failure()));
}

std::optional<SaveOutcome> AsyncSaves::wait_for_others(std::optional<Duration> wait) {
  return staging_.wait_until_settled(host_.session.store(),
                                     Deadline::after(host_.clock.now(), std::min(others_wait, wait.value_or(others_wait))));
}

std::optional<SaveOutcome> AsyncSaves::hear(Deadline deadline) {
  auto outcome = failed_to_begin_ ? std::exchange(failed_to_begin_, std::nullopt) : staging_.hear(host_.session.store(), deadline);
  if (outcome) heard_ = outcome;
  return outcome;
}

/// On this rank: the slot has room, and ckptd has it.
bool AsyncSaves::is_ready() {
  if (!is_on_ || staging_.is_busy()) return is_on_ && !staging_.is_overdue();
  if (!has_room() && !staging_.make_room(record_room(), layout_.data_bytes).ok()) return false;
  return staging_.connect().ok();
}

AsyncSaves::Agreed AsyncSaves::agree_to_begin(std::span<const Aux> host_state) {
  host_bytes_ = bytes_in_record(host_state);
  return agree(true);
}

AsyncSaves::Agreed AsyncSaves::agree(bool promises) {
  const bool is_mine_ready = is_ready();
  if (promises && is_mine_ready && !staging_.is_busy()) staging_.promise({host_.session.place().membership.generation, world_.rank()});
  ByteWriter mine;
  mine.put(std::uint8_t{is_mine_ready});
  mine.put(std::uint8_t{staging_.is_busy() && !staging_.is_overdue()});
  mine.put(std::uint8_t{staging_.is_overdue()});
  mine.put(std::uint8_t{heard_.has_value()});
  if (heard_) mine.put_bytes(encode(heard_));
  Agreed agreed{.possible = true};
  for (const ByteVector& said : expect(world_, world_.all_gather(mine.bytes()))) {
    ByteReader in{said};
    agreed.possible &= in.get<std::uint8_t>() != 0;
    agreed.busy |= in.get<std::uint8_t>() != 0;
    agreed.overdue |= in.get<std::uint8_t>() != 0;
    if (in.get<std::uint8_t>() != 0) {
      const auto outcome = expect(world_, decode_save_outcome(in.get_bytes(outcome_packet_max)));
      if (!outcome) in.mark_broken();
      else if (!outcome->failure) agreed.saved = std::max(agreed.saved.value_or(0), outcome->step);
      else if (!agreed.failed && (outcome->fence != acted_fence_ || outcome->step != acted_step_)) agreed.failed = outcome;
    }
    expect(world_, in.finish("a rank's word on its save"));
  }
  heard_.reset();
  if (agreed.failed) acted_fence_ = agreed.failed->fence, acted_step_ = agreed.failed->step;
  return agreed;
}

void AsyncSaves::begin(const Saves& saves, std::uint64_t step, const std::vector<Aux>& host_state) {
  expect(world_, world_.wait_for_arrays("the state for a checkpoint"));
  SlotRecord record = saves.slot_record(step, world_.leads() ? host_state : std::vector<Aux>{});
  record.fragments = layout_.fragments;
  auto begun = staging_.has_room(encode(record).size(), layout_.data_bytes)
                   ? staging_.begin(record, layout_, saves.saved())
                   : Result<void>{Failure{Code::exhausted, Remedy::retry, "the staging slot has no room for the host state"}};
  if (begun.ok()) return;
  Failure why = std::move(begun).failure();
  why.rank = Rank{world_.rank()};
  (void)tell_gone(host_.session.store(), noted_save(record), record.rank, why, Deadline::after(host_.clock.now(), word_wait));
  withdraw();
  failed_to_begin_ = SaveOutcome{record.ownership.fence, step, {}, std::move(why)};
}

}  // namespace elrun::inline v0
