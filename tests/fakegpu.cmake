# The fake devices (fakegpu/README.md): a libcudart.so.13 for the product's own objects, and twins of its kernels.
#
# elrun_devices_test(name SOURCES ... LINK ... [TWINS target ...] [PRODUCT_TWINS target] [SEEDS 1 2 ...] [ENVIRONMENT A=1 ...]): a Catch2 program on fake devices, label
# `devices`, one ctest entry per seed. Without CUDA, or with another compiler than g++, there is none.
if(NOT ELRUN_CUDA OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" OR ELRUN_SANITIZE
   OR NOT CUDAToolkit_VERSION_MAJOR EQUAL 13)  # the fake has the entry points of this version
  message(STATUS "elrun: no tests on fake devices: they need CUDA 13, g++, x86-64 and no sanitizer")
  function(elrun_devices_test)
  endfunction()
  return()
endif()

set(fakegpu_folder ${PROJECT_BINARY_DIR}/tests/fakegpu)
# First what each access of a kernel goes through: one unit, so that the compiler sees all of it.
add_library(elrun_fakegpu SHARED
  fakegpu/runtime/checker.cpp fakegpu/runtime/history.cpp fakegpu/runtime/memory.cpp fakegpu/runtime/reports.cpp fakegpu/runtime/runtime.cpp
  fakegpu/runtime/scheduler.cpp fakegpu/runtime/settings.cpp
  fakegpu/simt/block.cpp fakegpu/simt/fiber.cpp fakegpu/simt/hooks.cpp fakegpu/simt/interpreter.cpp fakegpu/simt/shared_memory.cpp
  fakegpu/runtime/abi_copy.cpp fakegpu/runtime/abi_device.cpp fakegpu/runtime/abi_ipc.cpp fakegpu/runtime/abi_launch.cpp fakegpu/runtime/abi_memory.cpp
  fakegpu/runtime/abi_stream.cpp fakegpu/runtime/external.cpp fakegpu/runtime/fault_handler.cpp fakegpu/runtime/faults.cpp fakegpu/runtime/ipc.cpp
  fakegpu/runtime/streams.cpp fakegpu/runtime/twins.cpp)
elrun_in_units(elrun_fakegpu)
set_target_properties(elrun_fakegpu PROPERTIES OUTPUT_NAME cudart VERSION 13 SOVERSION 13 LIBRARY_OUTPUT_DIRECTORY ${fakegpu_folder}
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fakegpu/runtime/exports.map)
target_include_directories(elrun_fakegpu PUBLIC ${PROJECT_SOURCE_DIR})
target_include_directories(elrun_fakegpu SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
# Not elrun_build_flags, which hide names: what is exported is for the version script to say. Nobody replaces a function of it.
target_compile_options(elrun_fakegpu PRIVATE -fno-semantic-interposition -Wall -Wextra -Wconversion -Wshadow -Wno-missing-field-initializers -ffp-contract=off
  $<$<BOOL:${ELRUN_WERROR}>:-Werror>)
target_link_options(elrun_fakegpu PRIVATE LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/fakegpu/runtime/exports.map)
target_link_libraries(elrun_fakegpu PRIVATE Threads::Threads)

# elrun_twins(name SOURCES a.cu ... [LINK ...]): the twins of all kernels that these files launch, in a library that registers them.
# -O1 without what merges or splits accesses: each access of the source is seen, with its own size.
function(elrun_twins name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  set(twins)
  foreach(source ${ARG_SOURCES})  # a file of its own: CMake knows one language per file, and that of a .cu is CUDA
    get_filename_component(file ${source} NAME)
    set(twin ${CMAKE_CURRENT_BINARY_DIR}/${name}/${file}.cpp)
    file(CONFIGURE OUTPUT ${twin} CONTENT "#define FAKEGPU_TWIN_FILE \"${file}\"\n#include \"tests/fakegpu/simt/simt.hpp\"\n\n#include \"${source}\"\n")
    list(APPEND twins ${twin})
  endforeach()
  add_library(${name} SHARED ${twins})
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${fakegpu_folder})
  target_compile_definitions(${name} PRIVATE ELRUN_CUDA)
  target_compile_options(${name} PRIVATE -w -O1 -g1 -mfma -ffp-contract=off -fvisibility=hidden -ffunction-sections
    -fno-tree-vectorize -fno-tree-slp-vectorize -fno-store-merging -fno-math-errno
    -fsanitize=thread --param tsan-instrument-func-entry-exit=0 -fsanitize=alignment)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  # What launches the kernels is compiled too, and never called: it goes, with all that it needs.
  target_link_options(${name} PRIVATE LINKER:--gc-sections LINKER:--version-script=${PROJECT_SOURCE_DIR}/tests/fakegpu/simt/twins.map)
  target_link_libraries(${name} PRIVATE elrun_fakegpu ${ARG_LINK})
endfunction()

get_target_property(sources elrun_kernels SOURCES)
list(FILTER sources INCLUDE REGEX "\\.cu$")
list(TRANSFORM sources PREPEND ${PROJECT_SOURCE_DIR}/kernels/)
elrun_twins(elrun_kernel_twins SOURCES ${sources})

# elrun_link_twins(target [twins ...]): the program loads the twins of the product's kernels, and further ones.
function(elrun_link_twins target)
  target_link_libraries(${target} PRIVATE -Wl,--push-state,--no-as-needed elrun_kernel_twins ${ARGN} -Wl,--pop-state)
endfunction()

function(elrun_devices_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PRODUCT_TWINS" "SOURCES;LINK;TWINS;SEEDS;ENVIRONMENT" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests ELRUN_FAKE_DEVICES ON)
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:elrun_build_flags> elrun_test_support ${ARG_LINK} elrun_fakegpu)
  if(ARG_PRODUCT_TWINS)
    target_link_libraries(${name} PRIVATE -Wl,--push-state,--no-as-needed ${ARG_PRODUCT_TWINS} -Wl,--pop-state)
    set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)  # they ask the program which bug is planted
  else()
    elrun_link_twins(${name} ${ARG_TWINS})
  endif()
  elrun_checks(${name})
  if(NOT ARG_SEEDS)
    set(ARG_SEEDS 1)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT ${ELRUN_TEST_TIMEOUT_MIN})
  endif()
  foreach(seed ${ARG_SEEDS})
    add_test(NAME ${name}_${seed} COMMAND ${name})
    set_tests_properties(${name}_${seed} PROPERTIES LABELS devices TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT "FAKEGPU_SEED=${seed};ELRUN_BIN=${PROJECT_BINARY_DIR}/bin;ELRUN_SOURCE=${PROJECT_SOURCE_DIR};ELRUN_TEST_TIME_FACTOR=${ELRUN_TEST_TIME_FACTOR};${ARG_ENVIRONMENT}")
  endforeach()
endfunction()

# The interpreter and the checker themselves, by planted bugs.
add_library(elrun_planted_kernels STATIC fakegpu/planted/answers.cu fakegpu/planted/kernels.cu)
target_link_libraries(elrun_planted_kernels PUBLIC elrun::kernels PRIVATE elrun_build_flags)
elrun_twins(elrun_planted_twins SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/fakegpu/planted/answers.cu ${CMAKE_CURRENT_SOURCE_DIR}/fakegpu/planted/kernels.cu)
elrun_devices_test(planted_answers_test SOURCES fakegpu/planted/answers_test.cpp LINK elrun_planted_kernels elrun::kernels TWINS elrun_planted_twins)
elrun_devices_test(planted_kernels_test SOURCES fakegpu/planted/kernels_test.cpp LINK elrun_planted_kernels elrun::kernels TWINS elrun_planted_twins)
elrun_devices_test(planted_streams_test SOURCES fakegpu/planted/streams_test.cpp LINK elrun_planted_kernels elrun::kernels TWINS elrun_planted_twins
  ENVIRONMENT FAKEGPU_DEVICES=2)
include(fakegpu/planted/product_bugs.cmake)
elrun_devices_test(planted_product_test SOURCES fakegpu/planted/product_test.cpp LINK elrun::kernels PRODUCT_TWINS elrun_planted_product_twins)
elrun_devices_test(fakegpu_runtime_test SOURCES fakegpu/planted/runtime_test.cpp LINK elrun::kernels ENVIRONMENT FAKEGPU_DEVICES=2)
add_executable(fakegpu_process fakegpu/planted/process.cpp)
set_target_properties(fakegpu_process PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests ELRUN_FAKE_DEVICES ON)
target_link_libraries(fakegpu_process PRIVATE elrun_build_flags elrun::kernels elrun_fakegpu)
elrun_link_twins(fakegpu_process)
elrun_devices_test(fakegpu_processes_test SOURCES fakegpu/planted/processes_test.cpp LINK elrun::base)
add_dependencies(fakegpu_processes_test fakegpu_process gpt elrun_on_fake_devices)

# libelrun once more, of the same objects, for programs that are started with LD_LIBRARY_PATH=build/lib/devices: a sample then trains on fake
# devices, without being linked again.
get_target_property(objects elrun SOURCES)
list(FILTER objects INCLUDE REGEX "TARGET_OBJECTS")
add_library(elrun_on_fake_devices SHARED $<TARGET_OBJECTS:elrun> ${objects})
set_target_properties(elrun_on_fake_devices PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME elrun VERSION ${PROJECT_VERSION} SOVERSION 0 ELRUN_FAKE_DEVICES ON
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/devices LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/libelrun.map)
get_target_property(packages elrun LINK_LIBRARIES)
target_link_libraries(elrun_on_fake_devices PRIVATE ${packages})
target_link_options(elrun_on_fake_devices PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/libelrun.map LINKER:-z,defs)
elrun_link_twins(elrun_on_fake_devices)
