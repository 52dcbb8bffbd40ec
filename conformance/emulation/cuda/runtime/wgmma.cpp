// The model of wgmma: descriptors, products under way, and what the warps of a group must agree on.
#include <deque>

#include "state.h"

namespace simt {

struct Accumulator {  // of a warp: 16 rows
  float *d[32];       // by lane
  int columns;
  unsigned pending;  // products that have yet to be added
  std::vector<float> value;
};

struct Product {  // issued by a warp, not yet computed
  Wgmma what;
  unsigned group;
  Place place;
  float *d;  // of lane 0: names the accumulator
  float a[16][16];
};

struct Issue {  // one instruction, which all warps of the group must issue
  Wgmma what;
  Place place;
  unsigned warps;  // that have, as bits
};

struct Warpgroup {
  std::deque<Issue> issues;  // that some warp has yet to come to
  unsigned dropped;          // before those
};

struct WarpProducts {
  bool fenced;
  unsigned issued, group;
  std::deque<Product> products;
  std::vector<Accumulator> accumulators;
};

static Warpgroup warpgroups[MAX_WARPS / 4];
static WarpProducts of_warp[MAX_WARPS];

void reset_wgmma() {
  for (Warpgroup &g : warpgroups) g = {};
  for (WarpProducts &w : of_warp) w = {};
}

// -- operands in shared memory --------------------------------------------------------------------

// A matrix descriptor. All numbers are bytes but `units`, the 16-byte units of a swizzled row.
struct Matrix {
  unsigned start, leading, stride, units;
  bool transposed;

  // Where the unit of 8 numbers lies whose first one is at row `major` (of M or N) and column k;
  // with `transposed` the unit runs along `major`, else along k.
  unsigned at(unsigned major, unsigned k) const {
    unsigned address = start;
    if (!transposed) {
      address += major % 8 * units * 16 + major / 8 * stride;
      address += k / 8 * (units == 1 ? leading : 16);
    } else {
      const unsigned unit = major / 8;
      address += unit % units * 16 + unit / units * (units == 1 ? stride : leading);
      address += k % 8 * units * 16 + k / 8 * (units == 1 ? leading : stride);
    }
    return address ^ (address >> 3 & (units - 1) << 4);
  }
};

static Matrix decoded(unsigned long long bits, bool transposed, const Place &place) {
  constexpr unsigned UNITS[4] = {1, 8, 4, 2};  // no swizzle, 128, 64, 32 bytes
  if (bits >> 49 & 7) stop("wgmma: a descriptor's base offset is not 0: not modelled", place);
  const auto bytes = [=](int at) { return static_cast<unsigned>(bits >> at & 0x3fff) << 4; };
  return {bytes(0), bytes(16), bytes(32), UNITS[bits >> 62], transposed};
}

static float number(unsigned short bits, bool bf16) {
  return bf16 ? float(__nv_bfloat16(__nv_bfloat16_raw{bits})) : float(__half(__half_raw{bits}));
}

// Rows [first, first + count) of the operand, 16 columns, to [count][16].
static void read_operand(const Matrix &m, unsigned first, unsigned count, bool bf16, float *to,
                         bool at_issue, const Place &place) {
  const unsigned step = m.transposed ? 8 : 1, k_step = m.transposed ? 1 : 8;
  for (unsigned row = first; row < first + count; row += step) {
    for (unsigned k = 0; k < 16; k += k_step) {
      const char *p = block.shared + m.at(row, k);
      if (!is_shared(p, 16)) {
        stop("wgmma: a descriptor leads outside shared memory: " + address_report(p, 16), place);
      }
      touch_at(p, 16, Access::Read, place);
      if (at_issue) check_fenced(p, 16, place);
      unsigned short bits[8];
      memcpy(bits, p, 16);
      for (unsigned i = 0; i < 8; ++i) {
        to[m.transposed ? (row - first + i) * 16 + k : (row - first) * 16 + k + i] =
            number(bits[i], bf16);
      }
    }
  }
}

static unsigned rank() { return running.thread / 32 % 4; }  // of the warp in its group

// -- issue ----------------------------------------------------------------------------------------

struct Lane {
  float *d;
  const unsigned *a;
  const Wgmma *what;
  Place place;
};

static bool same(const Wgmma &x, const Wgmma &y) {
  return x.a == y.a && x.b == y.b && x.columns == y.columns && x.registers == y.registers &&
         x.add == y.add && x.transpose_a == y.transpose_a && x.transpose_b == y.transpose_b &&
         x.bf16 == y.bf16;
}

static std::string described(const Wgmma &w) {
  char text[96];
  snprintf(text, sizeof text, "m64n%dk16, A %s%016llx, B %016llx", w.columns,
           w.registers ? "in registers " : "", w.a, w.b);
  return text;
}

// The four warps issue the same products in the same order, not at the same time.
static void join_group(const Wgmma &what, unsigned number, const Place &place) {
  Warpgroup &group = warpgroups[running.thread / 128];
  const unsigned index = number - group.dropped;
  if (index == group.issues.size()) group.issues.push_back({what, place, 0});
  Issue &issue = group.issues[index];
  if (!same(issue.what, what) || !same_place(issue.place, place)) {
    stop("the warps of a warpgroup differ in their product number " + std::to_string(number) +
             ": one issues " + described(issue.what) + " at " + text(issue.place) + ", warp " +
             std::to_string(running.thread / 32) + " " + described(what),
         place);
  }
  issue.warps |= 1u << rank();
  while (!group.issues.empty() && group.issues.front().warps == 15) {
    group.issues.pop_front();
    ++group.dropped;
  }
}

// Of d[i] of a lane in the warp's 16 rows of `columns` numbers.
static int place_of(int lane, int i, int columns) {
  return (lane / 4 + i / 2 % 2 * 8) * columns + i / 4 * 8 + lane % 4 * 2 + i % 2;
}

static Accumulator &accumulator(WarpProducts &w, const Lane (&lanes)[32], const Place &place) {
  float *const d = lanes[0].d;
  const int columns = lanes[0].what->columns;
  for (Accumulator &c : w.accumulators) {
    if (c.d[0] == d && c.columns == columns) return c;
    if (d < c.d[0] + c.columns / 2 && c.d[0] < d + columns / 2) {
      stop("wgmma: the accumulator is part of one that another product under way adds to", place);
    }
  }
  Accumulator c{{}, columns, 0, std::vector<float>(16 * columns)};
  for (int l = 0; l < 32; ++l) {
    c.d[l] = lanes[l].d;
    for (int i = 0; i < columns / 2; ++i) c.value[place_of(l, i, columns)] = c.d[l][i];
    memset(c.d[l], POISON, sizeof(float) * columns / 2);
  }
  w.accumulators.push_back(std::move(c));
  return w.accumulators.back();
}

static void issue(const Slot *slots) {
  Lane lanes[32];
  for (int l = 0; l < 32; ++l) {
    const Lane *lane;
    __builtin_memcpy(&lane, slots[l], sizeof lane);
    lanes[l] = *lane;
  }
  const Wgmma &what = *lanes[0].what;
  const Place place = lanes[0].place;
  for (const Lane &lane : lanes) {
    if (same(*lane.what, what)) continue;
    stop("the lanes of a warp give wgmma different operands: " + described(what) + " and " +
             described(*lane.what),
         place);
  }
  WarpProducts &w = of_warp[running.thread / 32];
  if (!w.fenced) {
    stop("wgmma.mma_async without wgmma.fence since the kernel began or wait_group returned: what "
         "was written to its registers may not be there yet",
         place);
  }
  join_group(what, w.issued++, place);
  Accumulator &sum = accumulator(w, lanes, place);
  ++sum.pending;
  w.products.push_back({what, w.group, place, lanes[0].d, {}});
  Product &product = w.products.back();
  for (int l = 0; what.registers && l < 32; ++l) {
    for (int i = 0; i < 8; ++i) {  // register i / 2, half i % 2
      const unsigned short bits = lanes[l].a[i / 2] >> i % 2 * 16;
      product.a[l / 4 + i / 2 % 2 * 8][l % 4 * 2 + i / 4 * 8 + i % 2] = number(bits, what.bf16);
    }
  }
  if (!block.launch.checks) return;
  float unused[256 * 16];  // the reads begin here
  if (!what.registers)
    read_operand(decoded(what.a, what.transpose_a, place), rank() * 16, 16, what.bf16, unused, true,
                 place);
  read_operand(decoded(what.b, what.transpose_b, place), 0, what.columns, what.bf16, unused, true,
               place);
}

SIMT_EXPORT void wgmma_issue(float *d, const unsigned *a, const Wgmma &what, const char *file,
                             int line) {
  const Place place{file, line};
  if (block.threads % 128) {
    stop("wgmma in a block of " + std::to_string(block.threads) +
             " threads: warpgroups are 128 threads each",
         place);
  }
  const Lane lane{d, a, &what, place}, *pointer = &lane;
  meet(~0u, &pointer, sizeof pointer, Op::Wgmma, place, issue);
}

// -- completion -----------------------------------------------------------------------------------

static void compute(const Product &p, Accumulator &sum) {
  float a[16][16], b[256][16];
  memcpy(a, p.a, sizeof a);
  if (!p.what.registers)
    read_operand(decoded(p.what.a, p.what.transpose_a, p.place), rank() * 16, 16, p.what.bf16, a[0],
                 false, p.place);
  read_operand(decoded(p.what.b, p.what.transpose_b, p.place), 0, sum.columns, p.what.bf16, b[0],
               false, p.place);
  float columns[16][256];
  for (int n = 0; n < sum.columns; ++n) {
    for (int k = 0; k < 16; ++k) columns[k][n] = b[n][k];
  }
  for (int m = 0; m < 16; ++m) {
    float *d = &sum.value[m * sum.columns];
    if (!p.what.add) memset(d, 0, sizeof(float) * sum.columns);
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < sum.columns; ++n) d[n] += a[m][k] * columns[k][n];
    }
  }
}

static void give_back(const Accumulator &c) {
  for (int l = 0; l < 32; ++l) {
    for (int i = 0; i < c.columns / 2; ++i) c.d[l][i] = c.value[place_of(l, i, c.columns)];
  }
}

static void fence(const Slot *) { of_warp[running.thread / 32].fenced = true; }
static void commit(const Slot *) { ++of_warp[running.thread / 32].group; }

// Ends all groups but the `pending` latest, the number that the lanes laid down.
static void finish(const Slot *slots) {
  WarpProducts &w = of_warp[running.thread / 32];
  int pending;
  __builtin_memcpy(&pending, slots[0], sizeof pending);
  const unsigned ended = w.group > static_cast<unsigned>(pending) ? w.group - pending : 0;
  while (!w.products.empty() && w.products.front().group < ended) {
    const Product &p = w.products.front();
    for (size_t i = 0; i < w.accumulators.size(); ++i) {
      Accumulator &c = w.accumulators[i];
      if (c.d[0] != p.d) continue;
      compute(p, c);
      if (--c.pending) break;
      give_back(c);
      w.accumulators.erase(w.accumulators.begin() + i);
      break;
    }
    w.products.pop_front();
  }
  w.fenced = false;  // the registers may be touched from here on
}

SIMT_EXPORT void wgmma_step(Op op, int pending, const char *file, int line) {
  const Complete complete = op == Op::WgmmaFence ? fence : op == Op::WgmmaCommit ? commit : finish;
  meet(~0u, &pending, sizeof pending, op, {file, line}, complete);
}

SIMT_EXPORT void fence_proxy_async() { ++me().fences; }

// -- what is wrong at other times -----------------------------------------------------------------

const Place *under_way(const char *p, unsigned size) {
  const WarpProducts &w = of_warp[running.thread / 32];
  for (const Accumulator &c : w.accumulators) {
    const char *d = reinterpret_cast<const char *>(c.d[lane()]);
    if (p + size <= d || d + sizeof(float) * c.columns / 2 <= p) continue;
    for (const Product &product : w.products) {
      if (product.d == c.d[0]) return &product.place;
    }
  }
  return nullptr;
}

void check_products() {
  for (unsigned i = 0; i < block.warps && !block.failed; ++i) {
    const Warpgroup &group = warpgroups[i / 4];
    if (!group.issues.empty()) {
      const Issue &issue = group.issues.front();
      block.message = "warps of a warpgroup took no part in a product:";
      for (unsigned w = 0; w < 4; ++w) {
        if (!(issue.warps >> w & 1)) block.message += " warp " + std::to_string(i / 4 * 4 + w);
      }
      block.message += ", in " + described(issue.what) + " (all four must issue it)";
      block.fault_place = issue.place;
    } else if (!of_warp[i].products.empty()) {
      block.message = "warp " + std::to_string(i) +
                      " ends while a product is under way: commit_group or wait_group is missing";
      block.fault_place = of_warp[i].products.front().place;
    } else {
      continue;
    }
    block.failed = true;
    block.has_thread = false;
    block.fault_pc = nullptr;
  }
}

}  // namespace simt
