add_library(elrun_checkpoint_test_support STATIC support/faulty_files.cpp)
target_link_libraries(elrun_checkpoint_test_support PUBLIC elrun_test_support elrun::checkpoint_io PRIVATE elrun_build_flags)

elrun_test(checkpoint_test SOURCES unit/checkpoint_test.cpp
  LINK elrun_checkpoint_test_support nlohmann_json::nlohmann_json LABELS unit)
elrun_test(checkpoint_posix_test SOURCES unit/checkpoint_posix_test.cpp
  LINK elrun_checkpoint_test_support LABELS unit)
if(NOT ELRUN_SANITIZE STREQUAL "thread")  # one thread, and minutes of work: nothing that this sanitizer could see
elrun_test(checkpoint_property SOURCES property/checkpoint_property.cpp
  LINK elrun_checkpoint_test_support LABELS property TIMEOUT 600)
endif()

# With clang and -DELRUN_LIBFUZZER=ON the targets are fuzzers; otherwise a driver feeds them mutations by seed.
foreach(target manifest_fuzz safetensors_fuzz)
  if(ELRUN_LIBFUZZER)
    elrun_executable(${target} SOURCES fuzz/${target}.cpp LINK elrun::checkpoint_core nlohmann_json::nlohmann_json)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer)
  else()
    elrun_executable(${target} SOURCES fuzz/${target}.cpp fuzz/driver.cpp LINK elrun::checkpoint_core nlohmann_json::nlohmann_json)
    add_test(NAME ${target} COMMAND ${target} 20000)
    set_tests_properties(${target} PROPERTIES LABELS fuzz TIMEOUT 120)
  endif()
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endforeach()
