elrun_test(data_test SOURCES unit/data_test.cpp unit/loader_test.cpp LINK elrun::data ZLIB::ZLIB LABELS unit)
elrun_fuzzer(idx_fuzz LINK elrun::data ZLIB::ZLIB)
