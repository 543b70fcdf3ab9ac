#include "packed_matrix.h"

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace twostroke {
namespace {

using Key = std::array<uint64_t, 6>;

std::mutex registry_mutex;
std::map<Key, std::weak_ptr<const PackedMatrix>>& registry() {
  // Never destroyed: sessions may outlive static objects at the process's exit.
  static auto* matrices = new std::map<Key, std::weak_ptr<const PackedMatrix>>;
  return *matrices;
}

// Two independent multiplicative hashes over 8-byte words. Not against malice: whoever can choose
// a model's weights chooses its answers anyway.
void mix(const void* data, size_t bytes, uint64_t (&state)[2]) {
  const auto* at = static_cast<const uint8_t*>(data);
  const auto take = [&](uint64_t word) {
    state[0] = (state[0] ^ word) * 0x9e3779b97f4a7c15u;
    state[0] ^= state[0] >> 29;
    state[1] = (state[1] + word) * 0xd6e8feb86659fd93u;
    state[1] ^= state[1] >> 32;
  };
  for (; bytes >= 8; at += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    take(word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, at, bytes);
  take(rest ^ (uint64_t{bytes} << 56));
}

size_t zero_point_row_bytes(const NBitsWeights& weights) {
  return (weights.num_blocks() * static_cast<size_t>(weights.bits) + 7) / 8;
}

Key key_of(const NBitsWeights& weights) {
  uint64_t state[2] = {1, 2};
  const size_t blocks = weights.num_blocks(), rows = weights.num_columns;
  mix(weights.values, rows * blocks * weights.block * weights.bits / 8, state);
  mix(weights.scales, rows * blocks * sizeof(float), state);
  if (weights.zero_points) mix(weights.zero_points, rows * zero_point_row_bytes(weights), state);
  const uint64_t kind = weights.bits * 2u + (weights.zero_points ? 1 : 0);
  return {state[0], state[1], weights.num_columns, weights.depth, weights.block, kind};
}

float zero_point(const NBitsWeights& weights, size_t column, size_t block) {
  const uint8_t* row = weights.zero_points + column * zero_point_row_bytes(weights);
  if (weights.bits == 8) return row[block];
  return static_cast<float>(block % 2 ? row[block / 2] >> 4 : row[block / 2] & 15);
}

void pack_values(const NBitsWeights& weights, const uint8_t* from, size_t lane, uint8_t* to) {
  const size_t row = kPanelColumns * kQuad;  // bytes of one step of a panel
  if (weights.bits == 8) {
    for (size_t k = 0; k < weights.block; ++k)
      to[k / kQuad * row + lane * kQuad + k % kQuad] = from[k];
    return;
  }
  for (size_t k = 0; k < weights.block; ++k) {
    const uint8_t nibble = k % 2 ? from[k / 2] >> 4 : from[k / 2] & 15;
    uint8_t& byte = to[k / 8 * row + lane * kQuad + k % kQuad];
    byte = static_cast<uint8_t>(k % 8 < kQuad ? nibble : byte | nibble << 4);
  }
}

void pack_block(const NBitsWeights& weights, const PackedMatrix& packed, size_t column,
                size_t block, uint8_t* to) {
  const size_t lane = column % kPanelColumns;
  const size_t bytes = weights.block * static_cast<size_t>(weights.bits) / 8;
  const size_t index = column * packed.num_blocks + block;
  pack_values(weights, weights.values + index * bytes, lane, to);
  auto* scales = reinterpret_cast<float*>(to + packed.values_bytes);
  scales[lane] = weights.scales[index];
  if (packed.has_zero_points)
    scales[kPanelColumns + lane] = weights.scales[index] * zero_point(weights, column, block);
}

PackedMatrix shape_of(const NBitsWeights& weights) {
  return {weights.num_columns, weights.depth, weights.bits, weights.block,
          weights.zero_points != nullptr};
}

std::shared_ptr<const PackedMatrix> packed_in_memory(const NBitsWeights& weights) {
  auto packed = std::make_shared<PackedMatrix>(shape_of(weights));
  auto* memory = static_cast<uint8_t*>(::operator new(packed->size_bytes(), std::align_val_t{64}));
  packed->owner = {memory, [](void* at) { ::operator delete(at, std::align_val_t{64}); }};
  packed->data = memory;
  pack(weights, memory);
  return packed;
}

}  // namespace

PackedMatrix::PackedMatrix(size_t num_columns_, size_t depth_, int bits_, size_t block_,
                           bool has_zero_points_)
    : num_columns(num_columns_),
      depth(depth_),
      block(block_),
      num_blocks((depth_ + block_ - 1) / block_),
      num_panels((num_columns_ + kPanelColumns - 1) / kPanelColumns),
      bits(bits_),
      has_zero_points(has_zero_points_),
      values_bytes(kPanelColumns * block_ * static_cast<size_t>(bits_) / 8),
      block_bytes(values_bytes + kPanelColumns * sizeof(float) * (has_zero_points_ ? 2 : 1)),
      panel_bytes(block_bytes * num_blocks) {}

void pack(const NBitsWeights& weights, uint8_t* to) {
  const PackedMatrix packed = shape_of(weights);
  std::memset(to, 0, packed.size_bytes());  // columns beyond the last: scale 0
  for (size_t column = 0; column < weights.num_columns; ++column)
    for (size_t block = 0; block < packed.num_blocks; ++block)
      pack_block(weights, packed, column, block,
                 to + column / kPanelColumns * packed.panel_bytes + block * packed.block_bytes);
}

std::shared_ptr<const PackedMatrix> shared_packed(const NBitsWeights& weights) {
  const Key key = key_of(weights);
  const std::lock_guard lock(registry_mutex);
  auto& slot = registry()[key];
  if (auto found = slot.lock()) return found;
  auto packed = packed_in_memory(weights);
  slot = packed;
  return packed;
}

size_t packed_bytes() {
  const std::lock_guard lock(registry_mutex);
  size_t total = 0;
  for (const auto& [key, matrix] : registry())
    if (const auto found = matrix.lock()) total += found->size_bytes();
  return total;
}

}  // namespace twostroke
