// Models of mma.sync, ldmatrix and cp.async.
#include "state.h"

namespace simt {

struct MmaOperands {
  float *d;
  const unsigned *a, *b;
};

static float number(unsigned word, int high, bool bf16) {
  const unsigned short bits = high ? word >> 16 : word & 0xffff;
  return bf16 ? float(__nv_bfloat16(__nv_bfloat16_raw{bits})) : float(__half(__half_raw{bits}));
}

// d += a * b for the whole warp, from the registers that every lane laid down.
template <bool BF16> static void multiply(const Slot *slots) {
  float a[16][16], b[16][8], d[16][8];
  MmaOperands lanes[32];
  for (int l = 0; l < 32; ++l) {
    const MmaOperands *o;
    __builtin_memcpy(&o, slots[l], sizeof o);
    lanes[l] = *o;
    const int g = l / 4, t = l % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      a[g + i % 2 * 8][t + i / 2 * 8] = number(o->a[i], 0, BF16);
      a[g + i % 2 * 8][t + i / 2 * 8 + 1] = number(o->a[i], 1, BF16);
      d[g + i / 2 * 8][t + i % 2] = o->d[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[t + i * 8][g] = number(o->b[i], 0, BF16);
      b[t + i * 8 + 1][g] = number(o->b[i], 1, BF16);
    }
  }
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) d[m][n] += a[m][k] * b[k][n];
    }
  }
  for (int l = 0; l < 32; ++l) {
    for (int i = 0; i < 4; ++i) lanes[l].d[i] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
  }
}

SIMT_EXPORT void mma_16x8x16(float *d, const unsigned *a, const unsigned *b, bool bf16,
                             const char *file, int line) {
  const MmaOperands operands{d, a, b}, *pointer = &operands;
  meet(~0u, &pointer, sizeof pointer, Op::Mma, {file, line},
       bf16 ? multiply<true> : multiply<false>);
}

struct Row {
  unsigned *r;
  const void *row;
};

template <int COUNT, bool TRANSPOSE> static void load_matrices(const Slot *slots) {
  Row rows[32];
  for (int l = 0; l < 32; ++l) __builtin_memcpy(&rows[l], slots[l], sizeof(Row));
  for (int m = 0; m < COUNT; ++m) {
    unsigned short e[8][8];
    for (int i = 0; i < 8; ++i) __builtin_memcpy(e[i], rows[m * 8 + i].row, 16);
    for (int l = 0; l < 32; ++l) {
      const int i = l / 4, j = l % 4 * 2;
      rows[l].r[m] =
          TRANSPOSE ? e[j][i] | unsigned(e[j + 1][i]) << 16 : e[i][j] | unsigned(e[i][j + 1]) << 16;
    }
  }
}

static Complete loader(int count, bool transpose) {
  if (count == 4) return transpose ? load_matrices<4, true> : load_matrices<4, false>;
  if (count == 2) return transpose ? load_matrices<2, true> : load_matrices<2, false>;
  return transpose ? load_matrices<1, true> : load_matrices<1, false>;
}

SIMT_EXPORT void ldmatrix(unsigned *r, const void *row, int count, bool transpose, const char *file,
                          int line) {
  const Place place{file, line};
  if (static_cast<int>(running.thread & 31) <
      count * 8) {  // the other lanes' addresses are ignored
    if (reinterpret_cast<uintptr_t>(row) % 16) {
      stop("ldmatrix: the row's address is not a multiple of 16: " + address_report(row, 16),
           place);
    }
    if (!is_shared(row, 16))
      stop("ldmatrix: the row is not in shared memory: " + address_report(row, 16), place);
    touch_at(row, 16, Access::Read, place);
  }
  const Row mine{r, row};
  meet(~0u, &mine, sizeof mine, Op::LdMatrix, place, loader(count, transpose));
}

SIMT_EXPORT void cp_async(void *smem, const void *gmem, int size, int source_bytes,
                          const char *file, int line) {
  const Place place{file, line};
  if (source_bytes < 0 || source_bytes > size) {
    stop("cp.async: src_bytes is " + std::to_string(source_bytes) + ", outside 0 to " +
             std::to_string(size),
         place);
  }
  if (reinterpret_cast<uintptr_t>(smem) % size || reinterpret_cast<uintptr_t>(gmem) % size) {
    stop("cp.async: both addresses must be multiples of " + std::to_string(size) + "; to " +
             address_report(smem, size) + ", from " + address_report(gmem, source_bytes),
         place);
  }
  if (!is_shared(smem, size)) {
    stop("cp.async: the destination is not in shared memory: " + address_report(smem, size), place);
  }
  touch_at(smem, size, Access::Write, place);
  if (source_bytes) touch_at(gmem, source_bytes, Access::Read, place);
  set_in_flight(smem, size, true);
  memset(smem, POISON, size);
  Fiber &f = me();
  f.copies.push_back({static_cast<char *>(smem), static_cast<const char *>(gmem), size,
                      source_bytes, f.group, place});
}

SIMT_EXPORT void cp_async_commit() { ++me().group; }

// Lands the copies of all groups before `group`.
static void land(unsigned group) {
  std::vector<Copy> &copies = me().copies;
  size_t n = 0;
  for (; n < copies.size() && copies[n].group < group; ++n) {
    const Copy &c = copies[n];
    set_in_flight(c.to, c.size, false);
    touch_at(c.to, c.size, Access::Write, c.place);
    memcpy(c.to, c.from, c.source_bytes);
    memset(c.to + c.source_bytes, 0, c.size - c.source_bytes);
  }
  copies.erase(copies.begin(), copies.begin() + n);
}

SIMT_EXPORT void cp_async_wait(int pending) {
  const unsigned committed = me().group;
  land(committed > static_cast<unsigned>(pending) ? committed - pending : 0);
}
SIMT_EXPORT void cp_async_wait_all() {
  cp_async_commit();
  cp_async_wait(0);
}

}  // namespace simt
