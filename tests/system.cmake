# What holds for the tree and for the product as a whole: arrows, public headers, exported names, the installed package.

if(NOT ELRUN_SANITIZE)  # it reads sources
  elrun_test(layers_test SOURCES tidy/layers_test.cpp LABELS tidy)
  # What the targets of cores are made of, for layers_test: a line "target source" for each file.
  function(elrun_list_cores directory list)
    get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
    list(FILTER targets INCLUDE REGEX "^elrun_.*_core$")
    foreach(target ${targets})
      get_target_property(sources ${target} SOURCES)
      foreach(source ${sources})
        cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${directory})
        cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
        file(APPEND ${list} "${target} ${source}\n")
      endforeach()
    endforeach()
    get_property(folders DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
    foreach(folder ${folders})
      elrun_list_cores(${folder} ${list})
    endforeach()
  endfunction()
  file(WRITE ${PROJECT_BINARY_DIR}/tests/core_sources.txt "")
  elrun_list_cores(${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/tests/core_sources.txt)
  set_property(TEST layers_test APPEND PROPERTY ENVIRONMENT ELRUN_CORE_SOURCES=${PROJECT_BINARY_DIR}/tests/core_sources.txt)
endif()
add_test(NAME packages_test COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/install/packages.sh)
add_test(NAME warnings_test COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DBUILD=${PROJECT_BINARY_DIR} -DWERROR=${ELRUN_WERROR}
  -P ${CMAKE_CURRENT_SOURCE_DIR}/install/warnings.cmake)
set_tests_properties(packages_test warnings_test PROPERTIES LABELS tidy TIMEOUT ${ELRUN_TEST_TIMEOUT_MIN})

# Links of all documents. tests/run.sh installs python3.
find_program(ELRUN_PYTHON3 python3)
if(ELRUN_PYTHON3)
  add_test(NAME docs_links_test COMMAND ${ELRUN_PYTHON3} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidy/docs_links.py ${PROJECT_SOURCE_DIR})
  set_tests_properties(docs_links_test PROPERTIES LABELS tidy TIMEOUT ${ELRUN_TEST_TIMEOUT_MIN})
endif()

# Each public header compiles alone, with std and elrun on the path and nothing else.
if(NOT ELRUN_SANITIZE)
  file(GLOB public_headers RELATIVE ${PROJECT_SOURCE_DIR}/include CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/elrun/*.hpp)
  set(header_sources "")
  foreach(header ${public_headers})
    string(MAKE_C_IDENTIFIER ${header} name)
    file(CONFIGURE OUTPUT headers/${name}.cpp CONTENT "#include <${header}>\n")
    list(APPEND header_sources ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp)
  endforeach()
  add_library(elrun_public_headers OBJECT ${header_sources})
  target_include_directories(elrun_public_headers PRIVATE ${PROJECT_SOURCE_DIR}/include)
  # -O0: nothing of them runs.
  target_compile_options(elrun_public_headers PRIVATE -O0 -Wall -Wextra -Wpedantic -Wconversion -Wshadow $<$<BOOL:${ELRUN_WERROR}>:-Werror>)
endif()

# A sanitizer's build is not what is installed.
if(TARGET elrun AND TARGET elrun_launcher AND NOT ELRUN_SANITIZE)
  add_test(NAME install_test COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
    -DWORK=${PROJECT_BINARY_DIR}/install-test -DGENERATOR=${CMAKE_GENERATOR} -DCOMPILER=${CMAKE_CXX_COMPILER} -P ${CMAKE_CURRENT_SOURCE_DIR}/install/run.cmake)
  if(ELRUN_PYTHON3)  # every command of these documents; --show prints what they print
    math(EXPR limit "250 * ${ELRUN_TEST_TIME_FACTOR}")
    add_test(NAME docs_run_test COMMAND ${ELRUN_PYTHON3} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidy/docs_run.py --build ${PROJECT_BINARY_DIR} --tree ${PROJECT_SOURCE_DIR}
      --limit ${limit} README.md CONTRIBUTING.md docs/tutorial.md docs/operations.md docs/slurm.md docs/torchrun.md samples/README.md samples/torch/README.md)
    set_tests_properties(docs_run_test PROPERTIES LABELS "tidy;process;grpc" TIMEOUT 600)
  endif()
  add_test(NAME symbols_test COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:elrun> -DLAUNCHER=$<TARGET_FILE:elrun_launcher> -DSTORE=$<TARGET_FILE:elrun_store>
    -DREADELF=${CMAKE_READELF} -DNM=${CMAKE_NM} -DCARRIED=$<BOOL:${ELRUN_ARCHIVES_FIT}> -P ${CMAKE_CURRENT_SOURCE_DIR}/install/symbols.cmake)
  set_tests_properties(install_test PROPERTIES LABELS tidy TIMEOUT 300)
  set_tests_properties(symbols_test PROPERTIES LABELS tidy TIMEOUT ${ELRUN_TEST_TIMEOUT_MIN})
endif()

elrun_bench(launch_bench SOURCES bench/launch_bench.cpp LINK elrun::base fmt::fmt)
elrun_bench(tee_bench SOURCES bench/tee_bench.cpp LINK elrun::base fmt::fmt)
elrun_bench(recovery_bench SOURCES bench/recovery_bench.cpp support/spawn.cpp LINK elrun::base fmt::fmt)
elrun_bench(training_bench SOURCES bench/training_bench.cpp support/spawn.cpp LINK elrun elrun::kernels elrun::base fmt::fmt)

# A Job whose test says when each of its workers goes on.
if(TARGET gpt AND TARGET elrun_launcher)
  elrun_executable(holding_worker SOURCES process/programs/holding_worker.cpp LINK elrun::elrun)
  set_target_properties(holding_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  elrun_test(pending_worker_test SOURCES process/pending_worker_test.cpp LABELS process TIMEOUT 300)
  add_dependencies(pending_worker_test elrun_launcher holding_worker)
  # One that ends in every way.
  elrun_executable(ending_worker SOURCES process/programs/ending_worker.cpp LINK elrun::elrun)
  set_target_properties(ending_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  elrun_test(job_end_test SOURCES process/job_end_test.cpp LABELS process grpc TIMEOUT 300)
  if(TARGET job_end_test)  # not under the thread sanitizer
    add_dependencies(job_end_test elrun_launcher ending_worker)
  endif()
  elrun_test(frozen_coordinator_test SOURCES process/frozen_coordinator_test.cpp support/etcd.cpp support/relay.cpp LABELS process golden grpc TIMEOUT 300)
  if(TARGET frozen_coordinator_test)
    add_dependencies(frozen_coordinator_test elrun_launcher holding_worker launcher_worker)
  endif()
endif()

# The gpt sample for real: golden hash, kills, resizes.
if(TARGET gpt)
  elrun_test(gpt_golden_test SOURCES process/gpt_golden_test.cpp LABELS process golden TIMEOUT 600)
  add_dependencies(gpt_golden_test gpt)
  if(NOT ELRUN_SANITIZE STREQUAL "thread")  # options and files, which no thread looks at beside another
    elrun_test(gpt_bad_input_test SOURCES process/gpt_bad_input_test.cpp LABELS process TIMEOUT 600)
    add_dependencies(gpt_bad_input_test gpt)
  endif()
  if(TARGET elrun_launcher AND TARGET gpt_bad_input_test)
    set_tests_properties(gpt_bad_input_test PROPERTIES LABELS "process;grpc")
    target_compile_definitions(gpt_bad_input_test PRIVATE ELRUN_TEST_LAUNCHER)
    add_dependencies(gpt_bad_input_test elrun_launcher)
    elrun_test(drain_test SOURCES process/drain_test.cpp LABELS process pods golden grpc TIMEOUT 300)
    add_dependencies(drain_test gpt elrun_launcher)
    elrun_test(preempt_test SOURCES process/preempt_test.cpp LABELS process pods golden grpc TIMEOUT 300)
    add_dependencies(preempt_test gpt elrun_launcher)
    elrun_test(train_job_process_test SOURCES process/train_job_process_test.cpp LINK elrun_test_certificates OpenSSL::SSL LABELS process grpc TIMEOUT 300)
    add_dependencies(train_job_process_test gpt elrun_launcher)
    if(NOT ELRUN_SANITIZE)  # it judges silence by half a second, which a sanitizer's program on a busy machine exceeds by itself
      elrun_test(pods_test SOURCES process/pods_test.cpp LABELS process pods golden grpc ARGUMENTS "~[golden]" TIMEOUT 600)
      add_dependencies(pods_test gpt elrun_launcher launcher_worker)
      elrun_test_part(gpt_pods_test pods_test "[golden]")
      elrun_test(elected_pods_test SOURCES process/elected_pods_test.cpp support/etcd.cpp LABELS process pods grpc TIMEOUT 300)
      add_dependencies(elected_pods_test elrun_launcher launcher_worker)
      elrun_test(manifest_pods_test SOURCES process/manifest_pods_test.cpp support/pod_operator.cpp LINK nlohmann_json::nlohmann_json LABELS process pods manifests grpc TIMEOUT 900)
      add_dependencies(manifest_pods_test elrun_launcher launcher_worker)
      # Each tutorial is a test of its own, so that they wait side by side.
      elrun_executable(pod_worker SOURCES process/programs/pod_worker.cpp LINK elrun::elrun)
      elrun_executable(probe_storm SOURCES process/programs/probe_storm.cpp LINK elrun::base)
      set_target_properties(pod_worker probe_storm PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
      elrun_test(tutorial_pods_test SOURCES process/tutorial_pods_test.cpp support/pod_operator.cpp support/pod_training.cpp LINK nlohmann_json::nlohmann_json
                 LABELS process pods manifests golden grpc ARGUMENTS "[tutorial-0]" TIMEOUT 600)
      add_dependencies(tutorial_pods_test elrun_launcher pod_worker probe_storm)
      foreach(number 1 2 3 4 5)
        elrun_test_part(tutorial_${number}_pods_test tutorial_pods_test "[tutorial-${number}]")
      endforeach()
    endif()
    if(NOT ELRUN_SANITIZE OR ELRUN_SANITIZE_ALL)
      elrun_test(gpt_elrun_test SOURCES process/gpt_elrun_test.cpp LABELS process golden grpc TIMEOUT 900)
      elrun_test(gpt_lost_root_test SOURCES process/gpt_lost_root_test.cpp LABELS process golden grpc TIMEOUT 600)
      elrun_test(gpt_bad_files_test SOURCES process/gpt_bad_files_test.cpp LABELS process golden grpc TIMEOUT 600)
      elrun_test(ckpt_command_test SOURCES process/ckpt_command_test.cpp LINK nlohmann_json::nlohmann_json LABELS process golden grpc TIMEOUT 600)
    endif()
    if(TARGET gpt_lost_root_test)  # not under the thread sanitizer
      add_dependencies(gpt_lost_root_test gpt elrun_launcher)
      add_dependencies(gpt_bad_files_test gpt elrun_launcher)
      add_dependencies(ckpt_command_test gpt elrun_launcher)
    endif()
    if(TARGET gpt_elrun_test)  # not under the thread sanitizer
      add_dependencies(gpt_elrun_test gpt elrun_launcher)
    endif()
  endif()
endif()

# The whole golden proof is `elrun_golden` without options, which takes two hours on two cores; here a selection, drawn by a seed.
if(TARGET gpt AND TARGET elrun_launcher AND NOT ELRUN_SANITIZE STREQUAL "thread" AND (NOT ELRUN_SANITIZE OR ELRUN_SANITIZE_ALL))
  elrun_executable(elrun_golden SOURCES golden/main.cpp golden/fleet.cpp golden/history.cpp golden/options.cpp support/spawn.cpp LINK elrun::base fmt::fmt)
  elrun_checks(elrun_golden)
  add_dependencies(elrun_golden gpt elrun_launcher)
  if(ELRUN_SANITIZE)
    set(selection --cells 3 --histories 3)
  else()
    set(selection --cells 12 --histories 3)
  endif()
  add_test(NAME golden_selection COMMAND elrun_golden ${selection} --seed 12 --steps 300)
  set_tests_properties(golden_selection PROPERTIES LABELS "process;golden;grpc" TIMEOUT 1200)
  elrun_test(golden_program_test SOURCES unit/golden_options_test.cpp process/golden_program_test.cpp golden/options.cpp LINK elrun::base fmt::fmt
             LABELS process golden TIMEOUT 300)
  if(TARGET golden_program_test)
    add_dependencies(golden_program_test elrun_golden)
  endif()
endif()

# The mnist sample for real: golden hash, accuracy, kills.
if(TARGET mnist AND TARGET elrun_launcher)
  elrun_test(mnist_elrun_test SOURCES process/mnist_elrun_test.cpp LABELS process golden grpc TIMEOUT 900)
  if(TARGET mnist_elrun_test)
    add_dependencies(mnist_elrun_test mnist elrun_launcher)
  endif()
endif()

# The raw-pointer sample, before and after.
if(TARGET flat_after AND TARGET elrun_launcher)
  elrun_test(flat_test SOURCES process/flat_test.cpp LINK fmt::fmt LABELS process golden grpc TIMEOUT 300)
  if(TARGET flat_test)
    add_dependencies(flat_test flat_before flat_after elrun_launcher)
  endif()
endif()
