// Which device a worker computes on: each row of what the environment says and of what the machine has.

#include <string>
#include <string_view>

#include <catch2/catch.hpp>

#include "lib/device/choose.hpp"

using namespace elrun;

namespace {

constexpr int no_device = 100, insufficient_driver = 35, system_not_ready = 802, mismatch = 803;
constexpr int initialization_error = 3, held_alone = 46, unknown = 999;

DeviceFacts devices(int count) { return {.built_with_cuda = true, .count = count}; }
DeviceFacts failing(int error, int driver_version) {
  return {.built_with_cuda = true,
          .failed = CudaFailure{.error = error,
                                .name = "cudaErrorOfThisTest",
                                .text = "what the runtime says",
                                .call = "cudaGetDeviceCount",
                                .driver_version = driver_version,
                                .needed_version = 13000}};
}
const DeviceFacts no_driver = failing(insufficient_driver, 0), old_driver = failing(insufficient_driver, 12020);
const DeviceFacts all_hidden = failing(no_device, 13000), not_built{};

DeviceWishes wishes(const char* device, std::uint32_t local_rank = 0) { return {.device = device, .local_rank = local_rank}; }
constexpr Device host{};
constexpr Device cuda(int index) { return {DeviceKind::cuda, index}; }

/// Refused with this code, and the sentence has all of these in it.
void refused(const DeviceWishes& w, const DeviceFacts& f, Code code, std::initializer_list<std::string_view> words) {
  const auto chosen = choose_device(w, f);
  REQUIRE_FALSE(chosen.ok());
  CHECK(chosen.failure().code == code);
  CHECK(chosen.failure().remedy == Remedy::fix_config);
  for (const std::string_view word : words) {
    INFO(chosen.failure().what << "\n  does not say: " << word);
    CHECK(chosen.failure().what.find(word) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a worker takes the device of its LOCAL_RANK where one is visible", "[device]") {
  CHECK(choose_device({}, devices(1)).value() == cuda(0));
  CHECK(choose_device({.local_rank = 3}, devices(4)).value() == cuda(3));
  CHECK(choose_device(wishes("cuda", 1), devices(2)).value() == cuda(1));
}

TEST_CASE("a worker takes the host where no device is visible", "[device]") {
  CHECK(choose_device({}, not_built).value() == host);
  CHECK(choose_device({}, devices(0)).value() == host);
  CHECK(choose_device({}, no_driver).value() == host);
  CHECK(choose_device({}, all_hidden).value() == host);
  CHECK(choose_device({.local_rank = 7}, no_driver).value() == host);
}

TEST_CASE("it is said why a worker takes the host where ELRUN_DEVICE does not ask for it", "[device]") {
  CHECK(why_on_host({}, no_driver).value().find("there is no NVIDIA driver here") != std::string::npos);
  CHECK(why_on_host(wishes(""), devices(0)).value().find("0 devices are visible") != std::string::npos);
  CHECK(why_on_host({}, not_built).value() == "this libelrun was built without CUDA");
  CHECK_FALSE(why_on_host({}, devices(1)));
  CHECK_FALSE(why_on_host({}, old_driver));  // that is refused
  CHECK_FALSE(why_on_host(wishes("cpu"), no_driver));
}

TEST_CASE("ELRUN_DEVICE=cpu takes the host, whatever the machine has", "[device]") {
  for (const DeviceFacts& facts : {devices(8), not_built, no_driver, old_driver, all_hidden})
    CHECK(choose_device(wishes("cpu", 9), facts).value() == host);
}

TEST_CASE("ELRUN_DEVICE=cuda without a device is refused, and the sentence says what is the matter", "[device]") {
  refused(wishes("cuda"), not_built, Code::not_found, {"ELRUN_DEVICE=cuda", "built without CUDA"});
  refused(wishes("cuda"), no_driver, Code::not_found, {"ELRUN_DEVICE=cuda", "there is no NVIDIA driver here"});
  refused(wishes("cuda"), devices(0), Code::not_found, {"ELRUN_DEVICE=cuda", "0 devices are visible"});
  DeviceWishes hidden = wishes("cuda");
  hidden.visible = "";
  refused(hidden, all_hidden, Code::not_found, {"CUDA_VISIBLE_DEVICES", "the driver shows no device"});
}

TEST_CASE("a device that is there and cannot be used is refused, never replaced by the host in silence", "[device]") {
  for (const DeviceWishes& w : {DeviceWishes{}, wishes("cuda"), wishes("cuda:0")}) {
    refused(w, old_driver, Code::mismatch, {"CUDA 12.2", "needs CUDA 13.0", "ELRUN_DEVICE=cpu"});
    refused(w, failing(system_not_ready, 13000), Code::refused, {"nvidia-fabricmanager", "ELRUN_DEVICE=cpu"});
    refused(w, failing(mismatch, 13000), Code::mismatch, {"different versions"});
  }
}

TEST_CASE("where CUDA does not start no device was lost, and no restart is tried", "[device]") {
  for (const int error : {initialization_error, unknown})
    for (const DeviceWishes& w : {DeviceWishes{}, wishes("cuda"), wishes("cuda:0")}) {
      refused(w, failing(error, 13000), Code::refused,
              {"cudaGetDeviceCount gave cudaErrorOfThisTest (what the runtime says)", "nvidia-modprobe -u", "/dev/nvidia-uvm",
               "ELRUN_DEVICE=cpu"});
      CHECK(choose_device(w, failing(error, 13000)).failure().what.find("lost") == std::string::npos);
    }
  CHECK(choose_device({}, failing(held_alone, 13000)).failure().remedy == Remedy::exit_process);  // who has it may end
}

TEST_CASE("a LOCAL_RANK without a device of its own is refused, and CUDA_VISIBLE_DEVICES is named", "[device]") {
  refused({.local_rank = 2}, devices(2), Code::not_found, {"LOCAL_RANK 2", "2 devices are visible", "CUDA_VISIBLE_DEVICES is not set"});
  DeviceWishes one = wishes("cuda", 1);
  one.visible = "5";
  refused(one, devices(1), Code::not_found, {"LOCAL_RANK 1", "1 device is visible (CUDA_VISIBLE_DEVICES=5)"});
}

TEST_CASE("ELRUN_DEVICE=cuda:N lets workers share a device", "[device]") {
  CHECK(choose_device(wishes("cuda:0", 3), devices(1)).value() == cuda(0));
  CHECK(choose_device(wishes("cuda:1", 0), devices(2)).value() == cuda(1));
  refused(wishes("cuda:2"), devices(2), Code::not_found, {"ELRUN_DEVICE=cuda:2", "not visible"});
  refused(wishes("cuda:0"), no_driver, Code::not_found, {"no NVIDIA driver"});
}

TEST_CASE("ELRUN_DEVICE with another word is refused", "[device]") {
  for (const char* word : {"gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cpu:0", "cuda:99999999999"})
    refused(wishes(word), devices(1), Code::invalid_argument, {"ELRUN_DEVICE=", "cpu, cuda and cuda:N"});
}
