# Bugs planted in what a job does with devices (product_bugs.cmake says how): waits, records, buffers and devices. The copies are compiled into planted_job_test, so the linker does
# not look for the right ones. `void()` in place of a call leaves it out.
set(planted_set job)

# A device's memory: what the host takes before it is there, writes before it was read, and frees while it is used.
set(file lib/device/device_memory.cpp)
plant(${file} 1 [[wait(done_, "a hash")]] "void()")
plant(${file} 2 "runtime::fill_async(sum, std::byte{0}, stream())" "void()")
plant(${file} 3 "done_.record(stream())" "void()" "runtime::copy_async(sum, word_.span(), stream());
    done_.record(stream())")
plant(${file} 4 [[wait(half.free, "a copy between host and device")]] "void()")
plant(${file} 5 "half.free.record(stream)" "void()" "half.memory.span().first(bytes), run.subspan(begin, bytes), stream);
      half.free.record(stream)")
plant(${file} 6 [[wait(before->free, "a copy from the device")]] "void()")
plant(${file} 7 "half.free.record(stream)" "void()" "half.memory.span().first(bytes), stream);
      half.free.record(stream)")
plant(${file} 8 "freed_.push_back(memory)" "runtime::free(memory)")
plant(${file} 9 "!idle.ok() || *idle" "true")
plant(${file} 10 "runtime::fill_async({static_cast<std::byte*>(memory), bytes}, std::byte{0}, stream())" "void()")
plant(${file} 11 "device_" "Device{DeviceKind::cuda, 1 - device_.index}" "current{device_};
    runtime::copy_async(from, to, stream())")
plant(${file} 12 "begin * sizeof(bf16)" "begin * sizeof(float)")

# Exchanges through pinned memory, and their blocks.
set(file lib/job/arrays/staged_exchange.cpp)
plant(${file} 13 [[wait(out_.used(), "what is to be sent", call)]] "Result<void>{}")
plant(${file} 14 "out_.record(call.stream)" "void()")
plant(${file} 15 "in_.record(call.stream)" "void()")
plant(${file} 16 "runtime::copy_async(run, at, call.stream)" "void()")
plant(${file} 38 [[wait(in_.used(), "what came before", call)]] "Result<void>{}")
plant(lib/job/arrays/pinned_blocks.cpp 17 "offset_ += taken.size()" "offset_ += 0")
plant(lib/job/arrays/pinned_blocks.cpp 18 "blocks_.empty()" "true" "if (blocks_.empty()) return")

# By NCCL: what an abort left is not to be read.
plant(lib/job/arrays/collective_exchange.cpp 19 "runtime::fill_async(run, std::byte{0}, call.stream)" "void()")

# The program's streams and the job's.
set(file lib/job/arrays/program_streams.cpp)
plant(${file} 20 "event_.record(before)" "void()")
plant(${file} 21 "wait_in(after, event_.view())" "void()")
plant(${file} 22 "streams.end(loss.stream)" "void()")
set(file lib/job/unit_uses.cpp)
plant(${file} 23 "job_.streams.begin(stream)" "void()" "job_.phase(), job_.step.own_slot());
  job_.streams.begin(stream)")
plant(${file} 24 "job_.streams.end(stream)" "void()" "try {
    job_.streams.end(stream)")
plant(${file} 25 "job_.streams.end(stream)" "void()" "for (const Stream stream : unit.program_streams) job_.streams.end(stream);
  // On the host")
plant(${file} 26 "job_.streams.begin(stream)" "void()" "for (const Stream stream : unit.program_streams) job_.streams.begin(stream)")

# Buffers of weights and of leaf gradients.
plant(lib/job/state/unit_buffers.hpp 27 "free_.pop_back()" "void()")
set(file lib/job/state/parameters.cpp)
plant(${file} 28 "memory_.copy(std::as_bytes(own(p)), std::as_writable_bytes(in_buffer(p)))" "void()")
plant(${file} 29 "memory_.copy(std::as_bytes(in_buffer(p)), std::as_writable_bytes(own(p)))" "void()")
set(file lib/job/gradients/leaf_memory.cpp)
plant(${file} 30 "rounds_.get().copy(std::as_bytes(std::span{at_[unit].leaf + begin, count}), std::as_writable_bytes(std::span{mine, count}))" "void()")
plant(${file} 31 "rank * shapes_.taken(of(unit).part())" "std::uint64_t{0}" "return rank * shapes_.taken(of(unit).part())")
set(file lib/job/gradients/leaf_stream.cpp)
plant(${file} 32 "memory_->fill_with_zeros(std::as_writable_bytes(whole_leaf(unit)))" "void()")
plant(${file} 33 "++here_[unit] == busy()" "++here_[unit] == 1")
plant(${file} 34 "memory_->pack_to_bf16(whole_leaf(unit))" "void()")
plant(lib/job/gradients/gradients.cpp 35 "memory_->pack_to_bf16({leaf, space_})" "void()")
plant(lib/job/gradients/gradients.cpp 36 "memory_->round_to_bf16({leaf(i), space_})" "void()")
plant(lib/job/gradients/reducer.cpp 37 "memory_->fill_with_zeros(std::as_writable_bytes(std::span{whole(slot) + run.begin, run.end - run.begin}))" "void()")

# Weights in bf16.
plant(lib/job/state/rounded_units.cpp 39 "in.to_bf16(masters, out)" "void()")
plant(lib/job/state/rounded_units.cpp 40 "memory_->to_bf16(masters, unit(p.unit).subspan(p.begin, p.size()))" "void()")

# What rounds do beside the job's stream, with overlap.
set(file lib/job/arrays/rounds_memory.cpp)
plant(${file} 41 "mark.at_.record(jobs_.stream())" "void()")
plant(${file} 42 "wait_in(jobs_.stream(), done_.view())" "void()")
plant(${file} 43 "done_.record(beside_->stream())" "void()")
set(file lib/job/gather/phase_rounds.cpp)
plant(${file} 44 "state_changed()" "void()" "entered_ = phase;
  state_changed()")
plant(${file} 45 "memory_.mark(marks_.weights[unit])" "void()")
plant(${file} 46 "memory_.mark(marks_.leaves[unit])" "void()")
plant(${file} 49 "asked_for_[unit] = false" "asked_for_[unit] = true")
plant(lib/job/gather/round_exchange.cpp 47 "moves.memory.wait_for(moves.marks.state)" "void()")
plant(lib/job/gather/round_exchange.cpp 48 "moves.memory.show_to_job()" "void()")

planted_copies(${CMAKE_CURRENT_BINARY_DIR}/planted_job planted_sources)
# The rest of these libraries is linked as it is (elrun_library says how).
get_property(planted GLOBAL PROPERTY elrun_planted_job)
list(FILTER planted INCLUDE REGEX "[.]cpp$")
list(REMOVE_DUPLICATES planted)
set(listed "")
foreach(library device job)
  get_target_property(sources elrun_${library} ELRUN_ON_DEVICES)
  list(APPEND listed ${sources})
endforeach()
list(TRANSFORM listed REPLACE "^${PROJECT_SOURCE_DIR}/" "")
list(SORT planted)
list(SORT listed)
if(NOT planted STREQUAL listed)
  message(FATAL_ERROR "The sources with planted bugs are not those that CMakeLists.txt of lib/device and lib/job list as ON_DEVICES:\n${planted}\n${listed}")
endif()
elrun_devices_test(planted_job_test SOURCES fakegpu/planted/job_test.cpp ${planted_sources} LINK elrun::job elrun::link fmt::fmt ENVIRONMENT FAKEGPU_DEVICES=3 FAKEGPU_PROGRESS=lazy
  TIMEOUT 600)
target_include_directories(planted_job_test BEFORE PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/planted_job)
add_dependencies(planted_job_test elrun_fake_nccl)
