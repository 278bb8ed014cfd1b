#pragma once
/// \file Images of 28 x 28 with a class from 0 to 9, from the idx files of MNIST or Fashion-MNIST.

#include <cstdint>
#include <string>

#include <elrun/data.hpp>

namespace mnist {

constexpr std::uint64_t height = 28, width = 28, pixels = height * width, classes = 10;

/// One image as the network sees it.
struct Digit {
  float image[pixels];  ///< About mean 0 and variance 1.
  std::int32_t label;
};

/// Training samples have ids 0 .. train()-1, those to test with 0 .. test()-1.
class Digits {
 public:
  /// The four files of the data set in `directory`, plain or .gz. Where neither file of train-* is there, the first four
  /// fifths of t10k-* stand for it, and the rest is left to test with.
  static elrun::Result<Digits> open(const std::string& directory);

  [[nodiscard]] std::uint64_t train() const { return train_; }
  [[nodiscard]] std::uint64_t test() const { return test_; }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  [[nodiscard]] bool split() const { return own_.empty(); }  ///< One pair of files serves both purposes.
  void read_train(std::uint64_t id, Digit& digit) const { read(split() ? both_ : own_[0], id, digit); }
  void read_test(std::uint64_t id, Digit& digit) const { read(both_, split() ? train_ + id : id, digit); }

 private:
  struct Pair {
    elrun::IdxFile images, labels;
  };
  explicit Digits(Pair both) : both_{std::move(both)} {}
  static elrun::Result<Pair> open_pair(const std::string& directory, const std::string& prefix);
  static void read(const Pair& pair, std::uint64_t id, Digit& digit);
  Pair both_;              // t10k-*
  std::vector<Pair> own_;  // train-*, or none
  std::uint64_t train_ = 0, test_ = 0, hash_ = 0;
};

}  // namespace mnist
