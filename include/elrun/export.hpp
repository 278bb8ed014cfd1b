#pragma once
/// \file Marks what libelrun exports. Everything else in the library is hidden: it is a guest in the user's process.

#define ELRUN_API __attribute__((visibility("default")))
