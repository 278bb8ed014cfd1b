add_library(elrun_checkpoint_test_support STATIC support/faulty_files.cpp)
target_link_libraries(elrun_checkpoint_test_support PUBLIC elrun_test_support elrun::checkpoint_io PRIVATE elrun_build_flags)

elrun_test(checkpoint_test SOURCES unit/checkpoint_test.cpp
  LINK elrun_checkpoint_test_support nlohmann_json::nlohmann_json LABELS unit)
elrun_test(checkpoint_property SOURCES property/checkpoint_property.cpp
  LINK elrun_checkpoint_test_support LABELS property)
