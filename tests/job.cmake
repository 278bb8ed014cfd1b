elrun_test(job_core_test
  SOURCES unit/job_plan_test.cpp unit/job_layout_test.cpp unit/job_tree_test.cpp unit/job_commit_test.cpp
          unit/job_declarations_test.cpp unit/job_settle_test.cpp unit/job_steps_test.cpp unit/job_update_test.cpp
  LINK elrun::job_core elrun::device LABELS unit)
elrun_test(times_spent_test SOURCES unit/straggler_watch_test.cpp unit/times_spent_test.cpp LINK elrun::job_core LABELS unit)
elrun_test(job_property_test
  SOURCES property/job_tree_property.cpp property/job_assign_property.cpp property/job_sampler_property.cpp
          property/job_commit_property.cpp property/job_pending_requests_property.cpp property/job_shard_map_property.cpp
  LINK elrun::job_core fmt::fmt LABELS property)
# One part of a job at a time, without a whole one.
elrun_test(job_parts_test
  SOURCES unit/job_agreement_test.cpp unit/job_gather_test.cpp unit/job_host_state_test.cpp unit/job_long_wait_test.cpp unit/job_loss_reserve_test.cpp unit/job_model_state_test.cpp unit/job_recovery_test.cpp
          unit/job_reducer_test.cpp unit/job_restore_test.cpp unit/job_save_interval_test.cpp unit/job_saves_test.cpp unit/job_saves_together_test.cpp unit/job_async_saves_test.cpp unit/job_async_saves_together_test.cpp unit/job_newest_checkpoint_test.cpp unit/job_slot_test.cpp unit/job_staging_test.cpp unit/job_votes_test.cpp unit/storage_wait_report_test.cpp
  LINK elrun::job elrun::link elrun_checkpoint_test_support fmt::fmt LABELS unit)
elrun_test(job_hybrid_test
  SOURCES unit/job_hybrid_test.cpp unit/job_memory_checkpoint_test.cpp unit/job_mirrored_test.cpp
  LINK elrun::job elrun::link elrun_checkpoint_test_support fmt::fmt LABELS golden TIMEOUT 600)
set(cases "")
if(ELRUN_THREADED_CODE_ONLY)  # evaluations go through the exchanges of the other cases, and would take half of the time
  set(cases ~[evaluation])
endif()
elrun_test(job_test
  SOURCES unit/job_audit_test.cpp unit/job_begin_again_test.cpp unit/job_compare_test.cpp unit/job_contract_test.cpp unit/job_elastic_test.cpp unit/job_first_values_test.cpp unit/job_forked_test.cpp unit/job_frozen_test.cpp unit/job_golden_test.cpp unit/job_leaves_test.cpp unit/job_shared_buffers_test.cpp unit/job_memory_table_test.cpp unit/job_modes_test.cpp unit/job_overlap_test.cpp unit/job_recut_test.cpp
          unit/job_sharing_test.cpp unit/job_slots_test.cpp unit/job_state_beside_test.cpp unit/job_tensor_options_test.cpp unit/job_test.cpp unit/job_two_storages_test.cpp unit/job_updates_test.cpp unit/job_verify_test.cpp
  LINK elrun::job elrun::link elrun_checkpoint_test_support fmt::fmt LABELS golden TIMEOUT 1200 ARGUMENTS ${cases})

elrun_test(job_rounded_test SOURCES unit/job_rounded_weights_test.cpp LINK elrun::job elrun::link fmt::fmt LABELS unit TIMEOUT 600)

# A tensor of something else than floats does not compile, and a sentence says why.
add_test(NAME tensor_of_double COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -I${PROJECT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR}/unit/tensor_of_double.cpp)
set_tests_properties(tensor_of_double PROPERTIES LABELS unit PASS_REGULAR_EXPRESSION "a job trains parameters of float")

# What has an address for a value is no host state, and a sentence says why; values are.
set(command ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -I${PROJECT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR}/unit/state_of_addresses.cpp)
add_test(NAME state_of_values COMMAND ${command})
set_tests_properties(state_of_values PROPERTIES LABELS unit)
foreach(address span<float> string_view array<char*,2>)
  string(REGEX MATCH "^[a-z_]+" name ${address})
  add_test(NAME state_of_${name} COMMAND ${command} "-DADDRESS=std::${address}")
  set_tests_properties(state_of_${name} PROPERTIES LABELS unit PASS_REGULAR_EXPRESSION "register the elements")
endforeach()

# A program whose strings or vectors are others than libelrun's does not compile, and a sentence says what to change.
set(command ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -I${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/samples/flat/after.cpp)
add_test(NAME old_string_abi COMMAND ${command} -D_GLIBCXX_USE_CXX11_ABI=0)
add_test(NAME debug_vectors COMMAND ${command} -D_GLIBCXX_DEBUG)
set_tests_properties(old_string_abi PROPERTIES LABELS unit PASS_REGULAR_EXPRESSION "compile without -D_GLIBCXX_USE_CXX11_ABI=0")
set_tests_properties(debug_vectors PROPERTIES LABELS unit PASS_REGULAR_EXPRESSION "-D_GLIBCXX_ASSERTIONS in place of -D_GLIBCXX_DEBUG")
elrun_bench(restore_bench SOURCES bench/restore_bench.cpp LINK elrun::job elrun::link elrun::comm elrun::checkpoint_io elrun::base fmt::fmt)
