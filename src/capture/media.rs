//! Image dimensions from the first bytes of PNG, JPEG, GIF and WebP. Pure.

/// Width and height in pixels; `None` if the bytes do not contain them.
pub fn dimensions(head: &[u8]) -> Option<(u32, u32)> {
    let size = if head.starts_with(b"\x89PNG\r\n\x1a\n") {
        (read_be(head, 16, 4)?, read_be(head, 20, 4)?)
    } else if head.starts_with(b"GIF8") {
        (read_le(head, 6, 2)?, read_le(head, 8, 2)?)
    } else if head.starts_with(&[0xff, 0xd8]) {
        jpeg(head)?
    } else if head.starts_with(b"RIFF") && head.get(8..12)? == b"WEBP" {
        webp(head)?
    } else {
        return None;
    };
    (size.0 > 0 && size.1 > 0).then_some(size)
}

fn read_be(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    Some(bytes.get(at..at + length)?.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
}

fn read_le(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    Some(bytes.get(at..at + length)?.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
}

/// Walks the segments up to the start-of-frame segment.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        while bytes.get(at..at + 2)? == [0xff, 0xff] {
            at += 1;
        }
        let [0xff, marker] = *bytes.get(at..at + 2)? else { return None };
        match marker {
            // Start-of-frame markers of every coding. C4, C8 and CC are tables and reserved values.
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                return Some((read_be(bytes, at + 7, 2)?, read_be(bytes, at + 5, 2)?));
            }
            // Start of the image data, or its end.
            0xd9 | 0xda => return None,
            0x01 | 0xd0..=0xd8 => at += 2,
            _ => at += 2 + read_be(bytes, at + 2, 2)? as usize,
        }
    }
}

fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes.get(12..16)? {
        b"VP8X" => Some((read_le(bytes, 24, 3)? + 1, read_le(bytes, 27, 3)? + 1)),
        b"VP8L" => {
            let bits = read_le(bytes, 21, 4)?;
            Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        b"VP8 " => Some((read_le(bytes, 26, 2)? & 0x3fff, read_le(bytes, 28, 2)? & 0x3fff)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_tells_its_size() {
        let png = [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &[0, 0, 2, 0x80, 0, 0, 1, 0xe0]].concat();
        let gif = *b"GIF89a\x80\x02\xe0\x01\xf7";
        let jpeg = [
            &[0xff, 0xd8, 0xff, 0xe0, 0, 4, 9, 9, 0xff, 0xc4, 0, 2, 0xff, 0xff, 0xc2, 0, 17, 8][..],
            &[1, 0xe0, 2, 0x80],
        ]
        .concat();
        let webp = |kind: &[u8], rest: &[u8]| [b"RIFF\0\0\0\0WEBP", kind, b"\0\0\0\0", rest].concat();
        let extended = webp(b"VP8X", &[0, 0, 0, 0, 0x7f, 2, 0, 0xdf, 1, 0]);
        let bits = (639_u32 | 479 << 14).to_le_bytes();
        let lossless = webp(b"VP8L", &[&[0x2f][..], &bits].concat());
        let lossy = webp(b"VP8 ", &[0, 0, 0, 0x9d, 1, 0x2a, 0x80, 2, 0xe0, 1]);
        for (name, bytes) in
            [("png", &png[..]), ("gif", &gif), ("jpeg", &jpeg), ("x", &extended), ("l", &lossless), ("v", &lossy)]
        {
            assert_eq!(dimensions(bytes), Some((640, 480)), "{name}");
            for cut in 0..bytes.len().min(10) {
                assert_eq!(dimensions(&bytes[..cut]), None, "{name} cut at {cut}");
            }
        }
        assert_eq!(dimensions(b"BM and more"), None);
    }
}
