// A program that is no worker: it asks a store for a moment whether a key is there, and says what came of it.

#include <cstdio>

#include <elrun/store.hpp>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto store = elrun::connect_store(argv[1], {}, elrun::deadline_in(std::chrono::seconds{20}));
  if (!store.ok()) return std::printf("%s\n", elrun::message(store.failure()).c_str()), 1;
  const auto part = elrun::prefixed(**store, "consumer/");
  const auto count = part->add("n", 41, elrun::deadline_in(std::chrono::seconds{20}));
  if (!count.ok()) return std::printf("%s\n", elrun::message(count.failure()).c_str()), 1;
  std::printf("n = %d\n", static_cast<int>(part->add("n", 1, elrun::deadline_in(std::chrono::seconds{20})).value()));
}
