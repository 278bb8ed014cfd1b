# The pure cores once more, as the simulator sees them: each known bug can be switched on. No product links these.
elrun_library(sim_cores
  SOURCES ${PROJECT_SOURCE_DIR}/rendezvous/assign.cpp ${PROJECT_SOURCE_DIR}/rendezvous/round.cpp
          ${PROJECT_SOURCE_DIR}/launcher/supervisor.cpp ${PROJECT_SOURCE_DIR}/launcher/report.cpp
          ${PROJECT_SOURCE_DIR}/lib/link/store_core.cpp
  PUBLIC elrun::base Boost::headers)
target_compile_definitions(elrun_sim_cores PUBLIC ELRUN_PLANTED_BUGS="tests/support/sim/planted_bugs.hpp")

elrun_library(sim_world
  SOURCES support/sim/agents.cpp support/sim/coordinators.cpp support/sim/faults.cpp support/sim/profile.cpp
          support/sim/words.cpp support/sim/workers.cpp support/sim/world.cpp
  PUBLIC elrun::sim_cores)
# g++ 12 takes moved-from variants for reads of what was never written.
target_compile_options(elrun_sim_world PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set_target_properties(elrun_sim_world PROPERTIES UNITY_BUILD ON)

elrun_executable(elrun_sim SOURCES sim/main.cpp LINK elrun::sim_world Threads::Threads)

# The long campaign is `elrun_sim --seeds 5000 --nodes 5`.
add_test(NAME sim_seeds COMMAND elrun_sim --seeds 500 --nodes 5)
add_test(NAME sim_regressions COMMAND elrun_sim --regressions ${CMAKE_CURRENT_SOURCE_DIR}/sim/regressions.txt)
# Each of these is found within a few hundred seeds; --planted all shows the others, too.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/sim_planted.sh "set -eu\nfor name in torchrun_d1_replacement_gets_no_address torchrun_d2_split_brain torchrun_d3_stale_keys torchrun_d5_store_loss_kills_workers torchrun_d6_lost_node_unnoticed torchrun_d14_spare_fails torchrun_d18_others_go_on forms_before_acknowledged acknowledges_before_the_end generation_number_reused floor_not_raised oversubscription_is_an_error spare_never_used base_ranks_overlap fresh_coordinator_ends_what_runs replaced_incarnation_returns no_grace_to_reconnect done_is_not_reported_again store_serves_stale_generation barrier_opens_early add_repeated_after_reconnect waiter_not_woken forgotten_caller_counts kill_deadline_forgotten; do\n  if \"$1\" --planted $name --seeds 1000 --quiet >out.$name; then echo \"planted $name was not found\"; exit 1; fi\n  tail -n 1 out.$name\n  rm out.$name\ndone\n")
add_test(NAME sim_planted COMMAND bash ${CMAKE_CURRENT_BINARY_DIR}/sim_planted.sh $<TARGET_FILE:elrun_sim>)
set_tests_properties(sim_seeds sim_regressions sim_planted PROPERTIES LABELS simulation TIMEOUT 300)
if(TARGET elrun_launcher AND TARGET elrun)
  add_test(NAME sim_planted_absent COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/sim/planted_absent.sh
    $<TARGET_FILE:elrun_sim> $<TARGET_FILE:elrun_launcher> $<TARGET_FILE:elrun>)
  set_tests_properties(sim_planted_absent PROPERTIES LABELS simulation TIMEOUT 60)
endif()
