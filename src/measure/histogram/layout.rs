//! The cells of a histogram, and the mapping from values to cells.

/// 2^(k/8): the bucket boundaries of one octave at scale 3, as in the Prometheus client libraries (doubled, because
/// theirs start at 0.5).
pub(super) const OCTAVE: [f64; 8] = [
    1.0,
    2.0 * 0.545_253_866_332_628_8,
    2.0 * 0.594_603_557_501_360_5,
    2.0 * 0.648_419_777_325_504_8,
    2.0 * 0.707_106_781_186_547_5,
    2.0 * 0.771_105_412_703_970_4,
    2.0 * 0.840_896_415_253_714_4,
    2.0 * 0.917_004_043_204_671_1,
];

/// Scale of the exponential buckets: eight per octave.
pub const SCALE: i32 = 3;

/// Values below 8 have one key each; larger values have one key per eighth of an octave.
const KEYS: usize = 496;

/// Unit of a histogram's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds, recorded in nanoseconds.
    Seconds,
    /// A count of tokens.
    Tokens,
}

impl Unit {
    /// Indices of the first exponential bucket and of one past the last; bucket `i` is `(2^(i/8), 2^((i+1)/8)]`.
    pub const fn range(self) -> (i32, i32) {
        match self {
            Self::Seconds => (-20 * 8, 12 * 8),
            Self::Tokens => (-1, 27 * 8),
        }
    }

    /// Converts a recorded integer to this unit.
    pub fn value(self, raw: f64) -> f64 {
        match self {
            Self::Seconds => raw / 1e9,
            Self::Tokens => raw,
        }
    }

    /// The largest integer within `bound`.
    pub(super) fn largest_within(self, bound: f64) -> u64 {
        let within = |raw: u64| self.value(raw as f64) <= bound;
        // The cast saturates; the result is at most one rounding step away from the edge.
        let mut raw = (bound * (1.0 / self.value(1.0))) as u64;
        while raw > 0 && !within(raw) {
            raw -= 1;
        }
        while raw < u64::MAX && within(raw + 1) {
            raw += 1;
        }
        raw
    }
}

/// 2^(i/8), exact in its octave.
pub(super) fn power(i: i32) -> f64 {
    OCTAVE[i.rem_euclid(8) as usize] * 2f64.powi(i.div_euclid(8))
}

/// The cells of one metric, shared by all its series.
#[derive(Debug)]
pub struct Layout {
    pub(super) unit: Unit,
    pub(super) bounds: Box<[f64]>,
    /// Largest recorded integer of every cell; `u64::MAX` for the last cell.
    pub(super) last: Box<[u64]>,
    /// Explicit bucket of every cell.
    pub(super) bucket: Box<[u16]>,
    /// Exponential bucket of every cell: 0 is the zero bucket, 1 the first of the range.
    pub(super) power: Box<[u16]>,
    /// First cell to check for a value, by [`key`].
    begin: Box<[u16; KEYS]>,
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (self.unit == other.unit && self.bounds == other.bounds)
    }
}

impl Layout {
    /// Creates a layout with these explicit bounds in any order; ignores negative and non-finite bounds.
    pub fn new(unit: Unit, bounds: impl IntoIterator<Item = f64>) -> Self {
        let mut bounds: Vec<f64> = bounds.into_iter().filter(|b| b.is_finite() && *b >= 0.0).collect();
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        let (first, end) = unit.range();
        let powers: Vec<f64> = (first..=end).map(power).collect();
        let mut edges: Vec<f64> = bounds.iter().chain(&powers).copied().collect();
        edges.sort_by(f64::total_cmp);
        edges.dedup();

        let (mut last, mut bucket, mut power) = (Vec::new(), Vec::new(), Vec::new());
        for edge in edges.into_iter().chain([f64::INFINITY]) {
            let largest = if edge.is_finite() { unit.largest_within(edge) } else { u64::MAX };
            // Several edges between two adjacent integers would make cells that no value can reach.
            if last.last() == Some(&largest) {
                continue;
            }
            last.push(largest);
            bucket.push(bounds.partition_point(|bound| *bound < edge) as u16);
            power.push(powers.partition_point(|bound| *bound < edge) as u16);
        }
        let mut begin = Box::new([0; KEYS]);
        for (key, cell) in begin.iter_mut().enumerate() {
            *cell = last.partition_point(|largest| *largest < smallest(key)) as u16;
        }
        Self { unit, bounds: bounds.into(), last: last.into(), bucket: bucket.into(), power: power.into(), begin }
    }

    /// The unit of the values.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The explicit bounds in the unit, ascending.
    pub fn bounds(&self) -> &[f64] {
        &self.bounds
    }

    /// The explicit bucket of a recorded integer; `bounds().len()` is the bucket above all bounds.
    pub fn bucket_of(&self, raw: u64) -> usize {
        usize::from(self.bucket[self.cell(raw)])
    }

    pub(super) fn cell(&self, raw: u64) -> usize {
        let mut cell = usize::from(self.begin[key(raw)]);
        while self.last[cell] < raw {
            cell += 1;
        }
        cell
    }
}

/// The key from an integer's leading four bits.
fn key(raw: u64) -> usize {
    if raw < 8 {
        return raw as usize;
    }
    let exponent = raw.ilog2();
    (exponent as usize - 2) << 3 | (raw >> (exponent - 3)) as usize & 7
}

/// The smallest integer with this key.
fn smallest(key: usize) -> u64 {
    if key < 8 { key as u64 } else { (8 | key as u64 & 7) << ((key >> 3) - 1) }
}
