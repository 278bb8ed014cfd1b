elrun_test(base_test SOURCES unit/base_test.cpp unit/memory_left_test.cpp LINK elrun::base LABELS unit)
