# What libelrun carries of the libraries that it uses, so that it needs none of them on the machine where it runs, whatever its release: fmt, and OpenSSL
# and zlib as archives. The C++ library stays the system's: exceptions and values of std pass between libelrun and the program.

# elrun_fmt: fmt's own functions, for what links no libfmt.
add_library(elrun_fmt OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/lib/base/fmt_static.cpp)
target_link_libraries(elrun_fmt PRIVATE elrun_build_flags)
target_include_directories(elrun_fmt SYSTEM PRIVATE $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_options(elrun_fmt PRIVATE -fno-inline)  # what other files call must be there to be called

# elrun_carried: the archives, or the shared libraries where a system has no archives that a shared library can take in. The archives are those beside the
# shared libraries that were found, and so of the same version as the headers: OPENSSL_ROOT_DIR, for example, names another OpenSSL than the system's.
add_library(elrun_carried INTERFACE)
set(ELRUN_BESIDE_LINKED "")  # -L of their folders, for what is linked by name
function(elrun_beside variable library)  # what find_library looks for in the folder of the library, if there is one, and nowhere else
  cmake_path(GET library PARENT_PATH folder)
  set(${variable} "" PARENT_SCOPE)
  if(folder)
    set(${variable} PATHS ${folder} NO_DEFAULT_PATH PARENT_SCOPE)
    set(ELRUN_BESIDE_LINKED ${ELRUN_BESIDE_LINKED} -L${folder} PARENT_SCOPE)
  endif()
endfunction()
elrun_beside(ELRUN_BESIDE_OPENSSL "${OPENSSL_CRYPTO_LIBRARY}")
elrun_beside(ELRUN_BESIDE_ZLIB "${ZLIB_LIBRARY_RELEASE}")
find_library(ELRUN_CRYPTO_ARCHIVE libcrypto.a ${ELRUN_BESIDE_OPENSSL})
find_library(ELRUN_ZLIB_ARCHIVE libz.a ${ELRUN_BESIDE_ZLIB})
mark_as_advanced(ELRUN_CRYPTO_ARCHIVE ELRUN_ZLIB_ARCHIVE)
if(ELRUN_CRYPTO_ARCHIVE AND ELRUN_ZLIB_ARCHIVE)
  include(CheckCXXSourceCompiles)
  set(CMAKE_POSITION_INDEPENDENT_CODE OFF)  # CMake's -fPIE, for it is a program to CMake, would come behind -fPIC
  set(CMAKE_REQUIRED_FLAGS -fPIC)
  set(CMAKE_REQUIRED_INCLUDES ${OPENSSL_INCLUDE_DIR} ${ZLIB_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_LINK_OPTIONS -shared ${ELRUN_NO_UNDEFINED} LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/libelrun.map)
  set(CMAKE_REQUIRED_LIBRARIES ${ELRUN_CRYPTO_ARCHIVE} ${ELRUN_ZLIB_ARCHIVE})
  check_cxx_source_compiles("#define OPENSSL_SUPPRESS_DEPRECATED
    #include <openssl/crypto.h>
    #include <openssl/sha.h>
    #include <zlib.h>
    int main() { SHA256_CTX state; return SHA256_Init(&state) + CRYPTO_memcmp(&state, &state, 1) + inflate(nullptr, 0); }" ELRUN_ARCHIVES_FIT)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  unset(CMAKE_REQUIRED_FLAGS)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()
if(ELRUN_ARCHIVES_FIT)
  message(STATUS "elrun: libelrun carries ${ELRUN_CRYPTO_ARCHIVE} and ${ELRUN_ZLIB_ARCHIVE}")
  target_include_directories(elrun_carried SYSTEM INTERFACE ${OPENSSL_INCLUDE_DIR} ${ZLIB_INCLUDE_DIRS})
  target_link_libraries(elrun_carried INTERFACE ${ELRUN_CRYPTO_ARCHIVE} ${ELRUN_ZLIB_ARCHIVE})
else()
  message(STATUS "elrun: libelrun needs libcrypto and libz where it runs: beside those that were found are no libcrypto.a and libz.a that a shared library can link")
  target_link_libraries(elrun_carried INTERFACE OpenSSL::Crypto ZLIB::ZLIB)
endif()
