// The reference: what each number means, one at a time.
#include <algorithm>

#include "instruction_sets.h"
#include "quantise.h"

namespace twostroke {
namespace {

int32_t weight(const PackedMatrix& weights, const uint8_t* block, size_t lane, size_t k) {
  const size_t step = kPanelColumns * kQuad;
  if (weights.bits == 8) return block[k / kQuad * step + lane * kQuad + k % kQuad];
  const uint8_t byte = block[k / 8 * step + lane * kQuad + k % kQuad];
  return k % 8 < kQuad ? byte & 15 : byte >> 4;
}

float product(const PackedMatrix& weights, const QuantisedRows& rows, size_t row, size_t column) {
  const size_t lane = column % kPanelColumns;
  const uint8_t* at = weights.panel(column / kPanelColumns);
  float total = 0;
  for (size_t block = 0; block < weights.num_blocks; ++block, at += weights.block_bytes) {
    const size_t index = row * weights.num_blocks + block;
    const int8_t* values = rows.values + index * weights.block;
    const auto* scales = reinterpret_cast<const float*>(at + weights.values_bytes);
    int32_t sum = weights.has_zero_points ? 0 : -(1 << (weights.bits - 1)) * rows.sums[index];
    for (size_t k = 0; k < weights.block; ++k) sum += weight(weights, at, lane, k) * values[k];
    total += static_cast<float>(sum) * rows.scales[index] * scales[lane];
    if (weights.has_zero_points)
      total -= rows.scales[index] * static_cast<float>(rows.sums[index]) *
               scales[kPanelColumns + lane];
  }
  return total;
}

void multiply(const PackedMatrix& weights, const QuantisedRows& rows, const Tile& tile,
              const float* bias, float* output) {
  const size_t first = tile.first_panel * kPanelColumns;
  const size_t end = std::min(first + tile.num_panels * kPanelColumns, weights.num_columns);
  for (size_t row = tile.first_row; row < tile.first_row + tile.num_rows; ++row)
    for (size_t column = first; column < end; ++column)
      output[row * weights.num_columns + column] =
          product(weights, rows, row, column) + (bias ? bias[column] : 0.0f);
}

}  // namespace

const InstructionSet* scalar() {
  static constexpr InstructionSet set{"scalar", kernels::quantise_rows<1>, multiply};
  return &set;
}

}  // namespace twostroke
