elrun_test(frame_test SOURCES unit/frame_test.cpp LINK elrun::comm_core LABELS unit)
elrun_test(schedule_test SOURCES unit/schedule_test.cpp LINK elrun::comm_core LABELS unit)

elrun_executable(reducing_worker SOURCES process/programs/reducing_worker.cpp LINK elrun::comm)
set_target_properties(reducing_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
elrun_test(process_group_test SOURCES process/process_group_test.cpp LINK elrun::comm LABELS process)
add_dependencies(process_group_test reducing_worker)

# With clang and -DELRUN_LIBFUZZER=ON a fuzzer; otherwise a driver feeds it mutations by seed.
if(ELRUN_LIBFUZZER)
  elrun_executable(frame_fuzz SOURCES fuzz/frame_fuzz.cpp LINK elrun::comm_core)
  target_compile_options(frame_fuzz PRIVATE -fsanitize=fuzzer)
  target_link_options(frame_fuzz PRIVATE -fsanitize=fuzzer)
else()
  elrun_executable(frame_fuzz SOURCES fuzz/frame_fuzz.cpp fuzz/driver.cpp LINK elrun::comm_core)
  add_test(NAME frame_fuzz COMMAND frame_fuzz)
  set_tests_properties(frame_fuzz PROPERTIES LABELS fuzz TIMEOUT 120)
endif()
set_target_properties(frame_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

elrun_executable(all_reduce_bench SOURCES bench/all_reduce_bench.cpp LINK elrun::comm)
set_target_properties(all_reduce_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests EXCLUDE_FROM_ALL TRUE)
