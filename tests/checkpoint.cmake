add_library(elrun_checkpoint_test_support STATIC support/faulty_files.cpp support/object_tier.cpp)
target_link_libraries(elrun_checkpoint_test_support PUBLIC elrun_test_support elrun::checkpoint_io PRIVATE elrun_build_flags)

elrun_test(checkpoint_test SOURCES unit/checkpoint_test.cpp unit/checkpoint_records_test.cpp unit/checkpoint_retention_test.cpp unit/commit_machine_test.cpp
  LINK elrun_checkpoint_test_support nlohmann_json::nlohmann_json LABELS unit PROGRAM checkpoint_unit)
elrun_test(checkpoint_tier_test SOURCES unit/checkpoint_tier_test.cpp LINK elrun_checkpoint_test_support fmt::fmt LABELS unit PROGRAM checkpoint_unit)
elrun_test(checkpoint_resume_test SOURCES unit/checkpoint_resume_test.cpp unit/checkpoint_resume_core_test.cpp unit/checkpoint_decision_test.cpp unit/checkpoint_shard_checks_test.cpp unit/checkpoint_sights_test.cpp
  LINK elrun_checkpoint_test_support nlohmann_json::nlohmann_json LABELS unit PROGRAM checkpoint_unit)
elrun_test(checkpoint_slot_test SOURCES unit/checkpoint_slot_test.cpp unit/checkpoint_slot_wait_test.cpp
  LINK elrun_checkpoint_test_support elrun::link fmt::fmt LABELS unit PROGRAM checkpoint_unit)
elrun_test(checkpoint_posix_test SOURCES unit/checkpoint_posix_test.cpp unit/checkpoint_odd_files_test.cpp
  LINK elrun_checkpoint_test_support fmt::fmt LABELS unit PROGRAM checkpoint_unit)
# Its threads are named, so that it runs with the thread sanitizer, too.
elrun_test(timed_files_test SOURCES unit/timed_files_test.cpp LINK elrun_checkpoint_test_support Threads::Threads LABELS unit PROGRAM checkpoint_unit)
set(cases "")
if(ELRUN_THREADED_CODE_ONLY)  # the other cases have one thread
  set(cases [threads])
endif()
elrun_test(checkpoint_tools_test SOURCES unit/checkpoint_tools_test.cpp
  LINK elrun_checkpoint_test_support elrun::checkpoint_tools LABELS unit PROGRAM checkpoint_unit ARGUMENTS ${cases})
if(NOT ELRUN_THREADED_CODE_ONLY)  # it has one thread
  elrun_test(checkpoint_compare_test SOURCES unit/checkpoint_compare_test.cpp
    LINK elrun_checkpoint_test_support elrun::checkpoint_tools LABELS unit PROGRAM checkpoint_unit)
endif()
elrun_test(checkpoint_format_test SOURCES unit/checkpoint_format_test.cpp unit/checkpoint_shard_writer_test.cpp unit/checkpoint_token_bucket_test.cpp
  LINK elrun_checkpoint_test_support nlohmann_json::nlohmann_json fmt::fmt LABELS unit PROGRAM checkpoint_unit)
if(TARGET checkpoint_unit)
  target_compile_definitions(checkpoint_unit PRIVATE ELRUN_SOURCE="${PROJECT_SOURCE_DIR}")
endif()
elrun_test(checkpoint_format_property SOURCES property/checkpoint_format_property.cpp property/read_share_property.cpp
  LINK elrun_checkpoint_test_support nlohmann_json::nlohmann_json fmt::fmt LABELS property)
if(NOT ELRUN_SANITIZE OR (ELRUN_SANITIZE STREQUAL "address" AND ELRUN_SANITIZE_ALL))  # one thread, and ten minutes under a sanitizer
elrun_test(checkpoint_property SOURCES property/checkpoint_property.cpp
  LINK elrun_checkpoint_test_support LABELS property TIMEOUT 600)
endif()

elrun_fuzzer(manifest_fuzz LINK elrun::checkpoint_core nlohmann_json::nlohmann_json)
elrun_fuzzer(slot_fuzz LINK elrun::checkpoint_core)
elrun_fuzzer(safetensors_fuzz LINK elrun::checkpoint_core nlohmann_json::nlohmann_json)

elrun_bench(shard_write_bench SOURCES bench/shard_write_bench.cpp LINK elrun::checkpoint_io elrun::base fmt::fmt)
elrun_bench(manifest_bench SOURCES bench/manifest_bench.cpp LINK elrun::checkpoint_core elrun::base nlohmann_json::nlohmann_json fmt::fmt)
