#include "samples/mnist/digits.hpp"

namespace mnist {

namespace {

std::string images_of(const std::string& directory, const std::string& prefix) { return directory + "/" + prefix + "-images-idx3-ubyte"; }
std::string labels_of(const std::string& directory, const std::string& prefix) { return directory + "/" + prefix + "-labels-idx1-ubyte"; }

// A data set of which one file did not arrive is another case than one without that pair.
bool has_either(const std::string& directory, const std::string& prefix) {
  const auto is_there = [](const std::string& path) {
    const auto file = elrun::IdxFile::open(path);
    return file.ok() || file.failure().code != elrun::Code::not_found;
  };
  return is_there(images_of(directory, prefix)) || is_there(labels_of(directory, prefix));
}

}  // namespace

elrun::Result<Digits::Pair> Digits::open_pair(const std::string& directory, const std::string& prefix) {
  const std::string about_images = images_of(directory, prefix), about_labels = labels_of(directory, prefix);
  ELRUN_TRY_ASSIGN(elrun::IdxFile images, elrun::IdxFile::open(about_images));
  ELRUN_TRY_ASSIGN(elrun::IdxFile labels, elrun::IdxFile::open(about_labels));
  const auto wrong = [](std::string what) { return elrun::Failure{elrun::Code::corrupt, elrun::Remedy::fix_config, std::move(what)}; };
  if (images.shape().size() != 3 || images.shape()[1] != height || images.shape()[2] != width)
    return wrong("'" + about_images + "' has no images of 28 x 28: name the directory of MNIST or Fashion-MNIST");
  if (labels.shape().size() != 1 || labels.items() != images.items())
    return wrong("'" + about_labels + "' has " + std::to_string(labels.items()) + " labels for " + std::to_string(images.items()) +
                 " images: get both files again");
  for (std::uint64_t i = 0; i < labels.items(); ++i)
    if (labels.item(i)[0] >= classes)
      return wrong("'" + about_labels + "' has label " + std::to_string(labels.item(i)[0]) + " at " + std::to_string(i) +
                   ": labels are 0 to 9; get the file again");
  return Pair{std::move(images), std::move(labels)};
}

elrun::Result<Digits> Digits::open(const std::string& directory) {
  ELRUN_TRY_ASSIGN(Pair both, open_pair(directory, "t10k"));
  Digits digits{std::move(both)};
  auto own = open_pair(directory, "train");
  if (own.ok()) {
    digits.own_.push_back(std::move(own).value());
    digits.train_ = digits.own_[0].images.items();
    digits.test_ = digits.both_.images.items();
  } else if (own.failure().code == elrun::Code::not_found && !has_either(directory, "train")) {
    digits.train_ = digits.both_.images.items() / 5 * 4;
    digits.test_ = digits.both_.images.items() - digits.train_;
  } else {
    return std::move(own).failure();
  }
  if (digits.train_ == 0)
    return elrun::Failure{elrun::Code::invalid_argument, elrun::Remedy::fix_config,
                          "'" + directory + "' has fewer than five images: name a larger set"};
  const Pair& trained = digits.split() ? digits.both_ : digits.own_[0];
  digits.hash_ = trained.images.hash() + 3 * trained.labels.hash();
  return digits;
}

void Digits::read(const Pair& pair, std::uint64_t id, Digit& digit) {
  constexpr float mean = 0.1307f * 255, inverse_deviation = 1 / (0.3081f * 255);  // of MNIST's training images
  const auto bytes = pair.images.item(id);
  for (std::size_t i = 0; i < pixels; ++i) digit.image[i] = (static_cast<float>(bytes[i]) - mean) * inverse_deviation;
  digit.label = pair.labels.item(id)[0];
}

}  // namespace mnist
