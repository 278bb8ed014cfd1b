#include "lib/job/save/host_fragments.hpp"

#include "checkpoint/format/plan.hpp"

namespace elrun::inline v0 {

std::vector<Fragment> slices_to_write(std::vector<Fragment> fragments, std::uint32_t rank, std::uint32_t world) {
  for (Fragment& f : fragments) {
    if (!f.replicated || f.begin == f.end) continue;
    const std::size_t element = f.bytes.size() / (f.end - f.begin);
    const auto [begin, end] = slice_of(f.begin, f.end, rank, world);
    f.bytes = f.bytes.subspan((begin - f.begin) * element, (end - begin) * element);
    f.begin = begin, f.end = end, f.replicated = false;
  }
  std::erase_if(fragments, [](const Fragment& f) { return f.begin == f.end; });
  return fragments;
}

HostFragments::Copies HostFragments::make() const {
  Copies out;
  out.fragments_ = fragments_;
  if (on_host()) return out;
  std::size_t bytes = 0;
  for (const Fragment& fragment : fragments_) bytes += fragment.bytes.size();
  out.bytes_.resize(bytes);
  std::span<std::byte> left{out.bytes_};
  for (Fragment& fragment : out.fragments_) {
    fragment.bytes = left.first(fragment.bytes.size());
    left = left.subspan(fragment.bytes.size());
  }
  return out;
}

void HostFragments::read(Copies& copies) const {
  if (on_host()) return;
  for (std::size_t i = 0; i < fragments_.size(); ++i) memory_->read(fragments_[i].bytes, copies.fragments_[i].bytes);
}

void HostFragments::write(const Copies& copies) const {
  if (on_host()) return;
  for (std::size_t i = 0; i < fragments_.size(); ++i) memory_->write(copies.fragments_[i].bytes, fragments_[i].bytes);
}

}  // namespace elrun::inline v0
