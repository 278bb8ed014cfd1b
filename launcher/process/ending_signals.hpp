#pragma once
/// \file The signals that ask a process to end.

#include <vector>

#include <boost/asio/signal_set.hpp>

namespace elrun::inline v0::launcher {

/// At the start of the process: a signal that comes before there is a handler is not lost. For process 1 the kernel drops one without a
/// handler, so there they are blocked until `handle_ending_signals`; any other process ends by one. SIGCHLD is unblocked, as the parent may have blocked it.
void hold_ending_signals();
/// They are not handled in this process: what was held is dropped.
void drop_ending_signals();
/// Handles these signals with `signals`, also if the parent had blocked them, and those that were held. A SIGHUP that was ignored from the
/// start (nohup) stays ignored.
void handle_ending_signals(boost::asio::signal_set& signals, const std::vector<int>& numbers);

}  // namespace elrun::inline v0::launcher
