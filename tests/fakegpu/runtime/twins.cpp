#include "tests/fakegpu/runtime/twins.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace fakegpu {
namespace {

constexpr std::string_view unnamed = "(anonymous namespace)", unnamed_short = "{unnamed}";
constexpr std::string_view nvcc_unnamed = "_GLOBAL__N__";

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = text != nullptr ? text : name;
  std::free(text);
  return result;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
}

/// Without return type, arguments and blanks.
std::string bare(std::string text) {
  replace_all(text, unnamed, unnamed_short);
  if (text.starts_with("void ")) text.erase(0, 5);
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '<' ? 1 : text[i] == '>' ? -1 : 0;
    if (depth < 0 || (depth == 0 && text[i] == '(')) {
      text.erase(i);
      break;
    }
  }
  std::erase(text, ' ');
  return text;
}

std::string with_file(const std::string& name, const std::string& file) {
  return name.find(unnamed_short) == name.npos ? name : name + "@" + file;
}

/// nvcc names an unnamed namespace _GLOBAL__N__, eight digits, the length of the file's name, that name, eight digits.
std::string file_in(const std::string& mangled) {
  std::size_t at = mangled.find(nvcc_unnamed);
  if (at == mangled.npos) return {};
  at = mangled.find('_', at + nvcc_unnamed.size());
  if (at == mangled.npos) return {};
  std::size_t length = 0;
  while (++at < mangled.size() && std::isdigit(static_cast<unsigned char>(mangled[at])) != 0)
    length = length * 10 + static_cast<std::size_t>(mangled[at] - '0');
  return mangled.substr(std::min(at + 1, mangled.size()), length);
}

}  // namespace

std::string key_of_kernel(const std::string& mangled) { return with_file(bare(demangled(mangled)), file_in(mangled)); }

std::string key_of_twin(const std::string& type_name, const std::string& file) {
  std::string text = demangled(type_name);  // fakegpu::TwinOf<&(void elrun::v0::kernel<...>(...))>
  const std::size_t at = text.find("TwinOf<&");
  text.erase(0, at == text.npos ? 0 : at + 8);
  replace_all(text, unnamed, unnamed_short);
  if (text.starts_with("(")) text.erase(0, 1);
  std::string name = file.substr(file.rfind('/') + 1);
  std::ranges::replace(name, '.', '_');
  return with_file(bare(text), name);
}

Twins& Twins::get() {
  static Twins* const twins = new Twins;
  return *twins;
}

void Twins::add_twin(const Twin& twin) {
  const std::scoped_lock lock{mutex_};
  twins_.emplace(key_of_twin(twin.type_name, twin.file), twin);
}

void Twins::add_kernel(const void* stub, const char* mangled) {
  Kernel kernel{key_of_kernel(mangled), {}, {}};
  kernel.name = kernel.key.substr(0, kernel.key.find('@'));
  replace_all(kernel.name, std::string{unnamed_short} + "::", "");
  replace_all(kernel.name, "elrun::v0::", "");
  const std::scoped_lock lock{mutex_};
  kernels_.insert_or_assign(stub, std::move(kernel));
}

Kernel* Twins::find(const void* stub) {
  const std::scoped_lock lock{mutex_};
  const auto found = kernels_.find(stub);
  if (found == kernels_.end()) return nullptr;
  Kernel& kernel = found->second;
  if (kernel.twins.empty()) {
    const auto [begin, end] = twins_.equal_range(kernel.key);
    for (auto twin = begin; twin != end; ++twin) kernel.twins.push_back(&twin->second);
  }
  return &kernel;
}

void Twins::unload(int device) {
  const std::scoped_lock lock{mutex_};
  for (auto& [stub, kernel] : kernels_) kernel.loaded &= ~(1u << device);
}

void register_twin(const Twin& twin) { Twins::get().add_twin(twin); }

}  // namespace fakegpu
