#include "lib/job/state/host_state.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/format/json.hpp"
#include "checkpoint/format/records.hpp"
#include "lib/base/bytes.hpp"
#include "lib/base/failure.hpp"
#include "lib/job/declare/memory_table.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::string_view step_entry = "elrun.step", loss_entry = "elrun.loss", skipped_entry = "elrun.skipped",
                           update_entry = "elrun.update", stop_entry = "elrun.stop", variable_prefix = "state.";

constexpr std::size_t variables_max = aux_max - 24;  // the others are the job's own
constexpr std::uint64_t bytes_along = 64;            // of each variable: lengths, and what its name gets in front

/// The bytes of `update_entry` and of `stop_entry`.
struct LastUpdates {
  UpdateValues first, last;
};
struct Stop {
  std::uint64_t asked = 0, of_steps = 0;
};

bool has(const std::vector<Aux>& aux, std::string_view name) { return std::ranges::find(aux, name, &Aux::name) != aux.end(); }

void copy_entry(const std::vector<Aux>& aux, std::string_view name, std::span<std::byte> into) {
  const auto at = std::ranges::find(aux, name, &Aux::name);
  if (at == aux.end() || at->bytes.size() != into.size())
    throw Error{Failure{Code::mismatch, Remedy::fix_config,
                        fmt::format("the checkpoint has {} bytes of host state '{}', this program registers {}; use "
                                    "the program that wrote it, "
                                    "or another checkpoint directory",
                                    at == aux.end() ? 0 : at->bytes.size(), name, into.size())}};
  std::ranges::copy(at->bytes, into.begin());
}
template <class T>
void copy_value(const std::vector<Aux>& aux, std::string_view name, T& value) {
  copy_entry(aux, name, std::as_writable_bytes(std::span{&value, 1}));
}

}  // namespace

void HostVariables::add(std::string_view name, std::span<std::byte> bytes) {
  if (std::ranges::find(variables_, name, &Variable::name) != variables_.end())
    throw Error{invalid(fmt::format("state '{}' is registered twice", name))};
  if (!is_plain_text(std::string{variable_prefix}.append(name)))  // no checkpoint could hold it
    throw Error{invalid(fmt::format("state '{}' cannot be saved under that name: use up to {} bytes of printable UTF-8",
                                    as_plain_text(name), 256 - variable_prefix.size()))};
  if (variables_.size() == variables_max)
    throw Error{invalid(
        fmt::format("state '{}' is one more than the {} variables that a checkpoint can hold: register an array or a struct of them", name,
                    variables_max))};
  const std::uint64_t sum = bytes_ + bytes.size() + name.size() + bytes_along;
  if (sum > bytes_max)
    throw Error{invalid(fmt::format(
        "state '{}' of {} makes it {} of host state, and at most {} go to a worker that joins: keep in state() what is small, and large "
        "values that do not change in a frozen tensor (TensorOptions::frozen), which is saved and sent like all parameters, or compute them anew",
        name, human_bytes(bytes.size()), human_bytes(sum), human_bytes(bytes_max)))};
  bytes_ = sum;
  variables_.push_back({std::string{name}, bytes, {}});
}

void HostVariables::keep() {
  for (Variable& v : variables_) v.kept.assign(v.bytes.begin(), v.bytes.end());
}

void HostVariables::put_back() {
  for (const Variable& v : variables_) std::ranges::copy(v.kept, v.bytes.begin());
}

void HostVariables::detach() {
  for (Variable& v : variables_) {
    v.own = v.kept;
    v.own.resize(v.bytes.size());  // before restore() nothing was kept, and nobody asks
    v.bytes = v.own;
  }
}

std::vector<Aux> HostVariables::kept() const {
  std::vector<Aux> out;
  for (const Variable& v : variables_) out.push_back({v.name, v.kept});
  return out;
}

bool HostVariables::take_inherited() {
  if (!inherited_) return true;
  const std::vector<Aux> kept = *std::exchange(inherited_, std::nullopt);
  const bool same = std::ranges::equal(
      kept, variables_, [](const Aux& a, const Variable& v) { return a.name == v.name && a.bytes.size() == v.bytes.size(); });
  for (std::size_t i = 0; same && i < kept.size(); ++i) std::ranges::copy(kept[i].bytes, variables_[i].bytes.begin());
  return same;
}

void HostVariables::append_to(std::vector<Aux>& aux) const {
  for (const Variable& v : variables_) aux.push_back({std::string{variable_prefix} + v.name, {v.bytes.begin(), v.bytes.end()}});
}

void HostVariables::load(const std::vector<Aux>& aux) {
  for (const Variable& v : variables_) copy_entry(aux, std::string{variable_prefix} + v.name, v.bytes);
}

ByteVector encode(const std::vector<Aux>& entries) {
  ByteWriter w;
  for (const Aux& a : entries) w.put_text(a.name), w.put_bytes(a.bytes);
  return w.take();
}

Result<std::vector<Aux>> decode_host_state(ByteSpan bytes) {
  std::vector<Aux> out;
  ByteReader r{bytes};
  while (r.left() > 0 && !r.broken()) {
    std::string name = r.get_text(r.left());
    const ByteSpan value = r.get_bytes(r.left());
    out.push_back({std::move(name), {value.begin(), value.end()}});
  }
  ELRUN_TRY(r.finish("the host state of another member"));
  return out;
}

void append_to(std::vector<Aux>& aux, const JobProgress& p) {
  aux.push_back({std::string{step_entry}, bytes_of(p.applied)});
  aux.push_back({std::string{loss_entry}, bytes_of(p.loss)});
  aux.push_back({std::string{skipped_entry}, bytes_of(p.skipped)});
  aux.push_back({std::string{update_entry}, bytes_of(LastUpdates{p.first_update, p.last_update})});
  if (p.stop_asked || p.stopped_of_steps != 0)
    aux.push_back({std::string{stop_entry}, bytes_of(Stop{.asked = p.stop_asked, .of_steps = p.stopped_of_steps})});
}

JobProgress progress_of(const std::vector<Aux>& aux) {
  JobProgress p;
  copy_value(aux, step_entry, p.applied);
  copy_value(aux, loss_entry, p.loss);
  copy_value(aux, skipped_entry, p.skipped);
  Stop stop;
  if (has(aux, stop_entry)) copy_value(aux, stop_entry, stop);
  p.stop_asked = stop.asked != 0, p.stopped_of_steps = stop.of_steps;
  LastUpdates updates;
  if (p.applied > 0 && has(aux, update_entry)) copy_value(aux, update_entry, updates);  // earlier versions wrote none
  p.first_update = updates.first, p.last_update = updates.last;
  return p;
}

}  // namespace elrun::inline v0
