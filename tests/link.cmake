elrun_test(message_test SOURCES unit/message_test.cpp LINK elrun::link_core LABELS unit PROGRAM link_unit)
elrun_test(launch_environment_test SOURCES unit/launch_environment_test.cpp LINK elrun::link_core LABELS unit PROGRAM link_unit)
elrun_test(session_state_test SOURCES unit/session_state_test.cpp LINK elrun::link LABELS unit PROGRAM link_unit)
elrun_test(message_stream_test SOURCES unit/message_stream_test.cpp LINK elrun::link LABELS unit PROGRAM link_unit)
elrun_test(socket_test SOURCES unit/socket_test.cpp LINK elrun::link LABELS unit PROGRAM link_unit)
elrun_test(death_futex_test SOURCES unit/death_futex_test.cpp LINK elrun::link LABELS unit PROGRAM link_unit)

elrun_executable(operators_worker SOURCES process/programs/operators_worker.cpp LINK elrun::link)
set_target_properties(operators_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
elrun_test(session_test SOURCES process/session_test.cpp LINK elrun::link LABELS process)
add_dependencies(session_test operators_worker)

elrun_fuzzer(message_fuzz LINK elrun::link_core)
elrun_fuzzer(store_fuzz LINK elrun::link_core)
