// Trains a network with the trainer in C++, as sides.py with the others, and prints the measurement as JSON:
//
//     trainer KERNELS ROOT NETWORK --steps STEPS --threads THREADS
//
// KERNELS is a library of custom ops; "" for none.
#include <chrono>
#include <cstdio>
#include <onnx_ops/trainer.hpp>

namespace {

/// Bytes of this process by its status: VmRSS is what is in memory now, VmHWM the maximum since `reset_peak`.
long long status(const std::string &name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  throw std::runtime_error("no " + name);
}

void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

/// The batch, in memory before anything is measured, as in the other sides.
void measure(const std::filesystem::path &folder, const char *kernels, int steps, int threads, bool print) {
  const onnx_ops::Tensors batch = onnx_ops::read_tensors(folder / "batch.safetensors");
  const long long level = status("VmRSS");
  reset_peak();
  onnx_ops::TrainerOptions options;
  options.threads = threads;
  options.kernels = kernels;
  onnx_ops::Trainer trainer(folder / "step.onnx", options);
  std::vector<double> losses, seconds;
  long long loading = 0;
  for (int step = 0; step <= steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    losses.push_back(static_cast<double>(trainer.step(batch).at("loss").item<float>()));
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (step > 0) seconds.push_back(taken.count());
    if (step > 0) continue;
    loading = status("VmHWM");
    reset_peak();
  }
  if (!print) return;
  std::sort(seconds.begin(), seconds.end());
  std::string texts;
  for (double loss : losses) texts += (texts.empty() ? "" : ", ") + std::to_string(loss);
  std::printf("{\"level\": %lld, \"loading\": %lld, \"steps\": %lld, \"seconds\": %f, \"losses\": [%s]}\n", level, loading - level,
              status("VmHWM") - level, seconds[seconds.size() / 2], texts.c_str());
}

}  // namespace

int main(int count, char **arguments) {
  if (count != 8) return 2;
  const std::filesystem::path root = arguments[2];
  const int steps = std::atoi(arguments[5]), threads = std::atoi(arguments[7]);
  measure(root / "linear layer", arguments[1], 1, threads, false);
  measure(root / arguments[3], arguments[1], steps, threads, true);
}
