elrun_test(nn_math_test SOURCES unit/nn_math_test.cpp LINK elrun::nn LABELS unit)
elrun_test(nn_product_test SOURCES unit/nn_product_test.cpp LINK elrun::nn LABELS unit)
elrun_test(nn_layers_test SOURCES unit/nn_layers_test.cpp LINK elrun::nn LABELS unit TIMEOUT 300)

add_executable(gemm_bench bench/gemm_bench.cpp)
set_target_properties(gemm_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_link_libraries(gemm_bench PRIVATE elrun_build_flags elrun::nn ${CMAKE_DL_LIBS})

elrun_test(text_test SOURCES unit/text_test.cpp unit/text_options_test.cpp LINK elrun::gpt_core LABELS unit)
