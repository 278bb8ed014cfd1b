// Compiled here and not in the header: a user's flags might contract products and sums, and move a bit.

#include <elrun/schedule.hpp>

#include <cmath>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

// cos(pi t) for t in [0, 1], as sin(pi (1/2 - t)) by its Taylor series: libm's cosine may differ in its last bit from
// machine to machine. The first term left out is below 1e-17.
double cos_pi(double t) {
  const double x = 3.14159265358979323846 * (0.5 - t), z = x * x;
  double sum = 1;
  for (int n = 19; n >= 3; n -= 2) sum = 1 - sum * z / (n * (n - 1));
  return x * sum;
}

}  // namespace

float Schedule::at(std::uint64_t step) const {
  if (step < warm_up) return static_cast<float>(highest * static_cast<double>(step + 1) / static_cast<double>(warm_up));
  const double t = step >= steps ? 1.0 : static_cast<double>(step - warm_up) / static_cast<double>(steps - warm_up);
  switch (shape) {
    case Shape::linear: return static_cast<float>(highest * (1 - (1 - last) * t));
    case Shape::cosine: return static_cast<float>(highest * ((1 + last) / 2 + (1 - last) / 2 * cos_pi(t)));
    default: return static_cast<float>(highest);
  }
}

std::vector<std::string> Schedule::problems() const {
  std::vector<std::string> out;
  if (!(highest >= 0) || !std::isfinite(highest)) out.push_back(fmt::format("highest is {}: a rate is a number of at least 0", highest));
  if (shape == Shape::constant) return out;
  if (!(last >= 0 && last <= 1)) out.push_back(fmt::format("last is {}: it is a part of highest, from 0 to 1", last));
  if (steps == 0) out.push_back("steps is 0: say at which step the shape ends (plan.steps, say), or use Shape::constant");
  else if (steps < warm_up)
    out.push_back(
        fmt::format("{} steps end before the warm-up of {}: raise steps, shorten the warm-up, or use Shape::constant", steps, warm_up));
  return out;
}

}  // namespace elrun::inline v0
