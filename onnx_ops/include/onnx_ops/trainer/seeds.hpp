// The seeds of accumulated batches: onnx_ops/training/seeds.py.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace onnx_ops::detail {

/// The seed of the random numbers in a batch before which others were accumulated, by NumPy's SeedSequence
/// (O'Neill 2015).
inline std::int64_t derived_seed(std::int64_t seed, int batch) {
  if (batch == 0) return seed;
  const auto whole = static_cast<std::uint64_t>(seed);
  std::vector<std::uint32_t> entropy = {static_cast<std::uint32_t>(whole)};
  if (whole >> 32) entropy.push_back(static_cast<std::uint32_t>(whole >> 32));
  entropy.push_back(0);  // the rank of the worker
  entropy.push_back(static_cast<std::uint32_t>(batch));
  std::uint32_t constant = 0x43b0d7e5;
  const auto hashed = [&](std::uint32_t value, std::uint32_t factor) {
    value ^= constant;
    constant *= factor;
    value *= constant;
    return value ^ value >> 16;
  };
  const auto mixed = [](std::uint32_t x, std::uint32_t y) {
    const std::uint32_t found = 0xca01f9dd * x - 0x4973f715 * y;
    return found ^ found >> 16;
  };
  std::array<std::uint32_t, 4> pool{};
  for (std::size_t i = 0; i < 4; ++i) pool[i] = hashed(i < entropy.size() ? entropy[i] : 0, 0x931e8875);
  for (std::size_t source = 0; source < std::max<std::size_t>(4, entropy.size()); ++source) {
    for (std::size_t target = 0; target < 4; ++target) {
      if (source != target) pool[target] = mixed(pool[target], hashed(source < 4 ? pool[source] : entropy[source], 0x931e8875));
    }
  }
  constant = 0x8b51f9dd;
  const std::uint64_t low = hashed(pool[0], 0x58f38ded), high = hashed(pool[1], 0x58f38ded);
  return static_cast<std::int64_t>(high << 32 | low);
}

}  // namespace onnx_ops::detail
