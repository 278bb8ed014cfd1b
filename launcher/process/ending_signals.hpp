#pragma once
/// \file The signals that ask a process to end.

#include <vector>

#include <boost/asio/signal_set.hpp>

namespace elrun::inline v0::launcher {

/// Handles these signals with `signals`. A SIGHUP that was ignored from the start (nohup) stays ignored.
void handle_ending_signals(boost::asio::signal_set& signals, const std::vector<int>& numbers);

}  // namespace elrun::inline v0::launcher
