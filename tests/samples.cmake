elrun_test(nn_math_test SOURCES unit/nn_math_test.cpp LINK elrun::nn LABELS unit)
elrun_test(nn_product_test SOURCES unit/nn_product_test.cpp LINK elrun::nn LABELS unit)
elrun_test(nn_layers_test SOURCES unit/nn_layers_test.cpp LINK elrun::nn LABELS unit TIMEOUT 300)

if(TARGET elrun_nn_device AND TARGET elrun_fakegpu)
  elrun_twins(elrun_nn_twins SOURCES ${PROJECT_SOURCE_DIR}/samples/nn/device_layers.cu)
  add_executable(gpt_on_fake_devices ${PROJECT_SOURCE_DIR}/samples/gpt/main.cpp ${PROJECT_SOURCE_DIR}/samples/gpt/model.cpp)
  set_target_properties(gpt_on_fake_devices PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests ELRUN_FAKE_DEVICES ON)
  target_compile_definitions(gpt_on_fake_devices PRIVATE GPT_ON_DEVICES)
  target_link_libraries(gpt_on_fake_devices PRIVATE elrun_build_flags elrun::gpt_core elrun::nn_device elrun_on_fake_devices elrun_fakegpu)
  elrun_link_twins(gpt_on_fake_devices elrun_nn_twins)
  elrun_devices_test(gpt_devices_test SOURCES devices/gpt_devices_test.cpp TIMEOUT 600)
  add_dependencies(gpt_devices_test gpt gpt_on_fake_devices flat_after elrun_launcher)
  elrun_devices_test(nn_device_test SOURCES devices/nn_device_test.cpp LINK elrun::nn_device elrun::device TWINS elrun_nn_twins SEEDS 1 2)
endif()

elrun_bench(gemm_bench SOURCES bench/gemm_bench.cpp LINK elrun::nn ${CMAKE_DL_LIBS})

elrun_test(text_test SOURCES unit/text_test.cpp unit/text_options_test.cpp LINK elrun::gpt_core elrun::data LABELS unit)

elrun_test(mnist_test SOURCES unit/mnist_test.cpp LINK elrun::mnist_core elrun::data elrun::job elrun::link fmt::fmt LABELS unit TIMEOUT 300)
