elrun_test(store_core_test SOURCES unit/store_core_test.cpp LINK elrun::link_core fmt::fmt LABELS unit)
elrun_test(store_parts_test SOURCES unit/store_parts_test.cpp LINK elrun::link_core LABELS unit)
elrun_test(round_test SOURCES unit/round_apart_test.cpp unit/round_end_cause_test.cpp unit/round_end_test.cpp unit/round_exclude_test.cpp unit/round_failure_test.cpp
  unit/round_form_test.cpp unit/round_growth_test.cpp unit/round_prepare_test.cpp unit/round_guard_test.cpp unit/round_recovery_test.cpp unit/round_revoke_test.cpp unit/round_start_test.cpp
  unit/round_streams_test.cpp LINK elrun::rendezvous_core LABELS unit PROGRAM rendezvous_unit)
elrun_test(round_parts_test SOURCES unit/earlier_generations_test.cpp unit/ended_agents_test.cpp unit/excluded_nodes_test.cpp unit/failure_records_test.cpp unit/forming_test.cpp unit/generation_state_test.cpp
  unit/growth_test.cpp unit/job_terms_test.cpp unit/node_names_test.cpp unit/node_table_test.cpp unit/recovery_window_test.cpp unit/restart_budget_test.cpp
  unit/root_cause_test.cpp unit/start_watch_test.cpp unit/status_messages_test.cpp unit/verdict_delivery_test.cpp LINK elrun::rendezvous_core LABELS unit PROGRAM rendezvous_unit)
elrun_test(round_return_test SOURCES unit/round_return_test.cpp LINK elrun::rendezvous_core LABELS unit PROGRAM rendezvous_unit)
elrun_test(admission_test SOURCES unit/admission_test.cpp LINK elrun::rendezvous_core LABELS unit PROGRAM rendezvous_unit)
elrun_test(coordinator_parts_test SOURCES unit/coordinator_parts_test.cpp LINK elrun::rendezvous_core LABELS unit PROGRAM rendezvous_unit)
elrun_test(wire_test SOURCES unit/wire_test.cpp LINK elrun::rendezvous_net LABELS unit)
add_library(elrun_test_certificates STATIC support/certificates.cpp)
target_include_directories(elrun_test_certificates PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(elrun_test_certificates PRIVATE elrun_build_flags OpenSSL::Crypto)
elrun_test(access_test SOURCES unit/access_test.cpp LINK elrun::rendezvous_net elrun_test_certificates LABELS unit)
elrun_test(store_property_test SOURCES property/store_property_test.cpp LINK elrun::link_core LABELS property)
elrun_test(election_test SOURCES unit/election_test.cpp LINK elrun::rendezvous_core LABELS unit)
elrun_test(election_property_test SOURCES property/election_property_test.cpp LINK elrun::rendezvous_core LABELS property)
elrun_test(round_property_test SOURCES property/round_property_test.cpp LINK elrun::rendezvous_core LABELS property)
elrun_test(grpc_link_test SOURCES process/grpc_link_test.cpp LINK elrun::rendezvous_net LABELS "process;grpc")
elrun_test(liveness_test SOURCES process/liveness_test.cpp LINK elrun::rendezvous_net LABELS process)
elrun_test(store_client_test SOURCES process/store_client_test.cpp LINK elrun::store_client elrun::rendezvous_net LABELS "process;grpc")
elrun_bench(store_bench SOURCES bench/store_bench.cpp LINK elrun::store_client elrun::rendezvous_net elrun::base fmt::fmt)
target_compile_definitions(store_bench PRIVATE ELRUN_BENCH_SOURCE="${PROJECT_SOURCE_DIR}")

elrun_fuzzer(rendezvous_fuzz LINK elrun::rendezvous_net)
elrun_fuzzer(outsiders_fuzz LINK elrun::rendezvous_net elrun_rendezvous_proto)
if(TARGET outsiders_fuzz)  # not under the thread sanitizer
  set_target_properties(outsiders_fuzz PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)  # protobuf brings -pthread
endif()

elrun_bench(scale_bench SOURCES bench/scale_bench.cpp support/spawn.cpp LINK elrun::rendezvous_net elrun_rendezvous_proto fmt::fmt)
elrun_test(etcd_test SOURCES process/etcd_test.cpp support/etcd.cpp LINK elrun::rendezvous_net elrun_test_certificates LABELS process)
if(TARGET etcd_test)
  add_dependencies(etcd_test elrun_launcher launcher_worker)
endif()
