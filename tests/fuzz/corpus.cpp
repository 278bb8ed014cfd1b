/// \file For libFuzzer: the target's own examples are where it begins, unless a corpus or an input is named.

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

std::vector<std::string> fuzz_examples();

extern "C" int LLVMFuzzerInitialize(int* count, char*** words);

int LLVMFuzzerInitialize(int* count, char*** words) {
  static std::vector<char*> all{*words, *words + *count};
  for (std::size_t i = 1; i < all.size(); ++i)
    if (*all[i] != '-') return 0;
  static std::string folder = std::string{all[0]} + ".corpus";
  std::filesystem::create_directories(folder);
  std::size_t number = 0;
  for (const std::string& example : fuzz_examples())
    std::ofstream{folder + "/example-" + std::to_string(number++), std::ios::binary} << example;
  all.push_back(folder.data());
  *count = static_cast<int>(all.size());
  all.push_back(nullptr);
  *words = all.data();
  return 0;
}
