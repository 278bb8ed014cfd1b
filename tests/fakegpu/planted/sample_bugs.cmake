# Bugs planted in the samples' kernels, and in what waits for them (product_bugs.cmake says how). The copies of the kernels are the twins of planted_samples_test;
# that of device_engine.cpp is compiled into it. `void()` in place of a call leaves it out.
set(planted_set samples)

# Products: barriers, what lies beyond the rims, and who owns a tile.
set(file samples/nn/device_kernels.cuh)
plant(${file} 1 "__syncthreads()" "void()" "extent.k, right);
      __syncthreads()")
plant(${file} 2 "__syncthreads()" "void()" "      }
      __syncthreads()")
plant(${file} 3 "begin + p < k" "true")
plant(${file} 4 "first + i < rows" "true")
plant(${file} 5 "i + 16 * m < extent.rows" "true" "if (i + 16 * m < extent.rows &&")
plant(${file} 6 "j + 16 * n < extent.columns" "true" "j + 16 * n < extent.columns) c(")
plant(${file} 7 "number / across % down * tile" "std::size_t{0}")
plant(${file} 8 "i < count" "i <= count")

# Convolutions and pooling: rims, groups that are not full, and the first of equal pixels.
set(file samples/nn/device_conv.cu)
plant(${file} 9 "row >= window - 1 + out_height" "false")
plant(${file} 10 "column >= window - 1 + out_width" "false")
plant(${file} 11 "first + group < images ? first + group : images" "first + group" "first + group < images ? first + group : images;
    float sum = 0;
    for (std::size_t e = first * outputs + i % channels; e < last * outputs; e += channels) sum = sum + dy[e]")
plant(${file} 12 "first + group < images ? first + group : images" "first + group" "first + group < images ? first + group : images;
    float sum = 0;
    for (std::size_t e = first * outputs + i % channels; e < last * outputs; e += channels) sum = sum + let_through")
plant(${file} 13 "other > best" "other >= best")
plant(${file} 14 "chosen[i] == static_cast<float>(k)" "true")
plant(${file} 15 "best * dropout.factor(i)" "best")
plant(${file} 16 "places - 1 - tap / out" "tap / out")

# Rows: who writes, rows that are not there, whole rows, and who owns a sum.
set(file samples/nn/device_layers.cu)
plant(${file} 17 "row < rows ? body.length(row) : 0" "body.length(row)")
plant(${file} 18 "lane.leads()" "true" "if (lane.leads()) losses[row]")
plant(${file} 19 "i < lane.n" "i < lane.n - lane.n % lanes" "i < lane.n; i += lanes) squares")
plant(${file} 20 "static_cast<std::size_t>(ids[r]) != token" "static_cast<std::size_t>(ids[r]) % 2 != token % 2")
plant(${file} 21 "i < context" "false" "i < context; i += lanes) dq")
plant(${file} 22 "r * apart + i" "r * apart")
plant(${file} 23 "target % lanes == lane.index" "lane.index == 0")

# What the host copies, frees and awaits.
set(file samples/nn/device_engine.cpp)
plant(${file} 24 "comes_to_an_end(native(stream_))" "true" "data_ != nullptr && comes_to_an_end(native(stream_))")
plant(${file} 25 "native(stream_)" "cudaStream_t{}" "ids.size_bytes(), cudaMemcpyHostToDevice, native(stream_)")
plant(${file} 26 "native(stream_)" "cudaStream_t{}" "from.size_bytes(), cudaMemcpyHostToDevice, native(stream_)")
plant(${file} 27 "native(stream_)" "cudaStream_t{}" "cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, native(stream_)")
plant(${file} 28 "native(stream_)" "cudaStream_t{}" "cudaMemsetAsync(data, 0, count * sizeof(float), native(stream_)")

set(planted_folder ${CMAKE_CURRENT_BINARY_DIR}/planted_samples)
planted_copies(${planted_folder} planted_sources)
set(planted_kernels ${planted_sources})
list(FILTER planted_kernels INCLUDE REGEX "[.]cu$")
list(FILTER planted_sources INCLUDE REGEX "[.]cpp$")
elrun_twins(elrun_planted_sample_twins SOURCES ${planted_kernels})
target_include_directories(elrun_planted_sample_twins BEFORE PRIVATE ${planted_folder})
elrun_devices_test(planted_samples_test SOURCES fakegpu/planted/samples_test.cpp ${planted_sources} LINK elrun::nn_device elrun::device
  PRODUCT_TWINS elrun_planted_sample_twins)
