elrun_test(nn_math_test SOURCES unit/nn_math_test.cpp LINK elrun::nn LABELS unit)
elrun_test(nn_product_test SOURCES unit/nn_product_test.cpp LINK elrun::nn LABELS unit)
elrun_test(nn_layers_test SOURCES unit/nn_layers_test.cpp LINK elrun::nn LABELS unit TIMEOUT 300)

elrun_bench(gemm_bench SOURCES bench/gemm_bench.cpp LINK elrun::nn ${CMAKE_DL_LIBS})

elrun_test(text_test SOURCES unit/text_test.cpp unit/text_options_test.cpp LINK elrun::gpt_core elrun::data LABELS unit)

elrun_test(mnist_test SOURCES unit/mnist_test.cpp LINK elrun::mnist_core elrun::data elrun::job elrun::link fmt::fmt LABELS unit TIMEOUT 300)
