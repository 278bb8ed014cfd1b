#pragma once
/// \file ELRUN_PLANTED(name): literally `false` in the product. The simulator compiles the pure cores a second time and
/// names a header of its own in ELRUN_PLANTED_BUGS, where each name is a bug that one can switch on: it must be found.

#ifdef ELRUN_PLANTED_BUGS
#include ELRUN_PLANTED_BUGS
#else
#define ELRUN_PLANTED(name) false
#endif
