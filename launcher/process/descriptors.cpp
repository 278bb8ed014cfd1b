#include "launcher/process/descriptors.hpp"

#include <fcntl.h>

#include <fmt/format.h>

namespace elrun::inline v0::launcher {

void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", O_RDWR);  // it gets the lowest number that is free
}

const rlimit& descriptors_at_start() {
  static const rlimit at_start = [] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit;
  }();
  return at_start;
}

std::uint64_t raise_descriptors() {
  rlimit limit = descriptors_at_start();
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : descriptors_at_start().rlim_cur;
}

std::string descriptors_warning(std::uint64_t limit, std::uint32_t nodes) {
  if (descriptors_of_coordinator(nodes) <= limit) return {};
  return fmt::format(
      "this process may open {} files (ulimit -Hn), too few for {} nodes: some nodes will be turned away. Raise the limit, "
      "or let another machine serve the rendezvous",
      limit, nodes);
}

}  // namespace elrun::inline v0::launcher
