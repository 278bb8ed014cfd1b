# Bugs planted in the product's own kernels. Copies of their sources are made in the build folder, with every bug in them; the program says by
# elrun_planted_bug() which one is there, 0 for none. Their twins take the place of the right ones in planted_product_test.
#
# plant(file number right wrong): bug `number` replaces the code `right`, which stands in `file` once, by `wrong`.
set(planted_folder ${CMAKE_CURRENT_BINARY_DIR}/planted_product)

function(plant file number right wrong)
  get_property(text GLOBAL PROPERTY "elrun_planted_${file}")
  if(NOT text)
    file(READ ${PROJECT_SOURCE_DIR}/kernels/${file} text)
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/${file})
    set_property(GLOBAL APPEND PROPERTY elrun_planted_files ${file})
  endif()
  string(FIND "${text}" "${right}" first)
  string(FIND "${text}" "${right}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "planted bug ${number}: kernels/${file} does not have exactly one\n${right}")
  endif()
  string(REPLACE "${right}" "(elrun_planted_bug() == ${number} ? (${wrong}) : (${right}))" text "${text}")
  set_property(GLOBAL PROPERTY "elrun_planted_${file}" "${text}")
endfunction()

# The optimizer phase: the end of a run, the test for alignment, the elements before the first border and behind the last, and which runs decay.
plant(update.cu 1 "at_tile < run.size ? at_tile : run.size" "at_tile")
plant(update.cu 2 "at.wide_after(before)" "true")
plant(update.cu 3 "t == 0 && threadIdx.x < first" "false")
plant(update.cu 4 "fours_end + threadIdx.x" "end")
plant(update.cu 5 "run.decays != 0" "run.decays == 0")
plant(tiles.hpp 6 "runs[middle].first_tile <= tile" "runs[middle].first_tile < tile")
# Folds and conversions: the tail, where groups begin, and the groups that are not whole bundles of loads.
plant(cuda/wide.cuh 7 "i < count - wide" "i < head")
plant(cuda/wide.cuh 8 "head + group * Body::width" "group * Body::width")
plant(cuda/wide.cuh 9 "g < groups" "false")
# Sums of squares: lanes that do not exchange, and the order in which they are added up.
plant(cuda/granule.cuh 10 "(threadIdx.x & 8u) != 0" "false")
plant(cuda/granule.cuh 11 "(threadIdx.x & 16u) != 0" "false")
plant(granule.cu 12 "lane == 0" "true")
# The canonical reduction: the order of operands, alignments, a granule that is not whole, where operands begin, who writes, and what is added.
plant(reduce.cu 13 "table.operands[first + k]" "table.operands[table.operand_count - 1 - first - k]")
plant(reduce.cu 14 "!on_border(from, 16)" "false")
plant(reduce.cu 15 "!on_border(from, 8)" "false")
plant(reduce.cu 16 "piece.size - begin >= granule" "true")
plant(reduce.cu 17 "operand.whole ? piece.whole : piece.part" "piece.part")
plant(reduce.cu 18 "sums != nullptr && lane == 0" "sums != nullptr")
plant(reduce.cu 19 "folded(value_[1], value_[0])" "folded(value_[depth - 1], value_[0])")
plant(reduce.cu 20 "on_border(to, 16)" "true")

get_property(files GLOBAL PROPERTY elrun_planted_files)
list(REMOVE_DUPLICATES files)
set(planted_sources)
foreach(file ${files})
  get_property(text GLOBAL PROPERTY "elrun_planted_${file}")
  file(CONFIGURE OUTPUT ${planted_folder}/kernels/${file} CONTENT "extern \"C\" int elrun_planted_bug();\n@text@" @ONLY)
  if(file MATCHES "[.]cu$")
    list(APPEND planted_sources ${planted_folder}/kernels/${file})
  endif()
endforeach()
foreach(file fold.cu convert.cu state_hash.cu)  # as they are, over the planted headers
  list(APPEND planted_sources ${PROJECT_SOURCE_DIR}/kernels/${file})
endforeach()
elrun_twins(elrun_planted_product_twins SOURCES ${planted_sources})
target_include_directories(elrun_planted_product_twins BEFORE PRIVATE ${planted_folder})
