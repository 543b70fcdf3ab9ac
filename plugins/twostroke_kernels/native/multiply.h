// The matrix product, written once over vectors of an instruction set; each translation unit
// brings its `Vec`:
//   kLanes columns a vector; Ints, Floats and Bytes; zero(), load, spread (one value to all lanes),
//   dot(Ints acc, Bytes weights, Bytes four): acc + for each lane the sum of 4 products of unsigned
//   weights with signed activations.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "instruction_sets.h"

namespace twostroke::kernels {

inline constexpr size_t kPrefetchBytes = 4096;  // ahead of the stream; fewer and more were slower

template <typename Vec, int kBits>
inline constexpr size_t kParts = kPanelColumns / Vec::kLanes;  // vectors of a panel's width

// A tile of kRows rows by kPanels panels over all of K.
template <typename Vec, int kBits, bool kZeroPoints, size_t kRows, size_t kPanels>
struct Micro {
  static constexpr size_t kWidth = kPanels * (kPanelColumns / Vec::kLanes);
  using Ints = typename Vec::Ints;
  using Floats = typename Vec::Floats;

  static void run(const PackedMatrix& weights, const QuantisedRows& rows, size_t row, size_t panel,
                  Floats (&totals)[kRows][kWidth]) {
    const size_t stride = weights.num_blocks * weights.block;
    const uint8_t* at = weights.panel(panel);
    const int8_t* values = rows.values + row * stride;
    const float* scales = rows.scales + row * weights.num_blocks;
    const int32_t* sums = rows.sums + row * weights.num_blocks;
    for (size_t block = 0; block < weights.num_blocks; ++block) {
      Ints acc[kRows][kWidth];
      for (size_t r = 0; r < kRows; ++r) {
        const int32_t offset = kZeroPoints ? 0 : -(1 << (kBits - 1)) * sums[r * weights.num_blocks + block];
        for (size_t c = 0; c < kWidth; ++c) acc[r][c] = Vec::spread(offset);
      }
      dots(weights, at, values + block * weights.block, stride, acc);
      for (size_t r = 0; r < kRows; ++r) {
        const size_t index = r * weights.num_blocks + block;
        add(weights, at, scales[index], sums[index], acc[r], totals[r]);
      }
      at += weights.block_bytes;
    }
  }

  static const uint8_t* part(const PackedMatrix& weights, const uint8_t* at, size_t c) {
    constexpr size_t parts = kPanelColumns / Vec::kLanes;
    return at + c / parts * weights.panel_bytes + c % parts * Vec::kLanes * kQuad;
  }

  static void dots(const PackedMatrix& weights, const uint8_t* at, const int8_t* values,
                   size_t stride, Ints (&acc)[kRows][kWidth]) {
    constexpr size_t step_k = kBits == 8 ? kQuad : 2 * kQuad;
    constexpr size_t step_bytes = kPanelColumns * kQuad;
    for (size_t k = 0; k < weights.block; k += step_k, at += step_bytes) {
      typename Vec::Bytes low[kWidth], high[kWidth];
      for (size_t c = 0; c < kWidth; ++c) {
        const uint8_t* from = part(weights, at, c);
        if (c % (kPanelColumns / Vec::kLanes) == 0) Vec::prefetch(from + kPrefetchBytes);
        const auto bytes = Vec::load(from);
        low[c] = kBits == 8 ? bytes : Vec::low_nibbles(bytes);
        if constexpr (kBits == 4) high[c] = Vec::high_nibbles(bytes);
      }
      for (size_t r = 0; r < kRows; ++r) {
        const auto four = Vec::spread_four(values + r * stride + k);
        for (size_t c = 0; c < kWidth; ++c) acc[r][c] = Vec::dot(acc[r][c], low[c], four);
        if constexpr (kBits == 4) {
          const auto next = Vec::spread_four(values + r * stride + k + kQuad);
          for (size_t c = 0; c < kWidth; ++c) acc[r][c] = Vec::dot(acc[r][c], high[c], next);
        }
      }
    }
  }

  static void add(const PackedMatrix& weights, const uint8_t* at, float scale, int32_t sum,
                  const Ints (&acc)[kWidth], Floats (&totals)[kWidth]) {
    for (size_t c = 0; c < kWidth; ++c) {
      // Scales lie behind the values, four bytes a column as these do.
      const uint8_t* scales = part(weights, at + weights.values_bytes, c);
      const Floats scaled = Vec::multiply(Vec::to_floats(acc[c]), Vec::spread(scale));
      totals[c] = Vec::multiply_add(scaled, Vec::load_floats(scales), totals[c]);
      if constexpr (kZeroPoints) {
        const Floats less = Vec::load_floats(scales + kPanelColumns * sizeof(float));
        totals[c] = Vec::multiply_add(Vec::spread(-scale * static_cast<float>(sum)), less, totals[c]);
      }
    }
  }
};

template <typename Vec, size_t kRows, size_t kWidth>
void store(const typename Vec::Floats (&totals)[kRows][kWidth], const PackedMatrix& weights,
           size_t row, size_t panel, const float* bias, float* output) {
  for (size_t r = 0; r < kRows; ++r)
    for (size_t c = 0; c < kWidth; ++c) {
      const size_t column = panel * kPanelColumns + c * Vec::kLanes;
      if (column >= weights.num_columns) break;
      const size_t num = std::min(Vec::kLanes, weights.num_columns - column);
      auto value = totals[r][c];
      if (bias) value = Vec::add(value, Vec::load_some(bias + column, num));
      Vec::store_some(output + (row + r) * weights.num_columns + column, value, num);
    }
}

template <typename Vec, int kBits, bool kZeroPoints, size_t kRows, size_t kPanels>
void micro(const PackedMatrix& weights, const QuantisedRows& rows, size_t row, size_t panel,
           const float* bias, float* output) {
  using Tiled = Micro<Vec, kBits, kZeroPoints, kRows, kPanels>;
  typename Vec::Floats totals[kRows][Tiled::kWidth];
  for (auto& of_row : totals)
    for (auto& total : of_row) total = Vec::spread(0.0f);
  Tiled::run(weights, rows, row, panel, totals);
  store<Vec, kRows, Tiled::kWidth>(totals, weights, row, panel, bias, output);
}

// Rows from kRows downwards: as many at once as there are left.
template <typename Vec, int kBits, bool kZeroPoints, size_t kPanels, size_t kRows = Vec::kMaxRows>
void some_rows(size_t num, const PackedMatrix& weights, const QuantisedRows& rows, size_t row,
               size_t panel, const float* bias, float* output) {
  if (num >= kRows)
    micro<Vec, kBits, kZeroPoints, kRows, kPanels>(weights, rows, row, panel, bias, output);
  else if constexpr (kRows > 1)
    some_rows<Vec, kBits, kZeroPoints, kPanels, kRows - 1>(num, weights, rows, row, panel, bias,
                                                           output);
}

template <typename Vec, int kBits, bool kZeroPoints>
void multiply_tile(const PackedMatrix& weights, const QuantisedRows& rows, const Tile& tile,
                   const float* bias, float* output) {
  const size_t end = tile.first_row + tile.num_rows;
  for (size_t panel = tile.first_panel; panel < tile.first_panel + tile.num_panels;) {
    const bool is_pair = panel + 2 <= tile.first_panel + tile.num_panels;
    for (size_t row = tile.first_row; row < end; row += Vec::kMaxRows) {
      if (is_pair)
        some_rows<Vec, kBits, kZeroPoints, 2>(end - row, weights, rows, row, panel, bias, output);
      else
        some_rows<Vec, kBits, kZeroPoints, 1>(end - row, weights, rows, row, panel, bias, output);
    }
    panel += is_pair ? 2 : 1;
  }
}

template <typename Vec>
void multiply(const PackedMatrix& weights, const QuantisedRows& rows, const Tile& tile,
              const float* bias, float* output) {
  const bool is_4 = weights.bits == 4, has_zero_points = weights.has_zero_points;
  const auto run = is_4 ? (has_zero_points ? multiply_tile<Vec, 4, true> : multiply_tile<Vec, 4, false>)
                        : (has_zero_points ? multiply_tile<Vec, 8, true> : multiply_tile<Vec, 8, false>);
  run(weights, rows, tile, bias, output);
}

}  // namespace twostroke::kernels
