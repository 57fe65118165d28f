// Rounding to 16-bit floating numbers.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensors.hpp"

namespace onnx_ops::detail {

/// The bits of a number in bfloat16, or in float16, rounded to nearest, ties to even.
inline std::uint16_t rounded_bits(ElementType type, float number) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (type == ElementType::bfloat16) {
    if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7fc0);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);  // from 65520 on
  if (magnitude >= 0x38800000) return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
  return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(std::fabs(number) * 0x1p24f)));  // abs(x) < 2**-14
}

/// Rounds a tensor of float32 into one of 16 bits.
inline void round_into(const Tensor &target, const Tensor &source) {
  for (std::size_t i = 0; i < source.size(); ++i) target.data<std::uint16_t>()[i] = rounded_bits(target.type(), source.data<float>()[i]);
}

}  // namespace onnx_ops::detail
