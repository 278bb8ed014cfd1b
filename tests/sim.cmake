# What the product's libraries list as SIMULATED, compiled again: each known bug can be switched on. No product links these.
function(elrun_simulated out)
  set(sources "")
  foreach(library ${ARGN})
    get_target_property(simulated elrun_${library} ELRUN_SIMULATED)
    list(APPEND sources ${simulated})
  endforeach()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# Compiled as what only checks, and runs for long: the simulator's figures are counts and no times.
function(elrun_simulates)
  foreach(name ${ARGN})
    elrun_checks(elrun_${name})
    target_compile_options(elrun_${name} PRIVATE ${ELRUN_QUICK_TO_RUN})
  endforeach()
endfunction()

elrun_simulated(sim_cores rendezvous_core launcher_core link_core)
elrun_library(sim_cores SOURCES ${sim_cores} PUBLIC elrun::base Boost::headers)
target_compile_definitions(elrun_sim_cores PUBLIC ELRUN_PLANTED_BUGS="tests/support/sim/planted_bugs.hpp")

# What of lib/job decides, and what asserts: before the product's own archive, which gives the rest.
elrun_simulated(sim_job job_core job)
list(APPEND sim_job ${PROJECT_SOURCE_DIR}/checkpoint/staging/slot_save.cpp)  # of checkpoint_io, whose other copies are the checkpoint simulator's
elrun_library(sim_job SOURCES ${sim_job} PUBLIC elrun::sim_cores elrun::job)

elrun_library(sim_world
  SOURCES support/sim/agents.cpp support/sim/coordinators.cpp support/sim/crash_search.cpp support/sim/cuts.cpp support/sim/explorer.cpp
          support/sim/fingerprint.cpp support/sim/faults.cpp support/sim/job_workers.cpp support/sim/profile.cpp
          support/sim/program.cpp support/sim/slot_lines.cpp support/sim/trainer.cpp support/sim/turns.cpp
          support/sim/words.cpp support/sim/workers.cpp support/sim/world.cpp support/sim/writer.cpp support/faulty_files.cpp
  PUBLIC elrun::sim_cores elrun::sim_job)

# A world of many nodes: the same cores, and the product's encoder to count bytes.
elrun_library(sim_scale
  SOURCES support/sim/scale.cpp ${PROJECT_SOURCE_DIR}/rendezvous/net/wire.cpp
  PUBLIC elrun::sim_cores
  PRIVATE elrun_rendezvous_proto fmt::fmt)
# False losses of nodes that stand still for a while.
elrun_library(sim_stalls SOURCES support/sim/stalls.cpp PUBLIC elrun::sim_cores PRIVATE fmt::fmt)
elrun_simulates(sim_cores sim_job sim_stalls)
elrun_checks(elrun_sim_world)
target_compile_options(elrun_sim_scale PRIVATE ${ELRUN_QUICK_TO_COMPILE})  # protobuf brings -pthread, and then no precompiled headers serve

# The planted copies as objects: from archives, the linker may take the product's, which come with the job.
elrun_executable(elrun_sim SOURCES sim/main.cpp $<TARGET_OBJECTS:elrun_sim_cores> $<TARGET_OBJECTS:elrun_sim_job> LINK elrun::sim_world elrun::sim_scale elrun::sim_stalls Threads::Threads)
elrun_checks(elrun_sim)

# The long campaign is `elrun_sim --seeds 5000 --nodes 5`.
add_test(NAME sim_seeds COMMAND elrun_sim --seeds 500 --nodes 5)
add_test(NAME sim_regressions COMMAND elrun_sim --regressions ${CMAKE_CURRENT_SOURCE_DIR}/sim/regressions.txt)
add_test(NAME sim_planted COMMAND elrun_sim --planted all --nodes 5)
add_test(NAME sim_scale COMMAND elrun_sim --scale 1000)
# The long count is `elrun_sim --stalls`.
add_test(NAME sim_stalls COMMAND elrun_sim --stalls --node-hours 20 --world Azure --times 1000)
add_test(NAME sim_cut_seeds COMMAND elrun_sim --cut --seeds 200 --nodes 5)
add_test(NAME sim_cut_regressions COMMAND elrun_sim --cut --regressions ${CMAKE_CURRENT_SOURCE_DIR}/sim/cut_regressions.txt)
add_test(NAME sim_cut_planted COMMAND elrun_sim --cut --planted all --seeds 200 --nodes 5)
set_tests_properties(sim_seeds sim_regressions sim_planted sim_scale sim_stalls sim_cut_seeds sim_cut_regressions sim_cut_planted PROPERTIES LABELS simulation TIMEOUT 300)
if(NOT ELRUN_SANITIZE)  # half a minute of two processors as it is; the seeds go the same ways
  add_test(NAME sim_exhaustive COMMAND elrun_sim --exhaustive --states 50000)  # three of the five searches are whole; all are with run.sh --full
  # Workers that run the product's Job. The long ones are `elrun_sim --job --seeds 20000 --nodes 5` and `elrun_sim --job --exhaustive`.
  add_test(NAME sim_job_seeds COMMAND elrun_sim --job --seeds 1000 --nodes 5)
  add_test(NAME sim_job_regressions COMMAND elrun_sim --job --regressions ${CMAKE_CURRENT_SOURCE_DIR}/sim/job_regressions.txt)
  add_test(NAME sim_job_planted COMMAND elrun_sim --job --planted all --seeds 6000 --nodes 5)
  add_test(NAME sim_job_cut_seeds COMMAND elrun_sim --job --cut --seeds 200 --nodes 5)
  add_test(NAME sim_job_cut_regressions COMMAND elrun_sim --job --cut --regressions ${CMAKE_CURRENT_SOURCE_DIR}/sim/job_cut_regressions.txt)
  add_test(NAME sim_job_cut_planted COMMAND elrun_sim --job --cut --planted all --seeds 600 --nodes 5)
  add_test(NAME sim_job_crashes COMMAND elrun_sim --job --exhaustive --crashes 1)
  # Of the crashes of whole nodes. The others are `elrun_sim --job --exhaustive --crashes 1 --nodes-die --world mirrored`.
  add_test(NAME sim_job_node_crashes COMMAND elrun_sim --job --exhaustive --crashes 1 --nodes-die --world "three workers of two nodes, optimizer mirrored")
  set_tests_properties(sim_exhaustive sim_job_seeds sim_job_regressions sim_job_planted sim_job_cut_seeds sim_job_cut_regressions sim_job_cut_planted sim_job_crashes sim_job_node_crashes PROPERTIES LABELS simulation TIMEOUT 1800)
endif()
if(TARGET elrun_launcher AND TARGET elrun)
  add_test(NAME sim_planted_absent COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/sim/planted_absent.sh
    $<TARGET_FILE:elrun_sim> $<TARGET_FILE:elrun_launcher> $<TARGET_FILE:elrun>)
  set_tests_properties(sim_planted_absent PROPERTIES LABELS simulation TIMEOUT ${ELRUN_TEST_TIMEOUT_MIN})
endif()

# Checkpoints have a simulator of their own: what decides about them, with bugs that can be switched on, in the place of the product's.
elrun_simulated(checkpoint_sim_sources checkpoint_core checkpoint_io)
elrun_library(checkpoint_sim_cores SOURCES ${checkpoint_sim_sources} PUBLIC elrun::base PRIVATE nlohmann_json::nlohmann_json)
target_compile_definitions(elrun_checkpoint_sim_cores PRIVATE ELRUN_PLANTED_BUGS="tests/support/sim/checkpoint_bugs.hpp")
elrun_simulates(checkpoint_sim_cores)
elrun_test(checkpoint_sim SOURCES property/checkpoint_sim.cpp support/sim/checkpoint_place.cpp support/sim/checkpoint_truth.cpp support/sim/checkpoint_world.cpp $<TARGET_OBJECTS:elrun_checkpoint_sim_cores>
  LINK elrun_checkpoint_test_support LABELS simulation TIMEOUT 700)
if(TARGET checkpoint_sim)
  target_compile_definitions(checkpoint_sim PRIVATE ELRUN_PLANTED_BUGS="tests/support/sim/checkpoint_bugs.hpp")
  target_compile_options(checkpoint_sim PRIVATE ${ELRUN_QUICK_TO_RUN})
endif()
