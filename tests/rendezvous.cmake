elrun_test(store_core_test SOURCES unit/store_core_test.cpp LINK elrun::link_core LABELS unit)
elrun_test(store_property_test SOURCES property/store_property_test.cpp LINK elrun::link_core LABELS property)
elrun_test(round_test SOURCES unit/round_test.cpp LINK elrun::rendezvous_core LABELS unit)
elrun_test(grpc_link_test SOURCES process/grpc_link_test.cpp LINK elrun::rendezvous_net LABELS "process;grpc")
