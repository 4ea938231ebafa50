//! Hashes of numbers, equal on every machine and in every version: block ids in trace files depend on them. Pure.

const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's step: adjacent inputs give unrelated outputs.
pub const fn mix(x: u64) -> u64 {
    finalize(x.wrapping_add(GOLDEN_RATIO))
}

/// Hashes two numbers to one id. Order matters.
pub const fn combine(a: u64, b: u64) -> u64 {
    finalize(a.rotate_left(25) ^ b.wrapping_mul(GOLDEN_RATIO).wrapping_add(GOLDEN_RATIO))
}

const fn finalize(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_never_change() {
        assert_eq!([mix(0), mix(1)], [0xe220_a839_7b1d_cdaf, 0x910a_2dec_8902_5cc1]);
        assert_eq!(
            [combine(0, 0), combine(1, 2), combine(2, 1)],
            [0xe220_a839_7b1d_cdaf, 0x5fab_84e4_fdb6_98b0, 0x6353_6406_8656_1020]
        );
    }
}
