//! One body, arriving in different ways.

/// The bytes whole, byte by byte, and cut at places that follow from the bytes themselves.
pub fn ways(bytes: &[u8]) -> [Vec<&[u8]>; 3] {
    [bytes.chunks(bytes.len().max(1)).collect(), bytes.chunks(1).collect(), scattered(bytes)]
}

/// `found` for each of [`ways`]; all must be equal. Returns it.
pub fn same<'a, T: PartialEq + std::fmt::Debug>(bytes: &'a [u8], found: impl Fn(&[&'a [u8]]) -> T) -> T {
    let [whole, singly, scattered] = ways(bytes).map(|pieces| found(&pieces));
    assert_eq!(whole, singly, "byte by byte is not as whole");
    assert_eq!(whole, scattered, "in pieces is not as whole");
    whole
}

fn scattered(bytes: &[u8]) -> Vec<&[u8]> {
    // FNV-1a seeds, xorshift goes on: the same bytes are always cut in the same places.
    let mut state = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let (piece, tail) = rest.split_at((1 + state as usize % 40).min(rest.len()));
        pieces.push(piece);
        rest = tail;
    }
    pieces
}
