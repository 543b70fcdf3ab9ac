// The matrix product for each instruction set, and the choice among them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "packed_matrix.h"

namespace twostroke {

// Rows of activations, quantised in blocks along K as the weights are: value * scale is the
// activation. A block with a NaN or an infinity has a scale of NaN.
struct QuantisedRows {
  int8_t* values;  // [rows, num_blocks * block], zeros behind K
  float* scales;   // [rows, num_blocks]
  int32_t* sums;   // [rows, num_blocks], of the values
};

struct Tile {  // of the result
  size_t first_row, num_rows, first_panel, num_panels;
};

struct InstructionSet {
  const char* name;
  // Quantises the rows [first, first + num) of `input` [rows, depth].
  void (*quantise)(const float* input, const PackedMatrix& shape, size_t first, size_t num,
                   const QuantisedRows& rows);
  // Writes a tile of `output` [rows, num_columns]; `bias` [num_columns] may be null.
  void (*multiply)(const PackedMatrix& weights, const QuantisedRows& rows, const Tile& tile,
                   const float* bias, float* output);
};

// Each is null where the library was built without it.
const InstructionSet* avx512_vnni();
const InstructionSet* avx_vnni();
const InstructionSet* avx2();
const InstructionSet* scalar();

// The best that this processor has; the environment's TWOSTROKE_KERNELS_ISA names another. Null
// where that one is unknown or is not to be had here.
const InstructionSet* chosen();

}  // namespace twostroke
