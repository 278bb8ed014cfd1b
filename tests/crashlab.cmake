# The crash laboratory: what a power loss, a failing disk and kill -9 leave behind of checkpoints, on real file systems. crashlab/README.md has what it needs.
if(TARGET elrun_checkpoint_test_support AND NOT ELRUN_SANITIZE)  # its processes and file systems are the system's; the code is that of checkpoint_property
  elrun_test(crashlab_blocks_test SOURCES crashlab/crashlab_blocks_test.cpp crashlab/block_log.cpp
    LINK elrun_checkpoint_test_support LABELS crashlab TIMEOUT 900)
  if(TARGET gpt AND TARGET elrun_launcher)
    add_library(elrun_failing_storage SHARED crashlab/failing_storage.cpp)
    target_link_libraries(elrun_failing_storage PRIVATE elrun_build_flags ${CMAKE_DL_LIBS})
    set_target_properties(elrun_failing_storage PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    elrun_test(crashlab_programs_test SOURCES crashlab/crashlab_programs_test.cpp crashlab/crashlab_hung_storage_test.cpp LINK nlohmann_json::nlohmann_json LABELS crashlab grpc TIMEOUT 900)
    if(TARGET crashlab_programs_test)
      add_dependencies(crashlab_programs_test gpt elrun_launcher elrun_failing_storage)
    endif()
  endif()
endif()
