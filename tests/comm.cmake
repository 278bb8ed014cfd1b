elrun_test(frame_connection_test SOURCES unit/frame_connection_test.cpp LINK elrun::comm LABELS unit PROGRAM comm_unit)
elrun_test(frame_test SOURCES unit/frame_test.cpp LINK elrun::comm_core LABELS unit PROGRAM comm_unit)
elrun_test(choose_test SOURCES unit/choose_test.cpp LINK elrun::comm LABELS unit PROGRAM comm_unit)
elrun_test(connect_test SOURCES unit/connect_test.cpp LINK elrun::comm LABELS unit PROGRAM comm_unit)
elrun_test(schedule_test SOURCES unit/schedule_test.cpp LINK elrun::comm_core LABELS unit PROGRAM comm_unit)
elrun_test(nccl_core_test SOURCES unit/nccl_core_test.cpp LINK elrun::comm_core LABELS unit)

elrun_executable(reducing_worker SOURCES process/programs/reducing_worker.cpp LINK elrun::comm)
set_target_properties(reducing_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
elrun_test(process_group_test
  SOURCES process/process_group_test.cpp process/process_group_async_test.cpp process/process_group_connect_test.cpp
          process/process_group_failure_test.cpp process/process_group_user_test.cpp process/played_peer_test.cpp
  LINK elrun::comm LABELS process TIMEOUT 300)
add_dependencies(process_group_test reducing_worker)
# It has an epoll_ctl of its own, so it is a program of its own.
elrun_test(process_group_watches_test SOURCES process/process_group_watches_test.cpp LINK elrun::comm LABELS process)
# Once as it comes, which is through memory on one host, and once over TCP.
add_test(NAME process_group_tcp_test COMMAND process_group_test)
set_tests_properties(process_group_tcp_test PROPERTIES LABELS process TIMEOUT 300 ENVIRONMENT "ELRUN_TRANSPORT=tcp")
elrun_test(collectives_test SOURCES process/collectives_test.cpp LINK elrun::comm LABELS process)
elrun_test(shared_memory_test SOURCES unit/shared_memory_test.cpp unit/shared_memory_made_test.cpp LINK elrun::comm LABELS unit)
elrun_test(lane_parts_test SOURCES unit/lane_parts_test.cpp LINK elrun::comm LABELS unit)

elrun_fuzzer(frame_fuzz LINK elrun::comm_core)

elrun_executable(all_reduce_bench SOURCES bench/all_reduce_bench.cpp LINK elrun::comm)
set_target_properties(all_reduce_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests EXCLUDE_FROM_ALL TRUE)

# Others' collectives are measured beside ours where the system has them.
elrun_bench(collectives_bench SOURCES bench/collectives_bench.cpp LINK elrun::comm)
find_path(GLOO_INCLUDE_DIR gloo/allreduce.h)
find_library(GLOO_LIBRARY gloo)
if(GLOO_INCLUDE_DIR AND GLOO_LIBRARY)
  target_compile_definitions(collectives_bench PRIVATE ELRUN_BENCH_GLOO)
  target_include_directories(collectives_bench SYSTEM PRIVATE ${GLOO_INCLUDE_DIR})
  target_link_libraries(collectives_bench PRIVATE ${GLOO_LIBRARY})
endif()
find_package(MPI COMPONENTS CXX QUIET)
if(MPI_CXX_FOUND)
  target_compile_definitions(collectives_bench PRIVATE ELRUN_BENCH_MPI)
  target_link_libraries(collectives_bench PRIVATE MPI::MPI_CXX)
endif()
