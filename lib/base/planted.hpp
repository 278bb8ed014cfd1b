#pragma once
/// \file ELRUN_PLANTED(name): literally `false` in the product. The simulator compiles the pure cores a second time and
/// names a header of its own in ELRUN_PLANTED_BUGS, where each name is a bug that one can switch on: it must be found.
/// ELRUN_COMPARED_IN_SIMULATION: nothing in the product; there, whoever tells two states of a core apart sees its members.

#ifdef ELRUN_PLANTED_BUGS
#include ELRUN_PLANTED_BUGS
#else
#define ELRUN_PLANTED(name) false
#define ELRUN_COMPARED_IN_SIMULATION
#endif
