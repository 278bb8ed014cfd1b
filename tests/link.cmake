elrun_test(message_test SOURCES unit/message_test.cpp LINK elrun::link_core LABELS unit)
elrun_test(surroundings_test SOURCES unit/surroundings_test.cpp LINK elrun::link_core LABELS unit)

elrun_executable(operators_worker SOURCES process/programs/operators_worker.cpp LINK elrun::link)
set_target_properties(operators_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
elrun_test(session_test SOURCES process/session_test.cpp LINK elrun::link LABELS process)
add_dependencies(session_test operators_worker)

# With clang and -DELRUN_LIBFUZZER=ON a fuzzer; otherwise a driver feeds it mutations by seed.
if(ELRUN_LIBFUZZER)
  elrun_executable(message_fuzz SOURCES fuzz/message_fuzz.cpp LINK elrun::link_core)
  target_compile_options(message_fuzz PRIVATE -fsanitize=fuzzer)
  target_link_options(message_fuzz PRIVATE -fsanitize=fuzzer)
else()
  elrun_executable(message_fuzz SOURCES fuzz/message_fuzz.cpp fuzz/driver.cpp LINK elrun::link_core)
  add_test(NAME message_fuzz COMMAND message_fuzz)
  set_tests_properties(message_fuzz PROPERTIES LABELS fuzz TIMEOUT 120)
endif()
set_target_properties(message_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
