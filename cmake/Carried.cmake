# What libelrun carries of the libraries that it uses, so that it needs none of them on the machine where it runs, whatever its release: fmt, and OpenSSL
# and zlib as archives. The C++ library stays the system's: exceptions and values of std pass between libelrun and the program.

# elrun_fmt: fmt's own functions, for what links no libfmt.
add_library(elrun_fmt OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/lib/base/fmt_static.cpp)
target_link_libraries(elrun_fmt PRIVATE elrun_build_flags)
target_include_directories(elrun_fmt SYSTEM PRIVATE $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_options(elrun_fmt PRIVATE -fno-inline)  # what other files call must be there to be called

# elrun_carried: the archives, or the shared libraries where a system has no archives that a shared library can take in.
add_library(elrun_carried INTERFACE)
find_library(ELRUN_CRYPTO_ARCHIVE libcrypto.a)
find_library(ELRUN_ZLIB_ARCHIVE libz.a)
mark_as_advanced(ELRUN_CRYPTO_ARCHIVE ELRUN_ZLIB_ARCHIVE)
if(ELRUN_CRYPTO_ARCHIVE AND ELRUN_ZLIB_ARCHIVE)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -fPIC)
  set(CMAKE_REQUIRED_LINK_OPTIONS -shared ${ELRUN_NO_UNDEFINED} LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/libelrun.map)
  set(CMAKE_REQUIRED_LIBRARIES ${ELRUN_CRYPTO_ARCHIVE} ${ELRUN_ZLIB_ARCHIVE})
  check_cxx_source_compiles("#define OPENSSL_SUPPRESS_DEPRECATED
    #include <openssl/crypto.h>
    #include <openssl/sha.h>
    #include <zlib.h>
    int main() { SHA256_CTX state; return SHA256_Init(&state) + CRYPTO_memcmp(&state, &state, 1) + inflate(nullptr, 0); }" ELRUN_ARCHIVES_FIT)
  unset(CMAKE_REQUIRED_FLAGS)
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()
if(ELRUN_ARCHIVES_FIT)
  target_include_directories(elrun_carried SYSTEM INTERFACE ${OPENSSL_INCLUDE_DIR} ${ZLIB_INCLUDE_DIRS})
  target_link_libraries(elrun_carried INTERFACE ${ELRUN_CRYPTO_ARCHIVE} ${ELRUN_ZLIB_ARCHIVE})
else()
  message(STATUS "elrun: libelrun needs this system's libcrypto and libz where it runs: no libcrypto.a and libz.a that a shared library can link")
  target_link_libraries(elrun_carried INTERFACE OpenSSL::Crypto ZLIB::ZLIB)
endif()
