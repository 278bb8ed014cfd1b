# elrun_proto(name file.proto): generated messages and gRPC stubs in the build tree, as the object library elrun_<name>.
# Warnings are off there: the code is not ours.
find_program(ELRUN_PROTOC protoc REQUIRED)
find_program(ELRUN_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)

function(elrun_proto name file)
  get_filename_component(stem ${file} NAME_WE)
  get_filename_component(source ${file} ABSOLUTE)
  get_filename_component(folder ${source} DIRECTORY)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/generated)
  file(MAKE_DIRECTORY ${out})
  set(generated ${out}/${stem}.pb.cc ${out}/${stem}.grpc.pb.cc)
  add_custom_command(
    OUTPUT ${generated} ${out}/${stem}.pb.h ${out}/${stem}.grpc.pb.h
    COMMAND ${ELRUN_PROTOC} --proto_path=${folder} --cpp_out=${out} --grpc_out=${out}
            --plugin=protoc-gen-grpc=${ELRUN_GRPC_PLUGIN} ${source}
    DEPENDS ${source} VERBATIM)
  add_library(elrun_${name} STATIC ${generated})
  target_compile_options(elrun_${name} PRIVATE -w)
  target_include_directories(elrun_${name} SYSTEM PUBLIC ${out})
  target_link_libraries(elrun_${name} PUBLIC protobuf::libprotobuf gRPC::grpc++)
endfunction()
