# tests/gpu.sh: the program of its parts, and the script itself on fake devices.
if(NOT ELRUN_CUDA)
  return()
endif()
add_executable(gpu_suite EXCLUDE_FROM_ALL gpu/suite.cpp)
target_link_libraries(gpu_suite PRIVATE $<BUILD_INTERFACE:elrun_build_flags> elrun::comm elrun::device elrun::kernels elrun::cudart)
set_target_properties(gpu_suite PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

if(NOT TARGET elrun_fake_nccl)
  return()
endif()
elrun_executable(gpu_suite_devices SOURCES gpu/suite.cpp LINK elrun::comm elrun::device elrun::kernels elrun_fakegpu
  -Wl,--push-state,--no-as-needed elrun_kernel_twins -Wl,--pop-state)
set_target_properties(gpu_suite_devices PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests ELRUN_FAKE_DEVICES ON)
add_dependencies(gpu_suite_devices elrun_fake_nccl)
add_test(NAME gpu_script_on_fake_devices COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/gpu/script_test.sh ${PROJECT_BINARY_DIR})
set_tests_properties(gpu_script_on_fake_devices PROPERTIES LABELS devices TIMEOUT 900)
