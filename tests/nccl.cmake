if(ELRUN_CUDA AND NCCL_FOUND)
  elrun_test(nccl_installed_test SOURCES unit/nccl_installed_test.cpp LINK elrun::comm NCCL::headers LABELS unit)
else()
  elrun_test(nccl_absent_test SOURCES unit/nccl_absent_test.cpp LINK elrun::comm LABELS unit)
endif()

# Device collectives over a fake NCCL (fakegpu/nccl/README.md). Without fake devices, or without NCCL's header, there is none.
if(NOT TARGET elrun_fakegpu OR NOT NCCL_FOUND)
  return()
endif()

# elrun_fake_nccl(name NEWEST version FOLDER folder): a libnccl.so.2 with the functions of that version and of those before it.
function(elrun_fake_nccl name)
  cmake_parse_arguments(ARG "" "NEWEST;FOLDER" "" ${ARGN})
  add_library(${name} SHARED fakegpu/nccl/abi.cpp fakegpu/nccl/calls.cpp fakegpu/nccl/communicator.cpp fakegpu/nccl/settings.cpp
    fakegpu/nccl/shared_world.cpp)
  elrun_in_units(${name})
  set_target_properties(${name} PROPERTIES OUTPUT_NAME nccl VERSION 2 SOVERSION 2 LIBRARY_OUTPUT_DIRECTORY ${ARG_FOLDER}
    LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fakegpu/nccl/exports.map)
  target_compile_definitions(${name} PRIVATE FAKEGPU_NCCL_NEWEST=${ARG_NEWEST})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wconversion -Wshadow -Wno-missing-field-initializers -ffp-contract=off
    $<$<BOOL:${ELRUN_WERROR}>:-Werror>)
  target_link_options(${name} PRIVATE LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/fakegpu/nccl/exports.map)
  target_link_libraries(${name} PRIVATE elrun_fakegpu NCCL::headers Threads::Threads)
endfunction()
elrun_fake_nccl(elrun_fake_nccl NEWEST 22809 FOLDER ${fakegpu_folder})
elrun_fake_nccl(elrun_fake_nccl_2_26 NEWEST 22602 FOLDER ${fakegpu_folder}/nccl-2.26)

# Test programs find the newer one beside the fake CUDA runtime; LD_LIBRARY_PATH says otherwise.
elrun_devices_test(nccl_calls_test SOURCES devices/nccl_calls_test.cpp LINK elrun::comm ENVIRONMENT FAKEGPU_DEVICES=4 SEEDS 1 2)
add_test(NAME nccl_calls_2_26_test COMMAND nccl_calls_test)
set_tests_properties(nccl_calls_2_26_test PROPERTIES LABELS devices TIMEOUT ${ELRUN_TEST_TIMEOUT_MIN}
  ENVIRONMENT "FAKEGPU_DEVICES=4;LD_LIBRARY_PATH=${fakegpu_folder}/nccl-2.26")
add_dependencies(nccl_calls_test elrun_fake_nccl elrun_fake_nccl_2_26)
elrun_devices_test(nccl_failures_test SOURCES devices/nccl_failures_test.cpp LINK elrun::comm NCCL::headers ENVIRONMENT FAKEGPU_DEVICES=4)
add_dependencies(nccl_failures_test elrun_fake_nccl)

elrun_executable(nccl_worker SOURCES devices/programs/nccl_worker.cpp LINK elrun::comm elrun_fakegpu
  -Wl,--push-state,--no-as-needed elrun_kernel_twins -Wl,--pop-state)
set_target_properties(nccl_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests ELRUN_FAKE_DEVICES ON)
elrun_devices_test(nccl_processes_test SOURCES devices/nccl_processes_test.cpp)
add_dependencies(nccl_processes_test nccl_worker elrun_fake_nccl)

add_library(elrun_version_alone SHARED devices/programs/version_alone.cpp)
set_target_properties(elrun_version_alone PROPERTIES OUTPUT_NAME version_alone LIBRARY_OUTPUT_DIRECTORY ${fakegpu_folder})
target_link_libraries(elrun_version_alone PRIVATE elrun_build_flags NCCL::headers)
# In a process of its own: whatever comes after it there is refused.
elrun_devices_test(nccl_stuck_test SOURCES devices/nccl_stuck_test.cpp LINK elrun::comm NCCL::headers)
add_dependencies(nccl_stuck_test elrun_fake_nccl)
elrun_devices_test(nccl_library_test SOURCES devices/nccl_library_test.cpp LINK elrun::comm NCCL::headers)
elrun_devices_test(fake_nccl_test SOURCES devices/fake_nccl_test.cpp LINK elrun::comm NCCL::headers ENVIRONMENT FAKEGPU_DEVICES=4 SEEDS 1 2 3)
add_dependencies(nccl_library_test elrun_fake_nccl elrun_fake_nccl_2_26 elrun_version_alone)
add_dependencies(fake_nccl_test elrun_fake_nccl)
# Whole jobs that exchange by it.
elrun_devices_test(job_nccl_test SOURCES devices/job_nccl_test.cpp LINK elrun::job elrun::link fmt::fmt ENVIRONMENT FAKEGPU_DEVICES=4 SEEDS 1 2 TIMEOUT 600)
add_dependencies(job_nccl_test elrun_fake_nccl)
elrun_devices_test(job_overlap_device_test SOURCES devices/job_overlap_device_test.cpp LINK elrun::job elrun::link fmt::fmt ENVIRONMENT FAKEGPU_DEVICES=4 SEEDS 1 2)
add_dependencies(job_overlap_device_test elrun_fake_nccl)
elrun_devices_test(job_rebuilds_test SOURCES devices/job_rebuilds_test.cpp LINK elrun::job elrun::link fmt::fmt ENVIRONMENT FAKEGPU_DEVICES=4 TIMEOUT 3600)
add_dependencies(job_rebuilds_test elrun_fake_nccl)
foreach(test job_processes_test job_faults_test)  # what their workers find; without it they would find the machine's
  if(TARGET ${test})
    add_dependencies(${test} elrun_fake_nccl)
  endif()
endforeach()
include(fakegpu/planted/job_bugs.cmake)
include(fakegpu/planted/nccl_bugs.cmake)
