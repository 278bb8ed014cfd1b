elrun_test(options_test SOURCES unit/options_test.cpp LINK elrun::launcher_core LABELS unit)
elrun_test(environment_test SOURCES unit/environment_test.cpp LINK elrun::launcher_core LABELS unit)
elrun_test(report_test SOURCES unit/report_test.cpp LINK elrun::launcher_core LABELS unit)
elrun_test(supervisor_test SOURCES unit/supervisor_test.cpp LINK elrun::launcher_core LABELS unit)
elrun_test(options_fuzz SOURCES fuzz/options_fuzz.cpp LINK elrun::launcher_core LABELS fuzz)
elrun_test(host_test SOURCES unit/host_test.cpp LINK elrun::launcher_core LABELS unit)

elrun_executable(launcher_worker SOURCES process/programs/launcher_worker.cpp LINK elrun::link)
set_target_properties(launcher_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
# One node needs no gRPC at run time, but its launcher links it; several nodes speak it.
elrun_test(launcher_node_test SOURCES process/launcher_node_test.cpp LABELS process)
elrun_test(launcher_nodes_test SOURCES process/launcher_nodes_test.cpp LABELS process grpc)
if(TARGET elrun_launcher)
add_dependencies(launcher_node_test elrun_launcher launcher_worker)
if(TARGET launcher_nodes_test)  # not under the thread sanitizer
add_dependencies(launcher_nodes_test elrun_launcher launcher_worker)
endif()
endif()
