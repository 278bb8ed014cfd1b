#pragma once
/// \file Slots of a TestJob, sealed as a worker seals them, and why a save of one failed.

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "tests/support/checkpoint_job.hpp"

namespace elrun::test {

inline SlotRecord record_of(const TestJob& job, std::uint32_t rank, std::uint64_t step, const Ownership& ownership) {
  return {.run_id = job.leader.run_id,
          .generation = job.leader.generation,
          .rank = rank,
          .world = static_cast<std::uint32_t>(job.ranks.size()),
          .plan = job.leader.plan,
          .model = job.table,
          .directory = job.root.string(),
          .keep = 2,
          .step = step,
          .ownership = ownership,
          .fragments = {},
          .aux = rank == 0 ? aux_of_step(step) : std::vector<Aux>{}};
}

/// A slot as a worker seals it; what it holds is gone from the worker afterwards.
inline SlotView sealed_slot(TestJob& job, SlotRecord& record) {
  const Held& held = job.held[record.rank];
  fill(job.table, held, record.step);
  std::vector<Fragment> mine;
  for (const Fragment& f : held.fragments) {
    Fragment slice = f;
    if (f.replicated && f.begin != f.end) {
      const std::size_t element = f.bytes.size() / (f.end - f.begin);
      const auto [begin, end] = slice_of(f.begin, f.end, record.rank, record.world);
      slice.bytes = f.bytes.subspan((begin - f.begin) * element, (end - begin) * element);
      slice.begin = begin, slice.end = end, slice.replicated = false;
    }
    if (slice.begin != slice.end) mine.push_back(slice);
  }
  const SlotLayout layout = lay_out_slot(job.table, mine);
  record.fragments = layout.fragments;
  const ByteVector encoded = encode(record);
  StagingSlot slot = StagingSlot::make(encoded.size(), layout.data_bytes).value();
  const auto data = slot.begin(encoded, layout.data_bytes);
  for (std::size_t i = 0; i < mine.size(); ++i)
    std::memcpy(data.data() + layout.fragments[i].offset, mine[i].bytes.data(), mine[i].bytes.size());
  slot.seal();
  for (const Fragment& f : held.fragments) std::ranges::fill(f.bytes, std::byte{0});
  return SlotView::open(Fd{::fcntl(slot.file(), F_DUPFD_CLOEXEC, 0)}).value();
}

inline std::string why(const SaveOutcome& outcome) { return outcome.failure ? message(*outcome.failure) : ""; }

}  // namespace elrun::test
