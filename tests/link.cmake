elrun_test(message_test SOURCES unit/message_test.cpp LINK elrun::link_core LABELS unit)
elrun_test(surroundings_test SOURCES unit/surroundings_test.cpp LINK elrun::link_core LABELS unit)
