# What `cmake --build build --target package` makes: made and looked at by any user, installed and used in empty roots by root.
if(TARGET elrun AND TARGET elrun_launcher AND NOT ELRUN_SANITIZE AND PROJECT_IS_TOP_LEVEL)
  set(made ${PROJECT_BINARY_DIR}/packages-test)
  add_test(NAME package_make_test COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/packages/make.sh ${PROJECT_BINARY_DIR} ${made})
  add_test(NAME package_roots_test COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/packages/roots.sh ${made} ${PROJECT_BINARY_DIR}/package-roots)
  set_tests_properties(package_make_test PROPERTIES FIXTURES_SETUP packages TIMEOUT 600)
  set_tests_properties(package_roots_test PROPERTIES FIXTURES_REQUIRED packages TIMEOUT 3600)
  set_tests_properties(package_make_test package_roots_test PROPERTIES LABELS packages SKIP_RETURN_CODE 77)

  # elrun's tree as a part of another project.
  add_test(NAME subdirectory_test COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/packages/subdirectory.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/subdirectory-test
    ${CMAKE_COMMAND} ${CMAKE_GENERATOR} ${CMAKE_CXX_COMPILER})
  set_tests_properties(subdirectory_test PROPERTIES LABELS packages TIMEOUT 3600)

  add_test(NAME configure_test COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/packages/configure.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/configure-test
    ${CMAKE_COMMAND} ${CMAKE_GENERATOR} ${CMAKE_CXX_COMPILER})
  set_tests_properties(configure_test PROPERTIES LABELS packages TIMEOUT 600)

  # A Job in a process with another fmt, protobuf, OpenSSL and zlib; and with PyTorch, where it is installed.
  add_library(elrun_neighbour SHARED packages/neighbours/job.cpp)
  target_link_libraries(elrun_neighbour PRIVATE elrun::elrun)
  add_library(elrun_foreign SHARED packages/neighbours/foreign.cpp)
  target_link_libraries(elrun_foreign PRIVATE fmt::fmt)
  add_executable(neighbours packages/neighbours/program.cpp)
  target_link_libraries(neighbours PRIVATE elrun_neighbour fmt::fmt protobuf::libprotobuf)
  target_compile_features(neighbours PRIVATE cxx_std_20)
  set_target_properties(elrun_neighbour elrun_foreign neighbours PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  set(bare ${CMAKE_COMMAND} -E env --unset=RANK --unset=WORLD_SIZE --unset=MASTER_ADDR --unset=MASTER_PORT --unset=ELRUN_SOCKET)
  add_test(NAME neighbours_test COMMAND ${bare} $<TARGET_FILE:neighbours>)
  add_test(NAME neighbours_foreign_test COMMAND ${bare} LD_PRELOAD=$<TARGET_FILE:elrun_foreign> $<TARGET_FILE:neighbours> --job-only)
  set_tests_properties(neighbours_test neighbours_foreign_test PROPERTIES LABELS packages TIMEOUT ${ELRUN_TEST_TIMEOUT_MIN})
  find_program(ELRUN_SYSTEM_PYTHON3 python3 PATHS /usr/bin NO_DEFAULT_PATH)
  set(python $ENV{ELRUN_TORCH_PYTHON} ${ELRUN_SYSTEM_PYTHON3} ${ELRUN_PYTHON3})
  if(python)
    list(GET python 0 python)
    add_test(NAME neighbours_torch_test COMMAND ${bare} ${python} -B ${CMAKE_CURRENT_SOURCE_DIR}/packages/neighbours/beside_torch.py $<TARGET_FILE:elrun_neighbour>)
    set_tests_properties(neighbours_torch_test PROPERTIES LABELS packages TIMEOUT 600 SKIP_RETURN_CODE 77)
  endif()
endif()
