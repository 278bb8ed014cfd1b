# Bugs planted in the samples' kernels in bf16, and in what waits for them (product_bugs.cmake says how). The copies of the kernels are the twins of planted_bf16_test; that of
# bf16_engine.cpp is compiled into it. `void()` in place of a call leaves it out.
set(planted_set bf16)

# Rows and sums over rows: who writes, where parts end, and which block owns a token.
set(file samples/nn/bf16_layers.cu)
plant(${file} 1 "row % context * channels" "row * channels")
plant(${file} 2 "lane == 0" "true" "if (lane == 0) mean[row]")
plant(${file} 3 "part * part_rows + part_rows < rows ? part * part_rows + part_rows : rows" "part * part_rows + part_rows")
plant(${file} 4 "p < parts" "p + 1 < parts")
plant(${file} 5 "r < rows" "r + positions < rows" "r < rows; r += positions")
plant(${file} 6 "__syncthreads_or(before)" "false")
plant(${file} 7 "__syncthreads()" "void()" "      }
    __syncthreads()")
plant(${file} 8 "__syncthreads()" "void()" "= found;
    __syncthreads()")
plant(${file} 9 "r < rows && ids[r] == id" "ids[r] == id")

# Cross-entropy, which fetches the next row beside the computing: waits, the two halves of shared memory, and rows that are not there.
plant(${file} 10 "wait_for_copies<1>()" "wait_for_copies<2>()")
plant(${file} 11 "__syncthreads()" "void()" "= seen;
    __syncthreads()")
plant(${file} 12 "turn" "0u" "of_warp[turn][threadIdx.x / warp]")
plant(${file} 12 "turn" "0u" "of_warp[turn][lane]")
plant(${file} 13 "row < rows" "true" "if (row < rows)
")
plant(${file} 14 "turn ^ 1" "turn" "fetch(row + gridDim.x, turn ^ 1)")
plant(${file} 15 "lane < blockDim.x / warp" "true")
plant(${file} 16 "target - i < 8" "true" "if (target - i < 8) losses[row]")
plant(${file} 17 "__syncthreads()" "void()" "= sum;
  __syncthreads()")

# Attention: barriers before and behind each load of a tile, rows that are not there, the future, and who writes.
set(file samples/nn/bf16_attention.cu)
plant(${file} 18 "first + row < rows" "true")
plant(${file} 19 "__syncthreads()" "void()" "total[2] = {};
  for (unsigned t = 0; t <= place.tile_number; ++t) {
    __syncthreads()")
plant(${file} 20 "__syncthreads()" "void()" "__syncthreads();
    float s[pairs_of_eight]")
plant(${file} 21 "column_of(n, i) > row_of(i)" "false")
plant(${file} 22 "exp2_fast((top[r] - m) * scale)" "1.0f")
plant(${file} 23 "threadIdx.x % 4 == 0" "true")
plant(${file} 24 "row >= rows" "false")
plant(${file} 25 "threadIdx.x % 32 == 0" "true")
plant(${file} 26 "row < context" "true" "log_of[i] = row < context")
plant(${file} 27 "__syncthreads()" "void()" "t < place.tiles; ++t) {
    __syncthreads()")
plant(${file} 28 "__syncthreads()" "void()" "__syncthreads();
    float p[pairs_of_eight][4] = {}, dp[pairs_of_eight][4] = {};
    times_rows<size>(p, keys")
plant(${file} 29 "row_of(i) <= column_of(n, i)" "true")
plant(${file} 30 "row < context" "true" "log[r] = row < context")
plant(${file} 31 "__syncthreads()" "void()" "}
  for (unsigned t = 0; t <= place.tile_number; ++t) {
    __syncthreads()")
plant(${file} 32 "__syncthreads()" "void()" "__syncthreads();
    float p[pairs_of_eight][4] = {}, dp[pairs_of_eight][4] = {};
    times_rows<size>(p, queries")
plant(${file} 33 "column_of(n, i) <= row_of(i)" "true")

# What the host copies, and on which stream.
set(file samples/nn/bf16_engine.cpp)
plant(${file} 34 "native(stream_)" "cudaStream_t{}" "cudaMemcpyHostToDevice, native(stream_)")
plant(${file} 35 "native(stream_)" "cudaStream_t{}" "values.size() * sizeof(elrun::bf16), cudaMemcpyDeviceToHost, native(stream_)")
plant(${file} 36 "native(stream_)" "cudaStream_t{}" "to.size_bytes(), cudaMemcpyDeviceToHost, native(stream_)")
plant(${file} 37 "native(stream_)" "cudaStream_t{}" "cudaMemsetAsync(data, 0, count * sizeof(elrun::bf16), native(stream_)")

set(planted_folder ${CMAKE_CURRENT_BINARY_DIR}/planted_bf16)
planted_copies(${planted_folder} planted_sources)
set(planted_kernels ${planted_sources})
list(FILTER planted_kernels INCLUDE REGEX "[.]cu$")
list(FILTER planted_sources INCLUDE REGEX "[.]cpp$")
foreach(file device_conv.cu device_layers.cu)  # as they are: the program has their kernels, too
  list(APPEND planted_kernels ${PROJECT_SOURCE_DIR}/samples/nn/${file})
endforeach()
elrun_twins(elrun_planted_bf16_twins SOURCES ${planted_kernels})
elrun_devices_test(planted_bf16_test SOURCES fakegpu/planted/bf16_test.cpp ${planted_sources} LINK elrun::nn_bf16 elrun::device
  PRODUCT_TWINS elrun_planted_bf16_twins ENVIRONMENT FAKEGPU_MULTIPROCESSORS=1)
add_dependencies(planted_bf16_test elrun_fake_cublas_lt)
