#pragma once
/// \file The one include of Catch2: versions 2 and 3 name their headers differently.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
