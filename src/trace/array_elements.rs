//! Turns the elements of one JSON array into lines, so that an array of any length is read in bounded memory.

use std::io::{self, BufRead, Read};

/// Reads an array as one line per element.
pub(super) struct ArrayElements<R> {
    array: R,
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl<R: BufRead> ArrayElements<R> {
    pub(super) const fn new(array: R) -> Self {
        Self { array, depth: 0, in_string: false, escaped: false }
    }

    /// The byte of the lines for the next byte of the array.
    fn line_byte(&mut self, byte: u8) -> u8 {
        if self.in_string {
            let plain = !std::mem::take(&mut self.escaped);
            self.escaped = plain && byte == b'\\';
            self.in_string = !(plain && byte == b'"');
            return byte;
        }
        match byte {
            b'"' => self.in_string = true,
            b'[' | b'{' => {
                self.depth = self.depth.saturating_add(1);
                // The bracket of the array itself.
                return if self.depth == 1 { b' ' } else { byte };
            }
            b']' | b'}' => {
                self.depth = self.depth.saturating_sub(1);
                return if self.depth == 0 { b' ' } else { byte };
            }
            b',' if self.depth == 1 => return b'\n',
            b'\n' | b'\r' => return b' ',
            _ => {}
        }
        byte
    }
}

impl<R: BufRead> Read for ArrayElements<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.array.read(buffer)?;
        for byte in &mut buffer[..read] {
            *byte = self.line_byte(*byte);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_is_a_line_whatever_its_strings_and_its_layout() {
        let array = b"[\n {\"a\": \"x, \\\"]\\\\\",\n \"b\": [1,\n2]}, {\"c\": {}},\n3\n]\n";
        let mut text = String::new();
        ArrayElements::new(&array[..]).read_to_string(&mut text).unwrap();
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines, [r#"{"a": "x, \"]\\", "b": [1, 2]}"#, r#"{"c": {}}"#, "3"]);
    }
}
