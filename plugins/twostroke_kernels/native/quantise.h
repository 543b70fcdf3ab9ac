// Quantisation of activations; plain loops that compilers vectorise for each instruction set.
#pragma once
#include <algorithm>
#include <cmath>

#include "instruction_sets.h"

namespace twostroke::kernels {

// Symmetric, to -127..127, by the largest magnitude of each block, as MatMulNBits does at accuracy
// level 4.
template <size_t kLanes>
void quantise_block(const float* input, size_t num, size_t block, int8_t* values, float& scale,
                    int32_t& sum) {
  float largest[kLanes] = {}, doubt[kLanes] = {};  // x - x is NaN for infinities and NaN
  size_t i = 0;
  for (; i + kLanes <= num; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float x = input[i + lane];
      largest[lane] = std::max(largest[lane], std::fabs(x));
      doubt[lane] += x - x;
    }
  for (; i < num; ++i) {
    largest[0] = std::max(largest[0], std::fabs(input[i]));
    doubt[0] += input[i] - input[i];
  }
  float most = 0, doubts = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    most = std::max(most, largest[lane]);
    doubts += doubt[lane];
  }
  scale = most / 127.0f + doubts;
  const float factor = most > 0 && doubts == 0 ? 127.0f / most : 0.0f;
  int32_t total = 0;
  for (size_t k = 0; k < num; ++k) {
    // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number, ties to even.
    const float rounded = (factor == 0 ? 0.0f : input[k] * factor) + 12582912.0f;
    const auto value = static_cast<int32_t>(rounded - 12582912.0f);
    values[k] = static_cast<int8_t>(value);
    total += value;
  }
  std::fill(values + num, values + block, int8_t{0});
  sum = total;
}

template <size_t kLanes>
void quantise_rows(const float* input, const PackedMatrix& shape, size_t first, size_t num,
                   const QuantisedRows& rows) {
  for (size_t row = first; row < first + num; ++row)
    for (size_t block = 0; block < shape.num_blocks; ++block) {
      const size_t index = row * shape.num_blocks + block, from = block * shape.block;
      quantise_block<kLanes>(input + row * shape.depth + from,
                             std::min(shape.block, shape.depth - from), shape.block,
                             rows.values + index * shape.block, rows.scales[index],
                             rows.sums[index]);
    }
}

}  // namespace twostroke::kernels
