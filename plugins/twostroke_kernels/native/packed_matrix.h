// Weights of a matrix product, packed once for all instruction sets and all numbers of rows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace twostroke {

inline constexpr size_t kPanelColumns = 16;
inline constexpr size_t kQuad = 4;  // consecutive k that one dot-product lane takes

// The inputs of MatMulNBits, as its specification lays them out.
struct NBitsWeights {
  size_t num_columns;          // N
  size_t depth;                // K
  int bits;                    // 4 or 8
  size_t block;                // along K, a power of two from 16 to 256
  const uint8_t* values;       // [N, num_blocks, block * bits / 8]
  const float* scales;         // [N, num_blocks]
  const uint8_t* zero_points;  // [N, ceil(num_blocks * bits / 8)]; null: 2^(bits-1) everywhere
  size_t num_blocks() const { return (depth + block - 1) / block; }
};

// A panel is 16 columns; panels lie one behind the other, and in a panel its blocks along K. Of a
// block first come the values, then 16 fp32 scales, then (has_zero_points) 16 fp32 products
// zero_point * scale, so that one stream of memory has all of it. Every instruction set reads this
// layout, so packed weights can be kept in files.
//   bits 8: [block / 4][16 columns][4 k], unsigned, as MatMulNBits stores them.
//   bits 4: [block / 8][16 columns][4 bytes]; byte j has k = j below and k = 4 + j above.
struct PackedMatrix {
  size_t num_columns, depth, block, num_blocks, num_panels;
  int bits;
  bool has_zero_points;
  size_t values_bytes;  // of one block of a panel
  size_t block_bytes;   // values, scales and zero points of one block of a panel; 64 divides it
  size_t panel_bytes;
  const uint8_t* data = nullptr;      // aligned to 64
  std::shared_ptr<const void> owner;  // of `data`; empty where the graph's constant is it

  PackedMatrix(size_t num_columns, size_t depth, int bits, size_t block, bool has_zero_points);
  const uint8_t* panel(size_t index) const { return data + index * panel_bytes; }
  size_t size_bytes() const { return num_panels * panel_bytes; }
};

// Packs weights into `to`, which has room for size_bytes() of their PackedMatrix.
void pack(const NBitsWeights& weights, uint8_t* to);

// The one packed copy of these weights in the process: packed at the first call, shared from then
// on, freed with its last owner. Safe from several threads. Throws std::bad_alloc.
std::shared_ptr<const PackedMatrix> shared_packed(const NBitsWeights& weights);

// Bytes of all packed matrices that are alive.
size_t packed_bytes();

}  // namespace twostroke
