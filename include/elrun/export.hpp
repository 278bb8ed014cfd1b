#pragma once
/// \file Marks what libelrun exports. Everything else in the library is hidden: it is a guest in the user's process.

// Strings and vectors are part of what libelrun and a program hand each other, so both have the same ones. A program with others would link, and then read
// beyond a Plan's end.
#include <cstddef>  // which of them this program has
#ifdef _LIBCPP_VERSION
#error "libelrun has the strings and vectors of libstdc++: compile without -stdlib=libc++"
#elif defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#error \
    "libelrun has the string of libstdc++'s new ABI: compile without -D_GLIBCXX_USE_CXX11_ABI=0 (libtorch is to be had with that ABI, too)"
#elif defined(_GLIBCXX_DEBUG)
#error "libelrun has the vectors of a usual build: compile with -D_GLIBCXX_ASSERTIONS in place of -D_GLIBCXX_DEBUG, which makes them larger"
#endif

#define ELRUN_API __attribute__((visibility("default")))
