// Trains with the files that files.py writes: train FOLDER [STEPS [KERNELS]]
//
// It prints losses and the share of held-out samples that are read correctly, and writes state.safetensors and trained.onnx
// into the folder. KERNELS is a library of custom ops; without it the function bodies in step.onnx are run.
#include <chrono>
#include <cstdio>
#include <onnx_ops/trainer.hpp>

using onnx_ops::ElementType;
using onnx_ops::Tensor;
using onnx_ops::Tensors;

namespace {

/// The tensors whose names begin with a prefix, without it.
Tensors part(const Tensors &tensors, const std::string &prefix) {
  Tensors found;
  for (const auto &[name, tensor] : tensors) {
    if (name.rfind(prefix, 0) == 0) found.set(name.substr(prefix.size()), tensor);
  }
  return found;
}

/// The samples of one step.
Tensors batch_of(const Tensors &samples, const std::int64_t *chosen, std::int64_t count) {
  Tensors batch;
  for (const auto &[name, tensor] : samples) {
    onnx_ops::Shape shape = tensor.shape();
    const std::size_t bytes = tensor.bytes() / static_cast<std::size_t>(shape.at(0));
    shape[0] = count;
    Tensor &taken = batch.set(name, Tensor(tensor.type(), shape));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto *source = static_cast<const char *>(tensor.memory()) + static_cast<std::size_t>(chosen[i]) * bytes;
      std::memcpy(static_cast<char *>(taken.memory()) + static_cast<std::size_t>(i) * bytes, source, bytes);
    }
  }
  return batch;
}

/// The classes of the largest logits along the last axis.
std::vector<std::int64_t> largest(const Tensor &logits) {
  const std::int64_t classes = logits.shape().back();
  std::vector<std::int64_t> found;
  for (const float *row = logits.data<float>(), *end = row + logits.size(); row != end; row += classes) {
    found.push_back(std::max_element(row, row + classes) - row);
  }
  return found;
}

/// The share of images that are read correctly.
double accuracy(const Tensors &held_out, const Tensor &logits) {
  const std::vector<std::int64_t> found = largest(logits);
  const auto *labels = held_out.at("labels").data<std::int64_t>();
  std::size_t right = 0;
  for (std::size_t i = 0; i < found.size(); ++i) right += found[i] == labels[i];
  return static_cast<double>(right) / static_cast<double>(found.size());
}

/// The share of lines that are read correctly: repeated classes are one digit, the last class is none.
double lines_read(const Tensors &held_out, const Tensor &logits) {
  const std::vector<std::int64_t> found = largest(logits);
  const std::int64_t lines = logits.shape()[0], columns = logits.shape()[1], blank = logits.shape()[2] - 1;
  const Tensor &digits = held_out.at("digits");
  std::int64_t right = 0;
  for (std::int64_t line = 0; line < lines; ++line) {
    std::vector<std::int64_t> read;
    std::int64_t before = blank;
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t one = found[static_cast<std::size_t>(line * columns + column)];
      if (one != blank && one != before) read.push_back(one);
      before = one;
    }
    const auto *written = digits.data<std::int64_t>() + line * digits.shape()[1];
    const std::int64_t length = held_out.at("lengths").data<std::int64_t>()[line];
    right += read == std::vector<std::int64_t>(written, written + length);
  }
  return static_cast<double>(right) / static_cast<double>(lines);
}

void train(const std::filesystem::path &folder, std::int64_t most, const char *kernels) {
  onnx_ops::TrainerOptions options;
  if (kernels) options.kernels = kernels;
  onnx_ops::Trainer trainer(folder / "step.onnx", options);
  const Tensors data = onnx_ops::read_tensors(folder / "data.safetensors");
  const Tensors learned = part(data, "learned."), held_out = part(data, "held_out.");
  const Tensor &order = data.at("order");
  const std::int64_t steps = std::min(most, order.shape()[0]), samples = order.shape()[1];
  const auto start = std::chrono::steady_clock::now();
  double sum = 0;
  for (std::int64_t step = 0, counted = 0; step < steps; ++step) {
    trainer.set_learning_rate(data.at("learning_rates").data<double>()[step]);
    const Tensors batch = batch_of(learned, order.data<std::int64_t>() + step * samples, samples);
    sum += static_cast<double>(trainer.step(batch).at("loss").item<float>());
    ++counted;
    if (counted < 100 && step + 1 < steps) continue;
    std::printf("step %lld of %lld, loss %.4f\n", static_cast<long long>(step + 1), static_cast<long long>(steps), sum / static_cast<double>(counted));
    sum = 0, counted = 0;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  const bool lines = held_out.has("lengths");
  const std::string input = lines ? "images" : "x";
  const Tensor logits = trainer.infer({{input, held_out.at(input)}}).begin()->second;
  std::printf("%.1f s, read correctly: %.1f %%\n", taken.count(), 100 * (lines ? lines_read(held_out, logits) : accuracy(held_out, logits)));
  trainer.save(folder / "state.safetensors");
  trainer.export_model(folder / "trained.onnx");
}

}  // namespace

int main(int count, char **arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s FOLDER [STEPS [KERNELS]]\n", arguments[0]);
    return 2;
  }
  try {
    train(arguments[1], count > 2 ? std::atoll(arguments[2]) : std::numeric_limits<std::int64_t>::max(), count > 3 ? arguments[3] : nullptr);
    return 0;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
