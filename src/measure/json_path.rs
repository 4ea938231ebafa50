//! The current path of a scan in a JSON document.

/// Deeper keys and array marks are scanned without a name.
const MAX_NAMED_DEPTH: usize = 6;
/// Maximum length of a path, in bytes; a longer path is scanned without a name.
const MAX_PATH: usize = 96;

#[derive(Debug)]
pub(super) struct JsonPath {
    text: [u8; MAX_PATH],
    len: usize,
    /// Length of `text` before the step at each named depth.
    marks: [u8; MAX_NAMED_DEPTH + 1],
    /// Depth of the outermost array, and its current element.
    array: Option<(usize, u32)>,
    /// Depth from which the path has no name.
    lost: Option<usize>,
}

/// A step into a value.
pub(super) enum PathStep<'a> {
    Key(&'a [u8]),
    Array,
}

impl Default for JsonPath {
    fn default() -> Self {
        Self { text: [0; MAX_PATH], len: 0, marks: [0; MAX_NAMED_DEPTH + 1], array: None, lost: None }
    }
}

impl JsonPath {
    /// True if the current path has a name.
    pub(super) fn has_a_name(&self) -> bool {
        self.lost.is_none()
    }

    /// Element index of the outermost array; 0 without one.
    pub(super) fn index(&self) -> u32 {
        self.array.map_or(0, |(_, index)| index)
    }

    /// The path, as in `usage.prompt_tokens` or `choices[].finish_reason`; `None` if it has no name.
    pub(super) fn named(&self) -> Option<&[u8]> {
        self.has_a_name().then(|| &self.text[..self.len])
    }

    pub(super) fn enter(&mut self, depth: usize, step: PathStep<'_>) {
        if self.lost.is_some() {
            return;
        }
        let (dot, step): (&[u8], &[u8]) = match step {
            PathStep::Array => {
                self.array = self.array.or(Some((depth, 0)));
                (b"", b"[]")
            }
            PathStep::Key(key) if self.len == 0 => (b"", key),
            PathStep::Key(key) => (b".", key),
        };
        let end = self.len + dot.len() + step.len();
        if let Some(mark) = self.marks.get_mut(depth) {
            *mark = self.len as u8;
        }
        if depth > MAX_NAMED_DEPTH || end > MAX_PATH {
            self.lost = Some(depth);
            return;
        }
        self.text[self.len..self.len + dot.len()].copy_from_slice(dot);
        self.text[self.len + dot.len()..end].copy_from_slice(step);
        self.len = end;
    }

    /// Drops the names below `depth`, because no caller wants a value there.
    pub(super) fn lose(&mut self, depth: usize) {
        self.lost = Some(depth);
    }

    pub(super) fn leave(&mut self, depth: usize) {
        if self.lost.is_some_and(|lost| lost < depth) {
            return;
        }
        self.lost = None;
        if let Some(mark) = self.marks.get(depth) {
            self.len = usize::from(*mark);
        }
        if self.array.is_some_and(|(array, _)| array == depth) {
            self.array = None;
        }
    }

    /// Advances to the next element of an array.
    pub(super) fn next(&mut self, depth: usize) {
        if let Some((array, index)) = &mut self.array
            && *array == depth
        {
            *index = index.saturating_add(1);
        }
    }
}
