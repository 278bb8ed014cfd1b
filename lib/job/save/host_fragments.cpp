#include "lib/job/save/host_fragments.hpp"

namespace elrun::inline v0 {

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
