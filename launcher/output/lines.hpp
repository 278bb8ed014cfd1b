#pragma once
/// \file Lines: what a worker writes, byte by byte, as whole lines for people. However the bytes are cut into chunks, the
/// lines are the same.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace elrun::inline v0::launcher {

/// A longer line is shown in pieces of this size, so that a stream without newlines needs bounded memory.
constexpr std::size_t line_bytes_max = std::size_t{4} << 20;

/// One stream's lines, each with a prefix in front and a newline behind it. Bytes are passed on as they are, whatever
/// their encoding, but for a carriage return that is not followed by a newline: it ends a line too, as progress bars want
/// it, and becomes a newline. An empty line that it would make is not shown.
class Lines {
 public:
  /// `filters`: lines that contain one of these are filtered lines.
  explicit Lines(std::string prefix, std::vector<std::string> filters = {}, std::size_t line_max = line_bytes_max);

  /// Appends to `shown` each line that `bytes` complete, and to `filtered` those that match.
  void feed(std::string_view bytes, std::string& shown, std::string& filtered);
  /// The stream has ended: what had no newline yet is a line.
  void end(std::string& shown, std::string& filtered);

 private:
  void put(std::string_view rest, std::string_view ending, std::string& shown, std::string& filtered);
  void keep(std::string_view rest, std::string& shown, std::string& filtered);
  void put_piece(std::string_view rest, std::string_view ending, std::string& shown, std::string& filtered);
  std::string prefix_;
  std::vector<std::string> filters_;
  std::size_t line_max_;
  std::string begun_;          // the line that has begun, without its end; at most line_max_ bytes
  bool after_return_ = false;  // the last byte was a carriage return: what it means depends on the next one
};

/// The last lines of a stream as a terminal would show them: of a progress bar only its last state, and no empty lines at
/// the end. `tail` is the end of the stream; if it does not reach back to the beginning (`is_whole`), its first line may
/// have lost its head and is left out, unless it is the only one.
[[nodiscard]] std::vector<std::string> last_lines(std::string_view tail, bool is_whole, std::size_t lines_max);

}  // namespace elrun::inline v0::launcher
